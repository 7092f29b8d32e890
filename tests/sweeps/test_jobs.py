"""Jobs, their standing, the table, and compact records, without a process being started."""

import gzip
import io
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from trpl import cli
from trpl.errors import ConfigError, RunError
from trpl.presets import preset
from trpl.runs import folder as files
from trpl.runs import records
from trpl.sweeps.compact import compact
from trpl.sweeps.job_progress import JobProgress, JsonLinesTail, seconds_left
from trpl.sweeps.jobs import Job, check_folder, command, environment, log_tail
from trpl.sweeps.plan import PlannedRun, planned_runs
from trpl.sweeps.sweep import NUM_TRIES, Sweep, summary, sweep
from trpl.sweeps.table import SweepTable


def job_in(folder: Path, **settings) -> Job:
    config = preset("kl", "Hopper-v4", **{"total_steps": 4 * 2048, **settings})
    return Job(config, folder / config.env_id / config.method / f"seed-{config.seed}", folder / ".compiled")


def write_run(job: Job, num_epochs: int, *, finished: bool = False) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    files.write_config(job.folder, job.config)
    for epoch in range(1, num_epochs + 1):
        steps = epoch * job.config.rollout_size
        records.append(job.folder / records.METRICS, {"epoch": epoch, "steps": steps})
        records.append(
            job.folder / records.EVALUATIONS, {"epoch": epoch, "steps": steps, "returns": [epoch, epoch + 2]}
        )
        records.append(job.folder / records.TIMINGS, {"epoch": epoch, "steps": steps, "seconds": 10.0 * epoch})
    if finished:
        (job.folder / "checkpoints" / f"{num_epochs:08d}").mkdir(parents=True)


@pytest.mark.parametrize("name", ["alpha", "reacher", "mujoco"])
def test_a_jobs_command_says_its_configuration(name, monkeypatch, tmp_path):
    """Every planned run, through the words handed to its worker, arrives at training unchanged."""
    arrived = []

    class Result:
        finished, signal = False, None
        epochs, folder = 0, tmp_path

    def train(config, out, *, progress, tracker):
        arrived.append((config, Path(out)))
        return Result

    monkeypatch.setattr("trpl.runs.run.train", train)
    runs = planned_runs(name, seeds=(0, 7), overrides={"total_steps": 12_345_678, "hidden_sizes": (8, 4)})
    for run in runs:
        job = Job(run.config, tmp_path / run.folder, tmp_path)
        assert cli.main(command(job)) == 0
    assert arrived == [(run.config, tmp_path / run.folder) for run in runs]
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_a_half_done_run_goes_on_under_other_versions_only_when_asked(tmp_path):
    job = job_in(tmp_path)
    write_run(job, 1)
    assert command(job) == ["resume", str(job.folder)]
    asked = replace(job, other_versions=True)
    assert command(asked) == ["resume", str(job.folder), "--other-versions"]
    assert Job.from_json(json.loads(json.dumps(asked.to_json()))) == asked


def test_a_worker_has_one_thread_and_keeps_other_flags(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    found = environment(tmp_path)
    assert found["OMP_NUM_THREADS"] == found["NPROC"] == "1"
    assert found["XLA_FLAGS"] == "--xla_dump_to=/nowhere --xla_cpu_multi_thread_eigen=false"


def test_compiled_code_is_kept_beside_the_runs_unless_the_environment_names_a_place(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    assert environment(tmp_path)["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    assert Path(environment(tmp_path)["JAX_COMPILATION_CACHE_DIR"]).parent == tmp_path


def test_another_configuration_in_the_folder_is_refused(tmp_path):
    job = job_in(tmp_path)
    check_folder(job)
    write_run(job, 1)
    check_folder(job)
    check_folder(replace(job, config=job.config.replace(source="elsewhere", checkpoint_every=7, env_timeout=None)))
    with pytest.raises(ConfigError, match=r"discount 0\.99, this sweep needs 0\.5"):
        check_folder(replace(job, config=job.config.replace(discount=0.5)))


def test_a_growing_file_is_read_once_and_again_when_cut(tmp_path):
    path = tmp_path / "lines.jsonl"
    growing = JsonLinesTail(path)
    assert growing.new() == ([], False)
    path.write_text('{"epoch": 1}\n{"epoch": 2}\n{"epoch"')
    assert growing.new() == ([{"epoch": 1}, {"epoch": 2}], False)
    with open(path, "a") as file:
        file.write(": 3}\n")
    assert growing.new() == ([{"epoch": 3}], False)
    path.write_text('{"epoch": 9}\n')
    assert growing.new() == ([{"epoch": 9}], True)
    with open(path, "a") as file:
        file.write('{"epoch": 10\n{"epoch": 11}\n')  # a damaged line is for the run itself to complain about
    assert growing.new() == ([{"epoch": 11}], False)


def test_time_left_is_at_the_pace_of_each_kind(tmp_path):
    slow, fast, unknown = job_in(tmp_path), job_in(tmp_path, seed=1), job_in(tmp_path / "other", discount=0.5)
    unknown = replace(unknown, config=preset("ppo", "Hopper-v4", total_steps=4 * 2048))
    write_run(slow, 2)  # 10 s per epoch, two to go
    write_run(fast, 4)
    standings = [JobProgress(job) for job in (slow, fast, unknown)]
    for standing in standings:
        standing.update()
    assert [standing.epochs for standing in standings] == [2, 4, 0]
    assert [standing.best for standing in standings] == [3.0, 5.0, None]
    assert seconds_left(standings, among=standings, num_workers=2) == pytest.approx((2 * 10 + 0 + 4 * 10) / 2)
    assert seconds_left(standings[2:], among=standings[2:], num_workers=2) is None


class FakePool:
    """Ends jobs as told: a list of reasons per seed, "" for done."""

    num_workers = 1

    def __init__(self, fates: dict[int, list[str]]):
        self.fates, self.at_work, self.started = fates, [], []

    def has_room(self):
        return not self.at_work

    def start(self, job):
        self.at_work.append(job)
        self.started.append(job.config.seed)

    def running(self):
        return set(self.at_work)

    def ended(self, *, timeout):
        ended = []
        for job in self.at_work:
            reason = self.fates[job.config.seed].pop(0)
            if not reason:
                write_run(job, 4, finished=True)
            ended.append((job, reason))
        self.at_work = []
        return ended

    def stop(self): ...
    def kill(self): ...


def test_failures_are_tried_again_and_reported_while_the_others_go_on(tmp_path):
    jobs = [job_in(tmp_path, seed=seed) for seed in range(4)]
    write_run(jobs[3], 4, finished=True)
    for job in jobs[:3]:
        job.folder.mkdir(parents=True)
        job.log.write_text("".join(f"line {n} of {job.name}\n" for n in range(50)))
    pool = FakePool({0: ["crashed", "crashed again"], 1: ["lost its node", ""], 2: [""]})
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with SweepTable(jobs, console=console) as table:
        result = Sweep(jobs, pool=pool, table=table, out=tmp_path, results=tmp_path / "results").run()
    assert pool.started == [0, 0, 1, 1, 2]
    assert pool.started.count(0) == NUM_TRIES
    assert {job.config.seed for job in result.done} == {1, 2, 3}
    assert [(failure.job.config.seed, failure.reason) for failure in result.failed] == [(0, "crashed again")]
    text = summary(result)
    assert "3 runs done, 1 failed" in text
    assert f"the end of {jobs[0].log}" in text
    assert "line 49 of kl Hopper-v4 seed 0" in text
    assert "line 20 of" not in text
    assert (tmp_path / "results/Hopper-v4/kl/seed-2/metrics.jsonl.gz").exists()
    shown = console.file.getvalue()
    for word in ("Hopper-v4", "best return", "3 done, 0 running, 0 waiting, 1 failed; best 5"):
        assert word in shown


def test_plain_lines_without_a_terminal(tmp_path):
    jobs = [job_in(tmp_path)]
    console = Console(file=io.StringIO(), force_terminal=False)
    with SweepTable(jobs, console=console) as table:
        Sweep(jobs, pool=FakePool({0: [""]}), table=table, out=tmp_path, results=None).run()
    lines = console.file.getvalue().splitlines()
    assert lines == ["done    kl Hopper-v4 seed 0", "1 done, 0 running, 0 waiting, 0 failed; best 5.00; left 0:00:00"]


def test_a_sweep_keeps_the_signal_that_stopped_it(tmp_path):
    class Interrupting(FakePool):
        def ended(self, *, timeout):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().ended(timeout=timeout)

        def stop(self):
            assert not self.at_work

    jobs = [job_in(tmp_path, seed=seed) for seed in range(3)]
    with SweepTable(jobs, console=Console(file=io.StringIO())) as table:
        pool = Interrupting({0: [""], 1: [""], 2: [""]})
        result = Sweep(jobs, pool=pool, table=table, out=tmp_path, results=None).run()
    assert result.stopped
    assert result.signal == signal.SIGTERM


def test_compact_records_are_the_same_bytes_without_checkpoints(tmp_path, monkeypatch):
    job = job_in(tmp_path / "runs")
    monkeypatch.setattr("sys.argv", ["/opt/bin/trpl", "train", "kl", "Hopper-v4", "--out", str(job.folder), "--seed=0"])
    write_run(job, 3)
    with pytest.raises(RunError, match="has done 3 of 4 epochs"):
        compact(job.folder, tmp_path / "results")
    assert not (tmp_path / "results").exists()
    records.append(job.folder / records.METRICS, {"epoch": 4, "steps": 8192})
    (job.folder / "checkpoints").mkdir()
    place = compact(job.folder, tmp_path / "results")
    assert place == tmp_path / "results/Hopper-v4/kl/seed-0"
    names = ["config.json", "evaluations.jsonl.gz", "metrics.jsonl.gz", "timings.jsonl.gz"]
    assert sorted(path.name for path in place.iterdir()) == names
    assert gzip.decompress((place / "metrics.jsonl.gz").read_bytes()) == (job.folder / "metrics.jsonl").read_bytes()
    command = json.loads((place / "config.json").read_text())["command"]  # nothing of this machine in a record
    assert command == "trpl train kl Hopper-v4 --out runs/Hopper-v4/kl/seed-0 --seed=0"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in place.iterdir()}
    compact(job.folder, tmp_path / "results")  # nothing new, nothing touched
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in place.iterdir()} == before
    records.append(job.folder / records.TIMINGS, {"epoch": 4, "steps": 8192, "seconds": 1.0})
    compact(job.folder, tmp_path / "results")
    assert gzip.decompress((place / "timings.jsonl.gz").read_bytes()) == (job.folder / "timings.jsonl").read_bytes()
    assert [path.name for path in place.parent.iterdir()] == ["seed-0"]  # nothing left lying about


def test_the_end_of_a_log(tmp_path):
    assert log_tail(tmp_path / "none") == "(it wrote no log)"
    (tmp_path / "log").write_text("\n".join(map(str, range(10_000))))
    assert log_tail(tmp_path / "log", num_lines=2) == "9998\n9999"


def test_runs_whose_records_are_kept_are_not_done_again(tmp_path, monkeypatch):
    """A clone has the records of finished runs and not their folders: a sweep does what is missing."""
    jobs = [job_in(tmp_path / "runs", seed=seed) for seed in range(3)]
    for job in jobs[:2]:
        write_run(job, 4, finished=True)
        compact(job.folder, tmp_path / "results")
    write_run(jobs[2], 4, finished=True)
    compact(jobs[2].folder, tmp_path / "results")  # the record of another setting
    shutil.rmtree(tmp_path / "runs")
    pool, shown = FakePool({2: [""]}), io.StringIO()
    monkeypatch.setattr("trpl.sweeps.sweep.make_pool", lambda **_: pool)
    planned = [PlannedRun(job.config, job.folder.relative_to(tmp_path / "runs")) for job in jobs]
    planned[2] = planned[2]._replace(config=replace(jobs[2].config, mean_bound=0.05))
    result = sweep(planned, out=tmp_path / "runs", results=tmp_path / "results", console=Console(file=shown))
    assert pool.started == [2]
    assert len(result.done) == 3
    assert "2 of 3 runs have their records in" in shown.getvalue()
    assert not (tmp_path / "runs/Hopper-v4/kl/seed-0").exists()
