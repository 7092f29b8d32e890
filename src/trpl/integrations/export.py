"""Export for deployment: a trained policy as one file, including its observation normaliser.

    export("runs/HalfCheetah-v4/kl/seed-0", "policy.onnx")                  a run of `trpl train`
    export(model, "policy.onnx", vec_normalize=env)                         a model of Stable-Baselines3

The exported policy is noise-free: it maps raw observations to the environment's actions.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trpl.errors import ExportError, MissingExtraError
from trpl.policies import load_policy
from trpl.policies.heads import Ending, GaussianHead, Head, from_json
from trpl.policies.normaliser import clipped
from trpl.policies.storage import newest_checkpoint, read_checkpoint, stored_head
from trpl.policies.weights import SPREADS, affine, hidden_names

FORMATS = {".onnx": "onnx", ".pt": "torch", ".npz": "npz"}
NUM_CHECKED, TOLERANCE = 10_000, 1e-5
NEAR_TIES = 1e-3  # share of observations on which another class may be chosen
LARGEST_FILE = 2**30  # bytes, unpacked
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "identity": lambda x: x,
}


class Layer(NamedTuple):
    """A linear layer and the activation behind it."""

    weight: np.ndarray  # [in, out]
    bias: np.ndarray
    activation: str  # a key of ACTIVATIONS


class Deployable(NamedTuple):
    """A deployable policy: clip((x − shift)/scale, ± clip), the layers, the action clipped to low and high.

    A step whose numbers are None is skipped. With a `head` the last layer's outputs are those that its `layers` name,
    side by side, and the head converts them to the environment's action: a whole number for `Discrete`, a tuple or
    dictionary for hybrid actions.
    """

    layers: tuple[Layer, ...]
    shift: np.ndarray | None = None  # float64, as the statistics
    scale: np.ndarray | None = None
    clip: float | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    head: Head | None = None

    @property
    def obs_size(self) -> int:
        """The length of an observation."""
        return self.layers[0].weight.shape[0]

    @property
    def action_size(self) -> int:
        """The length of an action as a vector."""
        return self.layers[-1].bias.shape[0] if self.head is None else self.head.action_size

    def __call__(self, observations: np.ndarray) -> Any:
        """Return noise-free actions for raw observations [..., obs]; float32 for a box."""
        x = np.asarray(observations)
        if self.shift is not None and self.scale is not None:
            x = (x - self.shift) / self.scale
        x = clipped(x, self.clip)
        for weight, bias, activation in self.layers:
            x = ACTIVATIONS[activation](x @ weight + bias)
        if self.head is not None:
            return self.head.take(self.head.mode(split_outputs(x, self.head)))
        return x if self.low is None else np.clip(x, self.low, self.high)


def mode_layers(head: Head) -> list[Ending]:
    """List the last layers that noise-free acting needs: all but those of a Gaussian's covariance."""
    return [ending for ending in head.layers if ending.name.split(".")[-1] not in SPREADS.values()]


def split_outputs(x: Any, head: Head) -> dict[str, Any]:
    """Split the last layer's outputs by the layers of the head."""
    endings = mode_layers(head)
    ends = np.cumsum([ending.size for ending in endings]).tolist()
    return {ending.name: x[..., end - ending.size : end] for ending, end in zip(endings, ends, strict=True)}


class Source(NamedTuple):
    """A policy to export, and its host's own function to compare the file with."""

    policy: Deployable
    reference: Callable[[np.ndarray], np.ndarray]


def export(run: Any, path: str | Path, *, format: str | None = None, vec_normalize: Any = None) -> Path:
    """Write a trained policy as one file, including its observation normaliser and its actions' limits.

    The file is checked against the policy itself on 10,000 observations.

    Args:
        run: A run folder, one of its checkpoints, RUN/best, or a trained on-policy model of Stable-Baselines3.
        path: The file to write. "torch" writes a script beside it.
        format: "onnx", "torch" or "npz"; by default that of the file's ending (.onnx, .pt, .npz).
        vec_normalize: The `VecNormalize` of a model whose environment has another one, or none any more; False if
            observations were not normalised.

    Returns:
        The file.

    Raises:
        ExportError: The policy cannot be written in this format, its normaliser is unknown, or the file does not act as
            the policy does.
    """
    path = Path(path)
    format = format or FORMATS.get(path.suffix)
    if format not in FORMATS.values():
        known = ", ".join(FORMATS.values())
        raise ExportError(f"{path.name} does not end in {', '.join(FORMATS)}: name the format, one of {known}")
    source = read(run, vec_normalize=vec_normalize)
    path.parent.mkdir(parents=True, exist_ok=True)
    if format == "onnx":
        from trpl.integrations.onnx import load, write
    elif format == "torch":
        from trpl.integrations.torch_script import load, write
    else:
        write, load = write_npz, load_npz
    write(source.policy, path)
    try:
        check(load(path), source, name=str(path))
    except (ExportError, MissingExtraError):
        path.unlink()  # nobody should deploy it
        raise
    return path


def read(run: Any, *, vec_normalize: Any = None) -> Source:
    """Read the policy of a run folder or of a model.

    Args:
        run: See `export`.
        vec_normalize: See `export`.

    Returns:
        The policy, and its host's own function.

    Raises:
        ExportError: The policy cannot be exported, or its normaliser is unknown.
    """
    if not isinstance(run, str | Path):
        from trpl.integrations.sb3.deployment import from_model

        return Source(*from_model(run, vec_normalize))
    if vec_normalize is not None:
        raise ExportError("vec_normalize is for models of Stable-Baselines3; a run has a normaliser of its own")
    checkpoint = newest_checkpoint(run)
    return Source(from_checkpoint(checkpoint), load_policy(checkpoint))


def from_checkpoint(folder: Path) -> Deployable:
    """Read the policy in a checkpoint."""
    arrays, meta = read_checkpoint(folder, part="policy")
    head = stored_head(arrays, meta)
    normaliser: dict[str, Any] = {"shift": arrays["observation/shift"], "scale": arrays["observation/scale"]}
    hidden = tuple(Layer(*affine(arrays, name), "tanh") for name in hidden_names(arrays))
    actions = head.actions if isinstance(head, GaussianHead) else None
    if not head.gaussian or (actions is not None and actions.squash):
        ends = [affine(arrays, ending.name) for ending in mode_layers(head)]
        weight, bias = (np.concatenate(parts, axis=-1) for parts in zip(*ends, strict=True))
        last = Layer(weight, bias, "identity")
        return Deployable((*hidden, last), **normaliser, clip=meta["observation_clip"], head=head)
    if actions is not None:  # the last layer is linear, so its weights can absorb the map to the environment's actions
        arrays["mean/weight"] = arrays["mean/weight"] * actions.gain
        arrays["mean/bias"] = arrays["mean/bias"] * actions.gain + actions.offset
    return Deployable(
        (*hidden, Layer(*affine(arrays, "mean"), "identity")),
        **normaliser,
        clip=meta["observation_clip"],
        low=actions.low if actions else None,
        high=actions.high if actions else None,
    )


def observations_to_check(policy: Deployable, rng: np.random.Generator) -> np.ndarray:
    """Draw observations around the normaliser's mean, with three times its standard deviation."""
    noise = 3.0 * rng.standard_normal((NUM_CHECKED, policy.obs_size))
    if policy.shift is not None and policy.scale is not None:
        noise = policy.shift + policy.scale * noise
    return noise.astype(np.float32)


def check(exported: Callable[[np.ndarray], np.ndarray], source: Source, *, name: str) -> None:
    """Refuse a file whose actions differ from the policy's by more than 1e-5 of the largest, or of 1 if that is larger.

    The largest is taken over all observations: where an action of a wide box is near 0, rounding is that of the box's
    width. Nearly tied classes may be chosen differently, so one in a thousand may differ.
    """
    observations = observations_to_check(source.policy, np.random.default_rng(0))
    wanted, found = (_vectors(act(observations)) for act in (source.reference, exported))
    if [x.shape for x in wanted] != [x.shape for x in found]:
        raise ExportError(f"{name} does not act as the policy does: its actions have other shapes")
    for one, other in zip(wanted, found, strict=True):
        if one.dtype.kind in "iu":
            error, limit = float(np.mean(one != other)), NEAR_TIES
        else:
            largest = np.maximum(1.0, np.abs(one).max(axis=0))  # per action dimension
            error, limit = float(np.max(np.abs(other - one) / largest)), TOLERANCE
        if not error <= limit:
            raise ExportError(f"{name} does not act as the policy does: actions differ by up to {error:.2g}")


def _vectors(actions: Any) -> list[np.ndarray]:
    """List the arrays of actions, which may be a tuple or a dictionary of them."""
    if isinstance(actions, dict):
        actions = tuple(actions.values())
    return [np.asarray(x) for x in actions] if isinstance(actions, tuple) else [np.asarray(actions)]


def write_npz(policy: Deployable, path: Path) -> None:
    """Write arrays by name: layer<i>/weight [in, out], /bias, /activation.

    shift, scale, clip, low, high and head (as JSON) are included if they apply.
    """
    arrays: dict[str, Any] = {
        name: value for name, value in policy._asdict().items() if name not in ("layers", "head") and value is not None
    }
    if policy.head is not None:
        arrays["head"] = json.dumps(policy.head.to_json())
    for i, layer in enumerate(policy.layers):
        arrays |= {f"layer{i}/{name}": np.asarray(value) for name, value in layer._asdict().items()}
    with open(path, "wb") as file:  # np.savez would change the name
        np.savez(file, **arrays)


def load_npz(path: str | Path) -> Deployable:
    """Read a policy that `export` wrote as .npz; nothing in the file is unpickled.

    Args:
        path: The file.

    Returns:
        The policy: `action = policy(observation)`.

    Raises:
        ExportError: The file is not such a policy, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            if sum(info.file_size for info in packed.infolist()) > LARGEST_FILE:
                raise ExportError(f"{path} unpacks to more than {LARGEST_FILE >> 20} MiB, no policy of this kind")
        with np.load(path, allow_pickle=False) as arrays:
            count = sum(name.endswith("/weight") for name in arrays)
            layers = tuple(
                Layer(arrays[f"layer{i}/weight"], arrays[f"layer{i}/bias"], str(arrays[f"layer{i}/activation"]))
                for i in range(count)
            )
            rest = {name: arrays[name] for name in ("shift", "scale", "clip", "low", "high") if name in arrays}
            head = from_json(json.loads(str(arrays["head"]))) if "head" in arrays else None
    except ExportError:
        raise
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # zipfile, zlib and NumPy raise various exceptions for damaged files
        raise ExportError(f"{path} is not a policy as .npz: {type(error).__name__}: {error}") from error
    policy = Deployable(layers, **rest, head=head)
    found = [array for layer in layers for array in layer[:2]] + list(rest.values())
    whole = all(isinstance(array, np.ndarray) for array in found)  # damaged members come as bytes
    problem = _problem(policy) if whole else "some of it is no array"
    if problem:
        raise ExportError(f"{path} is not a policy as .npz: {problem}")
    return policy


def _problem(policy: Deployable) -> str | None:
    """Describe why arrays are not a valid policy; None if they are."""
    if not policy.layers or policy.layers[0].weight.ndim != 2:
        return "it has no layers"
    size = policy.layers[0].weight.shape[0]
    numbers = {"shift": size, "scale": size}
    for i, (weight, bias, activation) in enumerate(policy.layers):
        if activation not in ACTIVATIONS:
            return f"layer {i} has the activation {activation[:40]!r}, not one of {', '.join(ACTIVATIONS)}"
        if bias.ndim != 1 or weight.shape != (size, *bias.shape) or 0 in weight.shape:
            return f"layer {i} does not fit the one before it"
        if weight.dtype.kind != "f" or bias.dtype.kind != "f":
            return f"layer {i} is not made of floats"
        size = bias.shape[0]
    if policy.head is not None and sum(ending.size for ending in mode_layers(policy.head)) != size:
        return "its head does not fit its last layer"
    numbers |= {"low": size, "high": size, "clip": None}
    for name, wanted in numbers.items():
        found = getattr(policy, name)
        if found is not None and (found.dtype.kind != "f" or found.shape != (() if wanted is None else (wanted,))):
            return f"{name} is not {wanted or 'a number'} floats"
    for pair in (("shift", "scale"), ("low", "high")):
        if len({getattr(policy, name) is None for name in pair}) == 2:
            return f"it has only one of {' and '.join(pair)}"
    return None
