"""Checkpoints: whole or not at all, and refused when a byte is off."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from trpl.errors import CheckpointError
from trpl.policies import load_policy
from trpl.policies.storage import checkpoint_folders, newest_checkpoint, read_checkpoint, write_checkpoint

WEIGHTS = {
    "layer0/weight": np.full((2, 3), 0.5, np.float32),
    "layer0/bias": np.zeros(3, np.float32),
    "mean/weight": np.ones((3, 1), np.float32),
    "mean/bias": np.array([0.25], np.float32),
    "std/raw": np.zeros(1, np.float32),
}
NORMALISER = {"observation/shift": np.array([1.0, 2.0]), "observation/scale": np.array([2.0, 4.0])}


def write(run, epoch, *, clip=None):
    state = {"count": np.array(epoch), "rows": np.arange(6.0).reshape(2, 3)}
    parts = {"policy": WEIGHTS | NORMALISER, "state": state}
    return write_checkpoint(run, epoch=epoch, parts=parts, meta={"observation_clip": clip})


def test_what_was_written_is_read(tmp_path):
    folder = write(tmp_path, 7)
    arrays, meta = read_checkpoint(folder, part="state")
    assert arrays["count"].shape == ()
    assert arrays["count"] == 7
    np.testing.assert_array_equal(arrays["rows"], np.arange(6.0).reshape(2, 3))
    assert meta == {"observation_clip": None, "epoch": 7}


def test_the_newest_two_are_kept(tmp_path):
    for epoch in (1, 2, 3):
        write(tmp_path, epoch)
    assert [folder.name for folder in checkpoint_folders(tmp_path)] == ["00000003", "00000002"]


def damage(folder, how):
    file = folder / "state.safetensors"
    match how:
        case "truncated":
            file.write_bytes(file.read_bytes()[:-3])
        case "one byte":
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(bytes(data))
        case "missing":
            file.unlink()
        case "manifest":
            manifest = json.loads((folder / "manifest.json").read_text())
            manifest["content"]["epoch"] += 1
            (folder / "manifest.json").write_text(json.dumps(manifest))
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "half a manifest":
            (folder / "manifest.json").write_text("{")


@pytest.mark.parametrize("how", ["truncated", "one byte", "missing", "manifest", "no manifest", "half a manifest"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(tmp_path, how):
    write(tmp_path, 1)
    newest = write(tmp_path, 2)
    damage(newest, how)
    with pytest.warns(UserWarning, match="00000002.*using 00000001"):
        assert newest_checkpoint(tmp_path).name == "00000001"
    with pytest.raises(CheckpointError, match="00000002"):
        read_checkpoint(newest, part="state")


def test_no_sound_checkpoint_is_an_error_that_says_why(tmp_path):
    damage(write(tmp_path, 1), "one byte")
    with pytest.raises(CheckpointError, match=r"no checkpoint.*state\.safetensors does not match"):
        newest_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        newest_checkpoint(tmp_path / "elsewhere")


def test_a_folder_of_runs_is_answered_with_a_run_in_it(tmp_path):
    write(tmp_path / "runs" / "Hopper-v4" / "kl", 1)
    with pytest.raises(CheckpointError, match=r"there is none; a run in it is .*runs/Hopper-v4/kl$"):
        newest_checkpoint(tmp_path / "runs")


def test_a_place_within_a_run_names_the_run(tmp_path):
    """For `load_policy` and `trpl export`, which take a checkpoint that no run surrounds too."""
    write(tmp_path / "run", 1)
    with pytest.raises(CheckpointError, match=rf"checkpoints: there is none; its run is {tmp_path}/run$"):
        load_policy(tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}/run has no best checkpoint: it was not evaluated yet$"):
        load_policy(tmp_path / "run" / "best")
    with pytest.raises(CheckpointError, match=r"run/checkpoints/00000009: there is no such folder; its run is"):
        load_policy(tmp_path / "run" / "checkpoints" / "00000009")


def signed(folder, change):
    """The manifest changed, and signed again: what gets past the checksum."""
    manifest = json.loads((folder / "manifest.json").read_text())
    content = change(manifest["content"]) or manifest["content"]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"content": content, "sha256": digest}))


@pytest.mark.parametrize("name", ["../../outside.safetensors", "/etc/passwd", "state.safetensors/..", "", "a.txt"])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path, name):
    folder = write(tmp_path, 1)
    signed(folder, lambda content: content["files"].update({name: "0" * 64}))
    with pytest.raises(CheckpointError, match="is not one of its files"):
        read_checkpoint(folder, part="state")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: ["epoch"], "no readable manifest"),
        (lambda content: content | {"epoch": "1"}, "malformed manifest"),
        (lambda content: content | {"meta": []}, "malformed manifest"),
        (lambda content: content | {"files": []}, "malformed manifest"),
        (lambda content: content | {"files": {}}, r"lacks state\.safetensors"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(tmp_path, change, words):
    folder = write(tmp_path, 1)
    signed(folder, change)
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(folder, part="state")


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 100, (2).to_bytes(8, "little") + b"[]", (10**15).to_bytes(8, "little")]
)
def test_a_signed_file_that_is_no_file_of_arrays_is_refused(tmp_path, data):
    folder = write(tmp_path, 1)
    (folder / "state.safetensors").write_bytes(data)
    signed(folder, lambda content: content["files"].update({"state.safetensors": hashlib.sha256(data).hexdigest()}))
    with pytest.raises(CheckpointError, match="not a file of arrays"):
        read_checkpoint(folder, part="state")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mean/bias": None}, "mean/bias is missing"),
        ({"std/raw": None}, "std/raw is missing"),
        ({"observation/scale": None}, "observation/scale is missing"),
        ({"mean/bias": np.array([np.nan], np.float32)}, "mean/bias is not an array of finite floats"),
        ({"mean/bias": np.array([1])}, "mean/bias is not an array of finite floats"),
        ({"mean/bias": np.zeros((1, 1))}, "do not fit together"),
        ({"layer0/weight": np.zeros(3)}, "not a matrix"),
        ({"layer0/bias": np.zeros((3, 1))}, "do not fit together"),
        ({"mean/weight": np.zeros((4, 1))}, "do not fit together"),
        ({"observation/shift": np.zeros(3)}, "do not fit together"),
        ({"std/raw": np.zeros(2)}, "do not fit together"),
        ({"observation/scale": np.array([1.0, 0.0])}, "not valid statistics of observations"),
        ({"observation/shift": np.array([1.0, -1e300])}, "not valid statistics of observations"),
        ({"std/raw": None, "std/weight": np.zeros((2, 1)), "std/bias": np.zeros(1)}, "do not fit together"),
        ({"std/raw": None, "chol/raw": np.zeros(2)}, "do not fit together"),
    ],
)
def test_weights_that_are_no_policy_are_refused(tmp_path, change, words):
    arrays = {name: array for name, array in (WEIGHTS | NORMALISER | change).items() if array is not None}
    write_checkpoint(tmp_path, epoch=1, parts={"policy": arrays}, meta={"observation_clip": None})
    with pytest.raises(CheckpointError, match=words):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    "meta", [{}, {"observation_clip": "1"}, {"observation_clip": -1.0}, {"observation_clip": True}]
)
def test_a_clip_that_is_no_number_is_refused(tmp_path, meta):
    write_checkpoint(tmp_path, epoch=1, parts={"policy": WEIGHTS | NORMALISER}, meta=meta)
    with pytest.raises(CheckpointError, match="observation_clip"):
        load_policy(tmp_path)


def test_folders_of_other_names_are_no_checkpoints(tmp_path):
    write(tmp_path, 1)
    for name in ("99999999x", "9", "0000000٣"):
        (tmp_path / "checkpoints" / name).mkdir()
    assert [folder.name for folder in checkpoint_folders(tmp_path)] == ["00000001"]


def test_leftovers_of_a_kill_while_writing_are_no_checkpoint(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "checkpoints" / "tmp-00000002").mkdir()
    assert newest_checkpoint(tmp_path).name == "00000001"
    write(tmp_path, 2)
    assert newest_checkpoint(tmp_path).name == "00000002"


def test_policy_normalises_then_acts(tmp_path):
    write(tmp_path, 1, clip=1.0)
    policy = load_policy(tmp_path)
    x = np.array([2.0, 100.0])  # normalised (0.5, 24.5), clipped to (0.5, 1)
    assert policy(x) == pytest.approx([3 * np.tanh(0.75) + 0.25], rel=1e-6)
    assert policy(np.stack([x, x])).shape == (2, 1)
    samples = policy(np.tile(x, (20_000, 1)), np.random.default_rng(0))
    assert samples.mean() == pytest.approx(float(policy(x)[0]), abs=0.03)
    assert samples.std() == pytest.approx(1.0, abs=0.03)
    with pytest.raises(ValueError, match="observations of size 2"):
        policy(np.zeros(3))


def test_acting_needs_no_jax(tmp_path):
    write(tmp_path, 1)
    code = (
        "import sys; from trpl.policies import load_policy; import numpy as np;"
        f"load_policy({str(tmp_path)!r})(np.zeros(2)); assert 'jax' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
