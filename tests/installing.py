"""Building trpl, and environments that hold one extra and nothing else. Used by the tests and by `stress/builds.py`."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np
from packaging.requirements import Requirement

from trpl.policies.storage import write_checkpoint

ROOT = Path(__file__).parent.parent
SOURCE_DATE_EPOCH = "1735689600"  # any fixed moment: archives then hold the same time stamps


def snapshot(folder: Path) -> Path:
    """The tree as it is now, without what others may be writing to."""
    caches = ".*_cache", ".hypothesis", "__pycache__", "*venv*"
    anywhere = shutil.ignore_patterns(".git", *caches)

    def left_out(place: str, names: list[str]) -> set[str]:
        written = {"runs", "site", "bench", "mutants"} if Path(place) == ROOT else set()
        return anywhere(place, names) | (written & set(names))

    return Path(shutil.copytree(ROOT, folder, ignore=left_out))


def build(out: Path, *what: str, source: Path) -> list[Path]:
    """Archives of a tree, without network: the build backend is the one installed here."""
    command = [sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH})
    return sorted(out.iterdir())


def canonical(name: str) -> str:
    """A distribution's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def install(wheel: Path, site: Path) -> None:
    """The wheel alone, unpacked as pip does it."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)


def requirements(name: str, site: Path | None) -> list[Requirement]:
    """What an installed distribution declares; of trpl, the one in `site`, or else pyproject.toml."""
    if name != "trpl":
        try:
            return [Requirement(line) for line in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:  # then nothing of it can be hidden or missed
            return []
    if site is not None:
        (found,) = metadata.Distribution.discover(name=name, path=[str(site)])
        return [Requirement(line) for line in found.requires or []]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"].items()
    return [Requirement(line) for line in project["dependencies"]] + [
        Requirement(f"{line}; extra == '{extra}'") for extra, lines in optional for line in lines
    ]


def extras(site: Path) -> set[str]:
    """The extras that trpl declares."""
    (found,) = metadata.Distribution.discover(name="trpl", path=[str(site)])
    return set(found.metadata.get_all("Provides-Extra") or [])


@functools.cache
def closure(wanted: str, site: Path | None = None) -> frozenset[str]:
    """The distributions that `pip install WANTED` brings, by the requirements they declare themselves.

    `wanted` is one or more requirements, such as "trpl[torch] gymnasium".
    """
    found: set[tuple[str, str]] = set()
    first = [Requirement(word) for word in wanted.split()]
    waiting = {(canonical(needed.name), option) for needed in first for option in ("", *needed.extras)}
    while waiting:
        name, option = waiting.pop()
        found.add((name, option))
        for needed in requirements(name, site):
            if needed.marker is None or needed.marker.evaluate({"extra": option}):
                waiting |= {(canonical(needed.name), option) for option in ("", *needed.extras)} - found
    return frozenset(name for name, _ in found)


def not_installed(wanted: str) -> set[str]:
    """What these requirements, and the extras of trpl among them, ask for directly and is not installed here."""
    asked, waiting = set(), [Requirement(word) for word in wanted.split()]
    while waiting:
        needed = waiting.pop()
        asked.add(canonical(needed.name))
        if canonical(needed.name) == "trpl":
            inside = requirements("trpl", None)
            waiting += [r for r in inside if r.marker and any(r.marker.evaluate({"extra": e}) for e in needed.extras)]
    here = {canonical(found.name) for found in metadata.distributions()}
    return asked - here - {"trpl"}


def pins(wanted: str) -> str:
    """The constraints for installing these requirements: all of constraints.txt where it covers them.

    A host that the development environment lacks may exclude versions that are pinned there (rl_games wants psutil
    below 6, Brax JAX below 0.10); PyTorch alone stays pinned for it.
    """
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    covered = not not_installed(wanted)
    return "".join(line for line in lines if covered or line.startswith("torch=="))


@functools.cache
def owners() -> dict[str, frozenset[str]]:
    """The distributions that bring each top-level module installed here."""
    found = metadata.packages_distributions().items()
    return {module: frozenset(map(canonical, names)) for module, names in found}


def modules_besides(distributions: frozenset[str]) -> set[str]:
    """The top-level modules that are installed here by other distributions than these."""
    return {module for module, names in owners().items() if not distributions & names}


BLOCKER = """
import os, sys
from importlib.machinery import PathFinder
HIDDEN = set({hidden!r})
PLACES = set(sys.path) - set(os.environ["PYTHONPATH"].split(os.pathsep))

class Blinkered(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if path is None and name in HIDDEN:  # a copy that a package carries along elsewhere may be found
            path = [place for place in sys.path if place not in PLACES]
        return PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Blinkered if finder is PathFinder else finder for finder in sys.meta_path]
"""
"""Hides every top-level module installed here that an extra does not bring, as if it were not installed."""


def run_with(wanted: str, code: str, *, site: Path | None = None, cwd: Path) -> subprocess.CompletedProcess:
    """Run code that finds, of what is installed here, only what `pip install WANTED` brings.

    trpl itself comes from `site`, or else from the source tree.
    """
    hidden = sorted(modules_besides(closure(wanted, site)))
    variables = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    variables |= {"PYTHONPATH": str(site or ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BLOCKER.format(hidden=hidden) + code]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=900)


def with_extra(extra: str) -> str:
    """The requirement that asks for an extra; "" is the plain package."""
    return f"trpl[{extra}]" if extra else "trpl"


def sample_run(folder: Path) -> Path:
    """A working folder with a policy in `run`: two observations, one action."""
    weights = {
        "mean/weight": np.ones((2, 1), np.float32),
        "mean/bias": np.zeros(1, np.float32),
        "std/raw": np.zeros(1, np.float32),
    }
    normaliser = {"observation/shift": np.zeros(2), "observation/scale": np.ones(2)}
    write_checkpoint(folder / "run", epoch=1, parts={"policy": weights | normaliser}, meta={"observation_clip": None})
    return folder


ACT = """
import numpy as np
from trpl import DiagGaussian, kl_parts
from trpl.policies import load_policy
p, q = DiagGaussian(np.ones((1, 2)), np.ones(2)), DiagGaussian(np.zeros((1, 2)), np.ones(2))
assert kl_parts(p, q).mean.tolist() == [1.0]
assert load_policy("run")(np.zeros(2)).shape == (1,)
"""
ABSENT = """
import importlib.util
for name in {names!r}:
    assert importlib.util.find_spec(name) is None, f"{{name}} is there"
"""
TORCH = """
import torch
from trpl.torch import KLProjection
from trpl import DiagGaussian, kl_parts
old, new = DiagGaussian(torch.zeros(3, 2), torch.ones(3, 2)), DiagGaussian(torch.ones(3, 2), 2 * torch.ones(3, 2))
assert torch.allclose(kl_parts(KLProjection(0.03, 0.01)(new, old), old).cov, torch.tensor(0.01), rtol=1e-3)
"""
JAX = """
import jax.numpy as jnp
from trpl.jax import KLProjection
from trpl import DiagGaussian, kl_parts
old, new = DiagGaussian(jnp.zeros((3, 2)), jnp.ones((3, 2))), DiagGaussian(jnp.ones((3, 2)), 2 * jnp.ones((3, 2)))
assert jnp.allclose(kl_parts(KLProjection(0.03, 0.01)(new, old), old).cov, 0.01, rtol=1e-3)
"""
TRAIN = """
from trpl.cli import main
words = "train kl InvertedPendulum-v4 --steps 64 --rollout-size 64 --policy-epochs 1 --value-epochs 1 --eval-episodes 1"
assert main([*words.split(), "--out", "trained"]) == 0
"""
SB3 = """
import warnings
warnings.filterwarnings("ignore", message="rich is experimental")
from trpl.integrations.sb3 import TRPL
TRPL("MlpPolicy", "Pendulum-v1", n_steps=64, tensorboard_log="logs").learn(64, progress_bar=True)
"""
TRACK = """
import os
os.environ["WANDB_SILENT"] = "true"
from trpl.integrations.tracking import tracker
with tracker("{kind}", folder="tracked-{kind}", config={{"method": "kl"}}) as track:
    track(1, {{"kl": 0.5}})
"""


class Extra(NamedTuple):
    """What an extra is for, as a small program, and what it must not bring."""

    program: str
    without: tuple[str, ...] = ("torch", "jax")


EXTRAS = {
    "": Extra("", without=("torch", "jax", "gymnasium", "matplotlib")),
    "torch": Extra(TORCH, without=("jax", "gymnasium")),
    "jax": Extra(JAX, without=("torch", "gymnasium")),
    "train": Extra(TRAIN, without=("torch", "optuna", "ray")),
    "sb3": Extra(SB3, without=("jax", "torchrl")),
    "torchrl": Extra("import trpl.integrations.torchrl", without=("jax", "stable_baselines3")),
    "trl": Extra("from trpl.integrations.trl import TrustRegionGRPOTrainer", without=("jax", "torchrl")),
    "onnx": Extra("from trpl.integrations.export import export; export('run', 'policy.onnx')"),
    "ray": Extra("import trpl.sweeps.ray_pool", without=("torch", "optuna")),
    "tune": Extra("import trpl.tuning.session", without=("torch", "ray")),
    "mlflow": Extra(TRACK.format(kind="mlflow")),
    "wandb": Extra(TRACK.format(kind="wandb")),
}
UNUSUAL = {
    "envpool": Extra("import envpool, trpl.rollouts.pooled_lanes", without=("torch",)),
    "brax": Extra("from trpl.integrations.brax import trust_region", without=("torch",)),
    "rsl-rl": Extra("from trpl.integrations.rsl_rl import TRPL", without=("jax", "stable_baselines3")),
    "skrl": Extra("from trpl.integrations.skrl import TRPL", without=("jax", "stable_baselines3")),
    "rl-games": Extra("from trpl.integrations.rl_games import TRPL", without=("jax", "stable_baselines3")),
    "rl-zoo3": Extra("from trpl.integrations.rl_zoo3 import register; register()", without=("jax",)),
    "docs": Extra("import mkdocs, material, mkdocstrings"),
}
"""Extras that the development environment does not have, or that are for its documentation."""


def program(extra: str) -> str:
    """All that an extra promises: distances, a policy that acts, its own part, and no more."""
    found = (EXTRAS | UNUSUAL)[extra]
    return ACT + found.program + "\n" + ABSENT.format(names=found.without)
