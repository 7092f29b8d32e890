"""Records of a run: read back, cut back, refused in words where they are damaged; no way out of the run folder."""

import json

import pytest

import tiny
from trpl.errors import ConfigError, RecordError, RunError
from trpl.runs import folder as files
from trpl.runs import records
from trpl.runs.folder import place_of
from trpl.sweeps.plan import planned_runs


def lines(path, *found):
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in found))


WHOLE = b'{"config": {"method": "kl", "env_id": "Hopper-v4", "seed": 0, "total_steps": 4096, %s}}'


def test_a_command_line_that_is_not_utf8_is_recorded(tmp_path, monkeypatch):
    """Python gives bytes that are not UTF-8, as in a folder named in Latin-1, as lone surrogates."""
    tiny.register()
    monkeypatch.setattr("sys.argv", ["trpl", "train", "--out", b"caf\xe9".decode("utf-8", "surrogateescape")])
    files.write_config(tmp_path, tiny.config())
    assert files.read_about(tmp_path)["command"] == "trpl train --out caf?"
    assert files.read_config(tmp_path) == tiny.config()


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", RecordError, "cannot be read"),
        (b"\xff\xfe\x00", RecordError, "cannot be read"),
        (b"[" * 100_000, RecordError, "RecursionError"),
        (b"[]", RecordError, "cannot be read"),
        (b'{"versions": {}}', RecordError, 'no settings under "config"'),
        (b'{"config": 3}', RecordError, 'no settings under "config"'),
        (b'{"config": {"method": ["kl"]}}', RecordError, "method should be of type str"),
        (b'{"config": {"mehtod": "kl"}}', RecordError, "method should be of type str, found 'None'"),
        (WHOLE % b'"mean_bond": 1', ConfigError, r"config\.json: there is no setting 'mean_bond'; did you mean"),
        (WHOLE % b'"plugins": 1, "method": "kk"', ConfigError, "there is no method 'kk'"),
        (WHOLE % b'"ratio_clip": 0.2', ConfigError, "ratio_clip does not apply to method 'kl'"),
        (WHOLE % b'"seed": -1', RecordError, "seed or total_steps out of range"),
        (WHOLE % b'"discount": 2', ConfigError, "discount must be at most 1"),
    ],
)
def test_a_config_that_cannot_be_read_says_why(tmp_path, content, error, words):
    (tmp_path / files.CONFIG).write_bytes(content)
    with pytest.raises(error, match=words):
        files.read_config(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 2**32}, "seed must be at most"),
        ({"total_steps": 10**400}, "total_steps must be at most"),
        ({"learning_rate": 10**400}, "learning_rate must be at most"),
        ({"hidden_sizes": (10**13,)}, "hidden_sizes must be at most"),
        ({"env_timeout": 0.0}, "env_timeout must be above 0"),
        ({"env_timeout": -1.0}, "env_timeout must be above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        tiny.config(**change)


@pytest.mark.parametrize(
    "env_id",
    [
        "../escaped", "/etc/passwd", "a/../b", "a/..", ".", "..", "a//b", "a/b/c", "", "a b", "a\x00b", "~/x",
        "a\\..\\b", "x" * 201,
    ],
)  # fmt: skip
def test_no_name_of_a_task_leads_out_of_the_run_folder(env_id, tmp_path):
    with pytest.raises(ConfigError, match="env_id"):
        tiny.config(env_id=env_id)
    (tmp_path / "plan.toml").write_text(f'methods = ["kl"]\ntasks = [{json.dumps(env_id)}]\n')
    with pytest.raises(ConfigError, match=r"env_id|not TOML"):
        planned_runs(str(tmp_path / "plan.toml"))


@pytest.mark.parametrize("env_id", ["Hopper-v4", "trpl/Reacher5Sparse-v0", "my.module:space/Name-v0", "module:Name-v0"])
def test_names_of_tasks_are_folders_below_runs(env_id):
    folder = place_of(tiny.config(env_id=env_id))
    assert not folder.is_absolute()
    assert ".." not in folder.parts


@pytest.mark.parametrize("variant", ["..", "a/b", "/a", "", "seed-1", ".hidden", "a\\u0000b", "x" * 101])
def test_no_variant_leads_out_of_the_sweeps_folder(variant, tmp_path):
    text = f'methods = ["kl"]\ntasks = ["Hopper-v4"]\n[variant."{variant}"]\ndiscount = 0.9\n'
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(ConfigError, match="cannot name a folder"):
        planned_runs(str(tmp_path / "plan.toml"))


@pytest.mark.parametrize("seeds", ["1000000000000", "10001", "[-1]", "0", "1.5", '"3"'])
def test_more_seeds_than_anyone_wants_are_refused(seeds, tmp_path):
    (tmp_path / "plan.toml").write_text(f'methods = ["kl"]\ntasks = ["Hopper-v4"]\nseeds = {seeds}\n')
    with pytest.raises(ConfigError, match="seeds must be"):
        planned_runs(str(tmp_path / "plan.toml"))


def test_a_sweep_file_that_is_no_file(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 10_000)
    for name, words in (("folder", "cannot be read: Is a directory"), ("bytes", "not TOML"), ("deep", "not TOML")):
        with pytest.raises(ConfigError, match=words):
            planned_runs(str(tmp_path / f"{name}.toml"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2: not a JSON record"),
        (b"\x00\x00", "line 2: not a JSON record"),
        (b"[" * 100_000, "line 2: not a JSON record"),
        (b"[1]", "line 2: not a JSON record"),
        (b'{"epoch": "2"}', "line 2: not a record of an epoch"),
        (b'{"epoch": 2, "steps": 64, "kl": "x"}', "line 2: kl should be finite numbers"),
        (b'{"epoch": 2, "steps": 64, "kl": NaN}', "line 2: kl should be finite numbers"),
        (b'{"epoch": 2, "steps": 64, "returns": [null]}', "line 2: returns should be finite numbers"),
        (b'{"epoch": 2, "steps": 64, "returns": []}', "line 2: returns should be finite numbers"),
        (b'{"epoch": 2}', "line 2: no steps"),
        (b'{"epoch": 2, "steps": 64}', "line 2: no returns"),
    ],
)
def test_damaged_lines_are_named(tmp_path, line, words):
    path = tmp_path / records.EVALUATIONS
    lines(path, {"epoch": 1, "steps": 32, "returns": [1.0]})
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(RecordError, match=words):
        records.read(tmp_path, records.EVALUATIONS)


def test_settings_of_other_methods_are_none_in_records_of_earlier_versions(tmp_path):
    (tmp_path / files.CONFIG).write_bytes(WHOLE % b'"ratio_clip": null, "cg_steps": null, "hidden_sizes": [8]')
    config = files.read_config(tmp_path)
    assert config.hidden_sizes == (8,)
    assert "cg_steps" not in config.to_json()


def test_cutting_back_keeps_bytes_and_wants_every_epoch(tmp_path):
    path = tmp_path / records.METRICS
    found = [{"epoch": epoch, "steps": 32 * epoch} for epoch in (1, 2, 3)]
    lines(path, *found)
    whole = path.read_bytes()
    records.cut_back(path, epochs=range(1, 3))
    assert path.read_bytes() == whole[: whole.index(b'{"epoch": 3')]
    path.write_bytes(whole + b"\x00\x00\x00")  # as a power cut leaves it; after the checkpoint, so nobody's loss
    records.cut_back(path, epochs=range(1, 4))
    assert path.read_bytes() == whole
    with pytest.raises(RunError, match=r"line 4: the record of epoch 4 is missing"):
        records.cut_back(path, epochs=range(1, 5))
    lines(path, found[0], found[2])
    with pytest.raises(RunError, match=r"line 2: the record of epoch 2 is missing"):
        records.cut_back(path, epochs=range(1, 4))
    records.cut_back(tmp_path / "absent.jsonl", epochs=())


def test_records_reach_the_disk_before_their_checkpoint(tmp_path, monkeypatch):
    """After a power cut a checkpoint must not be there without its lines."""
    import os

    from trpl.runs import checkpoints
    from trpl.runs.trainer import Trainer

    order = []
    sync = os.fsync

    def fsync(descriptor):
        order.append(os.readlink(f"/proc/self/fd/{descriptor}").rsplit("/", 1)[-1])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(checkpoints, "save", lambda *_, **__: order.append("checkpoint"))
    with Trainer(tiny.config(eval_every=1), tmp_path) as trainer:
        trainer.step([])
        trainer.save()
    assert order[-4:] == [records.METRICS, records.EVALUATIONS, records.TIMINGS, "checkpoint"]
