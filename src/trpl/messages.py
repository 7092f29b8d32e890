"""Sentences that several rooms say: what was probably meant, what to install, what a disk's error means."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from trpl.errors import MissingExtraError

CUTOFF = 0.5  # of similarity: below it nothing is suggested


def closest(name: object, known: Iterable[str], *, cutoff: float = CUTOFF) -> str | None:
    """Find the known name that is nearest by its letters.

    Args:
        name: What was given.
        known: The names that exist.
        cutoff: The similarity, from 0 to 1, below which nothing is near enough.

    Returns:
        The name, or None.
    """
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)), None)


def nearest(name: object, known: Iterable[str]) -> str:
    """Say '; did you mean …?' where a known name is near enough.

    Args:
        name: What was given.
        known: The names that exist.

    Returns:
        The words, or none.
    """
    found = closest(name, known)
    return "" if found is None else f"; did you mean {found!r}?"


def os_problem(error: OSError) -> str:
    """Say what an error of the operating system means.

    Args:
        error: The error.

    Returns:
        A few words.
    """
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)


EXTRAS = {  # package that is imported → the extra that brings it
    **dict.fromkeys(("jax", "jaxlib"), "jax"),
    **dict.fromkeys(
        ("optax", "gymnasium", "mujoco", "rich", "tensorboardX", "matplotlib", "imageio", "orjson"), "train"
    ),
    "torch": "torch",
    "stable_baselines3": "sb3",
    **dict.fromkeys(("torchrl", "tensordict"), "torchrl"),
    "rsl_rl": "rsl-rl",
    "rl_games": "rl-games",
    "rl_zoo3": "rl-zoo3",
    "skrl": "skrl",
    "brax": "brax",
    **dict.fromkeys(("trl", "transformers", "accelerate", "peft"), "trl"),
    **dict.fromkeys(("onnx", "onnxruntime"), "onnx"),
    "ray": "ray",
    **dict.fromkeys(("optuna", "sqlalchemy", "psycopg"), "tune"),
    "envpool": "envpool",
    "wandb": "wandb",
    "mlflow": "mlflow",
}


def to_install(extra: str) -> str:
    """Say how to install an optional part of trpl.

    Args:
        extra: The name of the extra.

    Returns:
        A command.
    """
    return f'pip install "trpl[{extra}]"'


def missing_extra(
    error: ImportError, *, extra: str | None = None, instead: Mapping[str, str] = MappingProxyType({})
) -> MissingExtraError | None:
    """Turn a failed import of an optional package into an error that says what to install.

    Args:
        error: The failed import.
        extra: The extra to name; the one that brings the package by default.
        instead: Extras to name in the place of others.

    Returns:
        The error to raise; None for packages that no extra brings.
    """
    package = (error.name or "").split(".")[0]
    if package not in EXTRAS:
        return None
    named = extra or instead.get(EXTRAS[package], EXTRAS[package])
    return MissingExtraError(f"this needs the package {package!r}: {to_install(named)}", name=package)


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Import the packages of an extra in this context: what is missing is answered with what to install.

    Args:
        extra: The name of the extra.

    Yields:
        Nothing.

    Raises:
        MissingExtraError: A package of an extra is not installed.
    """
    try:
        yield
    except ImportError as error:
        found = missing_extra(error, extra=extra)
        if found is None:
            raise
        raise found from error


def program() -> str:
    """Name what starts `trpl` in the shell of the caller.

    Returns:
        "trpl" where the path finds it, else the file that was called.
    """
    called, found = sys.argv[0], shutil.which("trpl")
    if os.path.basename(called) != "trpl" or not os.path.exists(called):
        return "trpl"
    return "trpl" if found is not None and os.path.samefile(found, called) else called
