import gzip
import json

import numpy as np
import pytest
from synthetic_runs import run_config, write_run, write_runs

from trpl.errors import RecordError
from trpl.reports.reading import find_runs, read_run, read_runs
from trpl.runs import records


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 3, num_epochs=30))


def test_columns_are_those_of_the_file(tmp_path, folder):
    run = read_run(folder)
    ppo = read_run(write_run(tmp_path / "ppo", run_config("ppo", "Hopper-v4", 3, num_epochs=3)))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert (run.method, run.env_id, run.seed, run.steps, run.finished) == ("kl", "Hopper-v4", 3, 30 * 2048, True)
    np.testing.assert_array_equal(run.metrics.values["kl"], [row["kl"] for row in rows])
    np.testing.assert_allclose(
        run.evaluations.values["return"], [np.mean(row["returns"]) for row in evaluated], rtol=1e-14
    )
    assert np.isnan(ppo.metrics.values["before_mean"]).all()
    assert run.timings.values["seconds"][-1] == pytest.approx(30 * 2048 / 2150)


def test_gzipped_records_read_the_same(tmp_path, folder):
    zipped = write_run(tmp_path / "zipped", run_config("kl", "Hopper-v4", 3, num_epochs=30), zipped=True)
    assert not (zipped / "metrics.jsonl").exists()
    for name in ("metrics", "evaluations", "timings"):
        plain, packed = getattr(read_run(folder), name), getattr(read_run(zipped), name)
        for key, column in plain.values.items():
            np.testing.assert_array_equal(column, packed.values[key])


def test_half_written_last_line_is_dropped_with_a_note(folder):
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text()[:-40])
    run = read_run(folder)
    assert len(run.metrics.epoch) == 29
    assert run.notes == (f"{file}, line 30: half-written last line, left out",)
    assert not run.finished


def test_missing_keys_are_nan(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    del rows[3]["kl"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kl = read_run(folder).metrics.values["kl"]
    assert np.flatnonzero(np.isnan(kl)).tolist() == [3]


def test_last_line_without_newline_counts(folder):
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text().rstrip("\n"))
    run = read_run(folder)
    assert len(run.metrics.epoch) == 30
    assert not run.notes


@pytest.mark.parametrize(
    "damage", ['{"epoch": 7, "ste', "", "[1, 2]", '{"epoch": 7}, {"epoch": 8}', '{"epoch": 7, "steps": }']
)
def test_damage_elsewhere_names_file_and_line(folder, damage):
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines()
    lines[6] = damage
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 7: not a JSON record"):
        read_run(folder)


def test_record_split_over_two_lines_is_damage(folder):
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines()
    lines[4] = lines[4].replace(', "kl":', '\n"kl":', 1)
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match="line 5"):
        read_run(folder)


def test_damaged_last_line_with_newline_is_refused(folder):
    file = folder / "evaluations.jsonl"
    file.write_text(file.read_text()[:-9] + "\n")
    with pytest.raises(RecordError, match=r"evaluations\.jsonl, line 30"):
        read_run(folder)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("metrics.jsonl", {"epoch": 30, "steps": 1}, "line 31: epoch 30 after epoch 30"),
        ("metrics.jsonl", {"epoch": 31}, "line 31: no steps"),
        (
            "metrics.jsonl",
            {"epoch": 31, "steps": 1, "kl": "1.0"},
            "line 31: kl should be a number or null, found '1.0'",
        ),
        ("evaluations.jsonl", {"epoch": 31, "steps": 1, "returns": []}, "line 31: returns should be a list of numbers"),
    ],
)
def test_wrong_records_name_file_and_line(folder, name, row, message):
    with (folder / name).open("a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(RecordError, match=rf"{name}, {message}"):
        read_run(folder)


def test_cut_gzip_file_is_refused(tmp_path):
    folder = write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, num_epochs=30), zipped=True)
    file = folder / "metrics.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(RecordError, match=r"metrics\.jsonl\.gz: damaged gzip"):
        read_run(folder)
    file.write_bytes(gzip.compress(b"x")[:5] + b"nonsense")
    with pytest.raises(RecordError, match="damaged gzip"):
        read_run(folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"config": {"method": "kl"}}'])
def test_wrong_config_names_the_file(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(RecordError, match=r"config\.json"):
        read_run(folder)


def test_folders_are_searched_and_counted_once(tmp_path):
    root = write_runs(tmp_path / "runs", num_epochs=3)
    assert len(find_runs([root])) == 6
    assert len(find_runs([root, root / "HalfCheetah-v4" / "kl"])) == 6
    with pytest.raises(RecordError, match="not a folder"):
        find_runs([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match="no run folder"):
        find_runs([tmp_path / "empty"])


def test_run_without_an_epoch_is_left_out_with_a_note(tmp_path, folder):
    fresh = write_run(tmp_path / "fresh", run_config("kl", "Hopper-v4", 4, num_epochs=30))
    (fresh / "metrics.jsonl").write_text("")
    runs, notes = read_runs([tmp_path])
    assert [run.path for run in runs] == [folder]
    assert notes == [f"{fresh}: no epoch recorded yet, left out"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"[" * 100_000, "not JSON"),
        (
            "config.json",
            b'{"config": {"method": "kl", "env_id": "a", "seed": true, "total_steps": 1}}',
            "seed should be",
        ),
        ("config.json", b'{"config": {"method": "kl", "env_id": "a", "seed": 0, "total_steps": 0}}', "out of range"),
        (
            "config.json",
            b'{"config": {"method": "kl", "env_id": "a", "seed": 0, "total_steps": 1}, "versions": []}',
            "versions should be of type dict",
        ),
        (
            "config.json",
            b'{"config": {"method": "kl", "env_id": "a", "seed": 0, "total_steps": 1}, "stretches": [{}]}',
            "each of the stretches should be a record of after_epoch, total_steps, versions",
        ),
        ("metrics.jsonl", b"\xef\xbb\xbf" + b'{"epoch": 1, "steps": 1}\n', "line 1: not a JSON record"),
        ("metrics.jsonl", b'{"epoch": ' + b"[" * 100_000 + b"\n", "line 1: not a JSON record"),
        ("metrics.jsonl", b'{"epoch": 1, "steps": 0}\n', "line 1: steps 0 is out of range"),
        ("metrics.jsonl", b'{"epoch": 1e300, "steps": 1}\n', "epoch 1e[+]300 is out of range"),
        ("metrics.jsonl", b'{"epoch": 1, "steps": 9}\n{"epoch": 2, "steps": 9}\n', "line 2: steps 9 after steps 9"),
        ("metrics.jsonl", b'{"epoch": 1, "steps": ' + b"9" * 400 + b"}\n", "too large"),
        ("evaluations.jsonl", b'{"epoch": 1, "steps": 1, "returns": [' + b"9" * 400 + b"]}\n", "too large"),
    ],
)
def test_files_from_elsewhere_are_refused_in_words(tmp_path, name, content, words):
    folder = write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, 30))
    (folder / name).write_bytes(content)
    with pytest.raises(RecordError, match=words):
        read_run(folder)


def test_a_packed_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LARGEST_FILE", 1 << 20)
    folder = write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, 30), zipped=True)
    (folder / "metrics.jsonl.gz").write_bytes(gzip.compress(bytes(1 << 24)))
    with pytest.raises(RecordError, match="larger than 1 MiB"):
        read_run(folder)
