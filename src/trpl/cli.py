"""The command line: argv in, one call out.

A command is a function from its arguments to an exit code, and a line in `COMMANDS`. Commands import what they need
themselves, so that `trpl --help` is fast.
"""

import argparse
import functools
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trpl.errors import UsageError
from trpl.messages import command_line, decimals, describe, nearest
from trpl.options import Parser, load_plugins, number, positive_int


class Command(NamedTuple):
    summary: str
    run: Callable[[list[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; print errors as one line that says what to do, with exit code 2 for usage errors, else 1."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # × and ε in a locale without them
    note = functools.cache(lambda text: print(f"trpl: note: {text}", file=sys.stderr))  # each once
    warnings.showwarning = lambda message, *_args, **_kwargs: note(plain(str(message)))
    code = 0
    try:
        code = dispatch(list(sys.argv[1:] if argv is None else argv))
        print(end="", flush=True)
        return code
    except BrokenPipeError:  # the reader has closed the pipe, as in `trpl presets | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code
    except KeyboardInterrupt:
        return fail("interrupted", code=130)
    except Exception as error:
        if os.environ.get("TRPL_TRACEBACK"):
            raise
        return fail(describe(error), code=2 if isinstance(error, ValueError) else 1)


def dispatch(argv: list[str]) -> int:
    """Run the command that `argv` begins with, or show the help or the version; return the exit code."""
    if argv[:1] == ["help"] and argv[1:]:
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if argv[0] in ("--version", "version"):
        from importlib.metadata import version

        print(version("trpl"))
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        raise UsageError(f"there is no command {name!r}{hint}")
    return COMMANDS[name].run(load_plugins(rest))


def plain(text: str) -> str:
    """Remove the colours and the word WARN from a warning of Gymnasium."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).removeprefix("WARN: ")


def overview() -> str:
    """Format the help of the whole program."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "trpl: exact trust regions for policies",
            "",
            "usage: trpl COMMAND ...        trpl COMMAND --help",
            "",
            *lines,
            "",
            "every command takes --plugin FILE.py or --plugin MODULE, which registers methods of your own",
            "start with: trpl train kl HalfCheetah-v4 --steps 200000",
        ]
    )


def fail(message: str, *, code: int) -> int:
    print(f"trpl: {message}", file=sys.stderr)
    return code


def exit_code(signal: int | None) -> int:
    """Return the exit code for a signal, as shells do: 130 for Ctrl-C, 143 for SIGTERM."""
    return 0 if signal is None else 128 + signal


def train(argv: list[str]) -> int:
    from trpl.methods import names

    parser = Parser("train", "Train a policy with the paper's numbers; any of them can be set by its name.")
    parser.add_argument("method", help=", ".join(names()))
    parser.add_argument("env_id", metavar="env", help="a Gymnasium environment: Hopper-v4, CartPole-v1, module:Name-v0")
    parser.add_argument("--out", help="run folder (runs/ENV/METHOD/seed-N)")
    parser.add_run_options()
    parser.add_argument("--preset", help="TOML file with settings, as `trpl tune` writes it; options take precedence")
    parser.add_settings(skip=("method", "env_id"), as_released=True)
    args = parser.parse(argv)
    overrides = parser.settings(args)
    from trpl.presets import preset
    from trpl.sweeps.plan import preset_overrides

    if args.preset:
        overrides = preset_overrides(args.preset, args.method, args.env_id) | overrides
    config = preset(args.method, args.env_id, **overrides)
    from trpl.runs.compiling import prepare_jax

    prepare_jax()
    from trpl.runs.run import train as train_run

    result = train_run(config, args.out, progress=not args.quiet, tracker=tracking(args.track))
    return conclude(result, quiet=args.quiet)


def resume(argv: list[str]) -> int:
    parser = Parser("resume", "Continue a run that was stopped or killed; the result is bit-identical.")
    parser.add_argument("run", help="run folder")
    parser.add_argument("--steps", type=number(int, optional=False), metavar="N", help="new total number of steps")
    parser.add_other_versions()
    parser.add_run_options()
    parser.add_argument(
        "--env-timeout", type=number(float, optional=True), metavar="N", default=argparse.SUPPRESS,
        help="seconds for a step of the environment, or none, instead of the run's",
    )  # fmt: skip
    args = parser.parse(argv)
    changes = {"env_timeout": args.env_timeout} if "env_timeout" in args else {}
    from trpl.runs.compiling import prepare_jax

    prepare_jax()
    from trpl.runs.run import resume as resume_run

    result = resume_run(
        args.run,
        progress=not args.quiet,
        tracker=tracking(args.track),
        total_steps=args.steps,
        other_versions=args.other_versions,
        **changes,
    )
    return conclude(result, quiet=args.quiet)


def tracking(kind: str | None) -> Any:
    """Return the tracker of `--track`."""
    if kind is None:
        return None
    from trpl.integrations.tracking import check_installed, tracker

    check_installed(kind)
    return functools.partial(tracker, kind)


def conclude(result: Any, *, quiet: bool) -> int:
    """Report how a run ended and what to do next; draw its learning curve."""
    if not result.finished:
        print(f"stopped after epoch {result.epochs}; continue with: {command_line('resume', result.folder)}")
        return exit_code(result.signal)
    from trpl.reports.curve import learning_curve
    from trpl.runs.folder import read_config

    curve = learning_curve(result.folder)
    if not quiet:
        print(f"finished {result.epochs} epoch{'' if result.epochs == 1 else 's'}{mean_return(result)}")
        print(f"run folder      {result.folder}\nlearning curve  {curve}\ndigest          {result.digest}")
        print(f"evaluate        {command_line('evaluate', result.folder)}")
        print(f"watch           {command_line('play', result.folder, '--video', 'policy.mp4')}")
        config = read_config(result.folder)
        longer = 2 * max(config.total_steps, config.rollout_size)
        print(f"train longer    {command_line('resume', result.folder, '--steps', longer)}")
    return 0


def mean_return(result: Any) -> str:
    """Describe the return of a run that ended: over which evaluations it is the mean."""
    if (final := result.final_return) is None:
        return ""
    from trpl.runs import records
    from trpl.runs.folder import EVALUATIONS
    from trpl.settings.config import WINDOW

    count = min(len(records.read(result.folder, EVALUATIONS)), WINDOW)
    over = "one evaluation" if count == 1 else f"mean of the last {count} evaluations"
    return f", return {final:.{decimals(final)}f} ({over})"


RUN_OR_CHECKPOINT = "run folder (its newest checkpoint), checkpoint folder, or RUN/best"


def evaluate(argv: list[str]) -> int:
    parser = Parser("evaluate", "Noise-free episodes of a trained policy.")
    parser.add_argument("run", help=RUN_OR_CHECKPOINT)
    parser.add_argument("--episodes", type=positive_int, help="how many (as in training)")
    parser.add_argument("--seed", type=number(int, optional=False), help="for other initial states than in training")
    args = parser.parse(argv)
    import numpy as np

    from trpl.runs.evaluate import evaluate_run

    found = evaluate_run(args.run, num_episodes=args.episodes, seed=args.seed)
    for episode, (total, length) in enumerate(zip(found.returns, found.lengths, strict=True), start=1):
        print(f"episode {episode}  return {total:.2f}  length {length}")
    spread = f", standard deviation {np.std(found.returns, ddof=1):.2f}" if len(found.returns) > 1 else ""
    print(f"mean return {np.mean(found.returns):.2f}{spread}")
    return 0


def play(argv: list[str]) -> int:
    parser = Parser("play", "Show a trained policy: as a video, or live in a window.")
    parser.add_argument("run", help=RUN_OR_CHECKPOINT)
    parser.add_argument("--video", help="file to write, .mp4 or .gif")
    parser.add_argument("--live", action="store_true", help="in a window instead")
    parser.add_argument("--camera", help="a camera of the simulator's model (one that follows the robot)")
    parser.add_argument("--size", type=positive_int, nargs=2, metavar=("WIDTH", "HEIGHT"), help="of the picture")
    parser.add_argument("--episodes", type=positive_int, default=1, help="how many (1)")
    parser.add_argument("--max-steps", type=positive_int, default=1000, help="longest episode shown (1000)")
    parser.add_argument("--seed", type=number(int, optional=False), default=0, help="seed of the initial states (0)")
    args = parser.parse(argv)
    if args.live == bool(args.video):
        raise UsageError("give --video FILE to write a video, or --live to see it in a window")
    from trpl.policies import load_policy
    from trpl.rollouts import video
    from trpl.runs.environments import task_of
    from trpl.runs.folder import locate, read_config

    run, checkpoint = locate(args.run)
    config = read_config(run)
    policy, task = load_policy(checkpoint), task_of(config)
    how = {name: getattr(args, name) for name in ("episodes", "seed", "max_steps", "camera")}
    how["size"] = tuple(args.size) if args.size else None
    if args.live:
        returns, shown = video.show(policy, task, **how), config.env_id
    else:
        recording = video.record(policy, task, args.video, **how)
        returns, shown = recording.returns, f"{recording.path}: {recording.num_frames} frames"
    print(f"{shown}, return {', '.join(f'{total:.2f}' for total in returns)}")
    return 0


def export(argv: list[str]) -> int:
    parser = Parser("export", "Write a run's policy, its observation normaliser included, as one file for the robot.")
    parser.add_argument("run", help=RUN_OR_CHECKPOINT)
    parser.add_argument("file", help="file to write: .onnx, .pt (with a script beside it) or .npz")
    parser.add_argument("--format", choices=("onnx", "torch", "npz"), help="if the file's ending does not tell")
    args = parser.parse(argv)
    from trpl.integrations.export import NUM_CHECKED, TOLERANCE
    from trpl.integrations.export import export as export_run

    path = export_run(args.run, args.file, format=args.format)
    print(f"{path}: acts as the run's policy to {TOLERANCE:g} on {NUM_CHECKED} observations")
    return 0


def presets(argv: list[str]) -> int:
    parser = Parser("presets", "The paper's hyperparameters: all, or one method's on one task.")
    parser.add_argument("method", nargs="?", help="for example kl")
    parser.add_argument("env_id", nargs="?", metavar="env", default="HalfCheetah-v4", help="for example Humanoid-v4")
    args = parser.parse(argv)
    from trpl.presets.listing import all_presets, one_preset

    print(one_preset(args.method, args.env_id) if args.method else all_presets())
    return 0


def sweep(argv: list[str]) -> int:
    from trpl.presets import named_sweeps

    parser = Parser("sweep", "Methods × tasks × seeds, each run done once; restarted, it does only what is missing.")
    known = ", ".join(named_sweeps())
    parser.add_argument("preset", help=f"{known}, or a TOML file with methods, tasks, seeds and settings")
    parser.add_argument("--seeds", help="a number (10), a list (3,5) or a range (10:20); the file's, or 1")
    parser.add_argument("--out", default="runs", help="folder of the run folders (runs); with --ray on a shared disk")
    parser.add_argument("--workers", type=positive_int, help="runs at a time (as many as cores, or as Ray has CPUs)")
    parser.add_argument("--ray", metavar="ADDRESS", help="use the Ray cluster at ADDRESS, or `auto`")
    parser.add_argument("--results", help="folder for compact records of finished runs")
    parser.add_other_versions()
    parser.add_settings(skip=("method", "env_id", "seed"), as_released=True)
    args = parser.parse(argv)
    from trpl.sweeps.plan import parse_seeds, planned_runs
    from trpl.sweeps.sweep import summary
    from trpl.sweeps.sweep import sweep as run_sweep

    seeds = None if args.seeds is None else parse_seeds(args.seeds)
    runs = planned_runs(args.preset, seeds=seeds, overrides=parser.settings(args))
    where = {"out": args.out, "workers": args.workers, "ray_address": args.ray, "results": args.results}
    result = run_sweep(runs, **where, other_versions=args.other_versions)
    print(summary(result))
    return exit_code(result.signal) if result.stopped else 1 if result.failed else 0


def tune(argv: list[str]) -> int:
    from trpl.methods import names

    parser = Parser("tune", "Search a method's settings on a task, except those given; restarted, it continues.")
    parser.add_argument("method", help=", ".join(names()))
    parser.add_argument("env_id", metavar="env", help="a Gymnasium environment, as for train")
    parser.add_argument("--trials", type=positive_int, required=True, help="of the study, including earlier sessions")
    parser.add_argument("--seeds", type=positive_int, default=3, help="runs per trial, from --seed up (3)")
    parser.add_argument("--workers", type=positive_int, help="trials at a time (as many as cores)")
    parser.add_argument("--storage", default="", help="postgresql://..., or TRPL_STORAGE in the environment")
    parser.add_argument("--study", default="", help="name in the database (METHOD-ENV)")
    parser.add_argument("--out", default="tuning", help="folder of the trials' runs (tuning)")
    parser.add_argument("--best", help="write the best trial there as a preset (.toml)")
    parser.add_argument("--heartbeat", type=positive_int, default=15, help="seconds between heartbeats (15)")
    parser.add_argument("--as-worker", type=int, help=argparse.SUPPRESS)
    parser.add_settings(skip=("method", "env_id", "source"))
    args = parser.parse(argv)
    from pathlib import Path

    from trpl.tuning.study import Tuning, work

    tuning = Tuning(
        method=args.method,
        env_id=args.env_id,
        num_trials=args.trials,
        num_seeds=args.seeds,
        fixed=parser.settings(args),
        out=Path(args.out),
        study=args.study,
        storage=args.storage,
        heartbeat=args.heartbeat,
    )
    if args.as_worker is not None:
        work(tuning, worker=args.as_worker)
        return 0
    from trpl.tuning.session import summary
    from trpl.tuning.session import tune as run_tune

    result = run_tune(tuning, workers=args.workers, best=args.best)
    print(summary(result))
    if args.best and result.best is not None:
        print(f"train with them  {command_line('train', args.method, args.env_id, '--preset', args.best)}")
    failed = bool(result.failures) or result.best is None  # such as an environment in which every trial breaks down
    return 1 if failed and result.signal is None else exit_code(result.signal)


def report(argv: list[str]) -> int:
    parser = Parser("report", "A page with tables and curves of runs; figures (PNG, SVG) and tables (CSV) beside it.")
    parser.add_argument("runs", nargs="+", help="run folders, or folders of them")
    parser.add_argument("--out", default="report", help="folder for the page, figures and tables (report)")
    parser.add_argument("--title", default="Trust-region runs", help="heading of the page")
    parser.add_by()
    parser.add_argument("--no-figures", action="store_true", help="leave out the PNG and SVG files")
    args = parser.parse(argv)
    from trpl.reports.page import write_report

    print(write_report(args.runs, args.out, title=args.title, by=args.by, figures=not args.no_figures))
    return 0


def figure(argv: list[str]) -> int:
    from trpl.reports.figures import FIGURES, write_figure

    parser = Parser("figure", "A figure of the paper as PNG and SVG, from run folders; interpolation needs none.")
    parser.add_argument("name", metavar="name", choices=FIGURES, help=", ".join(FIGURES))
    parser.add_argument("runs", nargs="*", default=["runs"], help="run folders, or folders of them (runs)")
    parser.add_argument("--out", default="figures", help="folder for the files (figures)")
    parser.add_by()
    args = parser.parse(argv)
    for file in write_figure(args.name, args.runs, args.out, by=args.by):
        print(file)
    return 0


COMMANDS: dict[str, Command] = {
    "train": Command("train a policy: trpl train METHOD ENV", train),
    "resume": Command("continue a run, exactly: trpl resume RUN", resume),
    "evaluate": Command("noise-free episodes of a run's policy: trpl evaluate RUN", evaluate),
    "play": Command("a run's policy as a video or live: trpl play RUN --video FILE", play),
    "sweep": Command("methods × tasks × seeds, each once: trpl sweep PRESET --seeds N", sweep),
    "tune": Command("search a method's settings: trpl tune METHOD ENV --trials N", tune),
    "report": Command("a page of tables and curves: trpl report RUNS --out DIR", report),
    "figure": Command("a figure of the paper: trpl figure NAME [RUNS]", figure),
    "export": Command("a run's policy for the robot: trpl export RUN FILE.onnx", export),
    "presets": Command("the paper's hyperparameters: trpl presets [METHOD [ENV]]", presets),
}


if __name__ == "__main__":
    sys.exit(main())
