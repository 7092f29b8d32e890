"""Checkpoints: whole or not at all, and refused when a byte is off."""

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
    with pytest.raises(CheckpointError, match="there is none"):
        newest_checkpoint(tmp_path / "elsewhere")


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
