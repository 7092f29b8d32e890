"""Checkpoints on disk: arrays as safetensors, the rest as JSON, everything under a checksum; no pickle.

A checkpoint is a folder `checkpoints/00000120` with

    policy.safetensors   the weights that act, under their names, and `observation/shift`, `observation/scale`;
                         the metadata describe their meaning under `head`, unless it is a Gaussian
    state.safetensors    everything else needed to resume
    manifest.json        {"content": {"epoch", "meta", "files": {name: sha256}}, "sha256": of the content}

written into a temporary folder, synced to disk and renamed, so that writing is atomic. Needs only NumPy.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trpl.errors import CheckpointError
from trpl.policies.actions import map_problem, stored_map
from trpl.policies.heads import GaussianHead, Head, from_json
from trpl.policies.weights import SCALE, SHIFT, affine, as_affine, covariance_of, hidden_names, is_contextual, raw_name

FOLDER, BEST = "checkpoints", "best"
MANIFEST = "manifest.json"
NUM_KEPT = 2
FILE_NAME = re.compile(r"\w+\.safetensors")
LARGEST_STATISTIC = 1e15  # of observations: magnitude for which (x − shift)/scale stays within float32
Arrays = dict[str, np.ndarray]


def write_checkpoint(
    run: Path,
    *,
    epoch: int,
    parts: Mapping[str, Mapping[str, np.ndarray]],
    meta: Mapping[str, Any],
    name: str | None = None,
) -> Path:
    """Write a checkpoint atomically; keep the newest two of the numbered ones.

    Args:
        run: The run folder.
        epoch: Its number.
        parts: Arrays by name, by the name of their file.
        meta: Metadata that JSON can hold.
        name: A name instead of the number; the next checkpoint of that name replaces it.

    Returns:
        The checkpoint folder.
    """
    from safetensors.numpy import save

    folder = run / FOLDER
    name = name or f"{epoch:08d}"
    temporary = folder / f"tmp-{name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    files = {}
    for part, arrays in parts.items():
        data = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
        files[f"{part}.safetensors"] = hashlib.sha256(data).hexdigest()
        write_flushed(temporary / f"{part}.safetensors", data)
    content = {"epoch": epoch, "meta": meta, "files": files}
    manifest = {"content": content, "sha256": _digest_json(content)}
    write_flushed(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())
    final = folder / name
    shutil.rmtree(final, ignore_errors=True)  # an unsound checkpoint, or the previous one of this name
    temporary.rename(final)
    _flush_folder(folder)
    for old in checkpoint_folders(run)[NUM_KEPT:]:
        shutil.rmtree(old)
    return final


def checkpoint_folders(run: str | Path) -> list[Path]:
    """List the folders of a run's numbered checkpoints, sound or not, newest first."""
    return sorted((p for p in (Path(run) / FOLDER).glob("[0-9]" * 8) if p.is_dir()), reverse=True)


def best_or_same(path: str | Path) -> Path:
    """Resolve RUN/best to the best checkpoint of a run; return any other path unchanged."""
    path = Path(path)
    return path.parent / FOLDER / BEST if path.name == BEST and not path.exists() else path


def newest_checkpoint(run: str | Path) -> Path:
    """Find the newest sound checkpoint of a run, with a warning about damaged ones.

    Args:
        run: The run folder; a checkpoint folder or RUN/best is returned itself.

    Returns:
        The checkpoint folder.

    Raises:
        CheckpointError: There is none.
    """
    run = best_or_same(run)
    if (run / MANIFEST).exists():
        check(run)
        return run
    refused = []
    for folder in checkpoint_folders(run):
        try:
            check(folder)
        except CheckpointError as error:
            refused.append(str(error))
            continue
        for message in refused:
            warnings.warn(f"{message}; using {folder.name} instead", stacklevel=2)
        return folder
    if run.name == BEST and run.parent.is_dir():
        raise CheckpointError(no_best(run.parent.parent))
    why = "; ".join(refused) or ("there is none" if run.is_dir() else "there is no such folder")
    raise CheckpointError(f"no checkpoint to use in {run}: {why}{'' if refused else _nearest_run(run)}")


def no_best(run: Path) -> str:
    """Say that a run has no best checkpoint."""
    return f"{run} has no best checkpoint: it was not evaluated yet"


def _nearest_run(path: Path) -> str:
    """Name the run that a path is in, or else a run inside of it, for a message."""
    around = next((parent for parent in path.absolute().parents if (parent / FOLDER).is_dir()), None)
    return run_inside(path, FOLDER) if around is None else f"; its run is {around}"


def run_inside(folder: Path, name: str) -> str:
    """Name a run in a folder of runs, for a message; `name` is of a file or folder that each run has."""
    found = next((path for depth in range(1, 4) for path in sorted(folder.glob("*/" * depth + name))), None)
    return "" if found is None else f"; a run in it is {found.parent}"


def check(folder: Path) -> dict[str, Any]:
    """Verify every checksum of a checkpoint.

    Args:
        folder: The checkpoint folder.

    Returns:
        The content of its manifest.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        content = manifest["content"]
        sound = manifest["sha256"] == _digest_json(content)
        epoch, meta, files = content["epoch"], content["meta"], content["files"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {folder} has no readable manifest ({type(error).__name__})") from error
    if not sound:
        raise CheckpointError(f"checkpoint {folder} was changed: its manifest does not match its checksum")
    if type(epoch) is not int or not isinstance(meta, dict) or not isinstance(files, dict):
        raise CheckpointError(f"checkpoint {folder} has a malformed manifest")
    for name, wanted in files.items():
        if not FILE_NAME.fullmatch(name):
            raise CheckpointError(f"checkpoint {folder} lists {name!r}, which is not one of its files")
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise CheckpointError(f"checkpoint {folder} lacks {name}") from error
        if found != wanted:
            raise CheckpointError(
                f"checkpoint {folder} is truncated or was changed: {name} does not match its checksum"
            )
    return content


def read_checkpoint(folder: Path, *, part: str) -> tuple[Arrays, dict[str, Any]]:
    """Read one part of a checkpoint.

    Args:
        folder: The checkpoint folder.
        part: The name of the part.

    Returns:
        Its arrays by name, and the checkpoint's metadata with its `epoch`.

    Raises:
        CheckpointError: A file is missing or does not match its checksum.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    content = check(folder)
    name = f"{part}.safetensors"
    if name not in content["files"]:
        raise CheckpointError(f"checkpoint {folder} lacks {name}")
    try:
        arrays = load((folder / name).read_bytes())
    except (SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {folder}: {name} is not a file of arrays ({error})") from error
    meta = content["meta"] | {"epoch": content["epoch"]}
    if part == "policy" and (problem := _policy_problem(arrays, meta)):
        raise CheckpointError(f"checkpoint {folder} holds no policy: {problem}")
    return arrays, meta


def stored_head(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Head:
    """Find the head of a checkpoint's policy: described in its metadata, or a Gaussian's by the names of its weights.

    Raises:
        ValueError: There is neither.
    """
    if meta.get("head") is not None:
        return from_json(meta["head"])
    size = arrays["mean/bias"].shape[-1] if "mean/bias" in arrays and arrays["mean/bias"].ndim else 0
    return GaussianHead(size, covariance_of(arrays), is_contextual(arrays), actions=stored_map(arrays))


def _policy_problem(arrays: Arrays, meta: Mapping[str, Any]) -> str | None:
    """Describe why arrays and metadata are not a policy with its normaliser; None if they are."""
    try:
        head = stored_head(arrays, meta)
    except ValueError as error:
        return f"of its head: {error}"
    return (
        _number_problem(arrays, head)
        or _shape_problem(arrays, head)
        or map_problem(arrays, head.action_size)
        or _normaliser_problem(arrays, meta)
    )


def _number_problem(arrays: Arrays, head: Head) -> str | None:
    """Describe which array is missing or not made of finite floats."""
    layers = [*hidden_names(arrays), *(ending.name for ending in head.layers)]
    wanted = [name for layer in layers for name in as_affine(layer, None, None)]
    for name in (*wanted, SHIFT, SCALE, *map(raw_name, head.shared)):
        if name not in arrays:
            return f"{name} is missing"
        if arrays[name].dtype.kind != "f" or not np.isfinite(arrays[name]).all():
            return f"{name} is not an array of finite floats"
    return None


def _shape_problem(arrays: Arrays, head: Head) -> str | None:
    """Describe why layers do not fit together, from the observation to the head."""
    hidden = hidden_names(arrays)
    first, _ = affine(arrays, [*hidden, head.layers[0].name][0])
    if first.ndim != 2:
        return "its first layer is not a matrix"
    widths = [first.shape[0], *(affine(arrays, layer)[1].size for layer in hidden)]
    layers = [*zip(hidden, widths, widths[1:], strict=False), *((name, widths[-1], size) for name, size in head.layers)]
    wanted = {SHIFT: (widths[0],), SCALE: (widths[0],)}
    wanted |= {raw_name(name): (length,) for name, length in head.shared.items()}
    for name, inputs, outputs in layers:
        wanted |= as_affine(name, (inputs, outputs), (outputs,))
    if not head.action_size or not widths[0] or any(arrays[name].shape != shape for name, shape in wanted.items()):
        return "its layers do not fit together"
    return None


def _normaliser_problem(arrays: Arrays, meta: Mapping[str, Any]) -> str | None:
    """Describe why observations cannot be normalised."""
    shift, scale = np.abs(arrays[SHIFT]), arrays[SCALE]
    if not ((shift < LARGEST_STATISTIC) & (scale > 1 / LARGEST_STATISTIC) & (scale < LARGEST_STATISTIC)).all():
        return f"its {SHIFT} and {SCALE} are not valid statistics of observations"
    clip = meta.get("observation_clip", "missing")
    if clip is not None and not (type(clip) in (int, float) and 0 < clip < np.inf):
        return f"its observation_clip is {clip!r}"
    return None


def _digest_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_flushed(path: Path, data: bytes) -> None:
    """Write a file and sync it to disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
