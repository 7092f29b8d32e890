"""Messages that several packages share: suggestions, installation hints, operating-system errors."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from trpl.errors import MissingExtraError

CUTOFF = 0.7  # similarity below which nothing is suggested; at 0.5 --frobnicate suggests --learning-rate


def closest(name: object, known: Iterable[str]) -> str | None:
    """Find the known name with the most similar spelling, case aside, else the shortest that begins with the given one.

    Args:
        name: The given name.
        known: The existing names.

    Returns:
        The name, or None.
    """
    text, spelt = str(name).casefold(), {x.casefold(): x for x in known}
    alike = difflib.get_close_matches(text, spelt, n=1, cutoff=CUTOFF)
    longer = sorted((x for x in spelt if len(text) > 2 and x.startswith(text)), key=len)
    return next((spelt[x] for x in (*alike, *longer)), None)


def nearest(name: object, known: Iterable[str]) -> str:
    """Suggest a known name: '; did you mean …?'.

    Args:
        name: The given name.
        known: The existing names.

    Returns:
        The suggestion, empty if nothing is similar.
    """
    found = closest(name, known)
    return "" if found is None else f"; did you mean {found!r}?"


def decimals(*returns: float) -> int:
    """Choose the decimals that returns are shown with: none from 10 on, two below, where whole numbers say too little.

    Args:
        *returns: What is shown side by side; NaN counts for nothing.

    Returns:
        The number of decimals.
    """
    return 0 if any(abs(value) >= 10 for value in returns) else 2


def os_problem(error: OSError) -> str:
    """Describe an error of the operating system.

    Args:
        error: The error.

    Returns:
        A few words.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    if isinstance(error, FileExistsError | NotADirectoryError):  # of `mkdir`
        return "it is a file, or in one, where a folder is needed"
    return error.strerror or str(error)


EXTRAS = {  # package → the extra that installs it
    **dict.fromkeys(("jax", "jaxlib"), "jax"),
    **dict.fromkeys(
        ("optax", "gymnasium", "mujoco", "rich", "tensorboardX", "matplotlib", "imageio", "orjson", "scipy"), "train"
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


def missing_extra(
    error: ImportError, *, extra: str | None = None, instead: Mapping[str, str] = MappingProxyType({})
) -> MissingExtraError | None:
    """Convert a failed import of an optional package to an error that says what to install.

    Args:
        error: The failed import.
        extra: The extra to name; by default the one that installs the package.
        instead: Extras to name in place of others.

    Returns:
        The error to raise; None for packages that no extra installs.
    """
    package = (error.name or "").split(".")[0]
    if package not in EXTRAS:
        return None
    named = extra or instead.get(EXTRAS[package], EXTRAS[package])
    return MissingExtraError(f'this needs the package {package!r}: pip install "trpl[{named}]"', name=package)


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Import the packages of an extra in this context; if one is missing, say what to install.

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
    """Return the command that starts `trpl` in the caller's shell: "trpl", or the file called if PATH lacks it."""
    called, found = sys.argv[0], shutil.which("trpl")
    if os.path.basename(called) != "trpl" or not os.path.exists(called):
        return "trpl"
    return "trpl" if found is not None and os.path.samefile(found, called) else called


def command_line(*words: object) -> str:
    """Write a command of `trpl` for the caller's shell.

    Args:
        *words: Its arguments, quoted where they need it, such as paths with spaces.

    Returns:
        The command.
    """
    return shlex.join([program(), *map(str, words)])


def describe(error: Exception) -> str:
    """Describe an exception for a user who will not read the code.

    Args:
        error: The exception.

    Returns:
        One line, with what to do about it where that is known.
    """
    if type(error).__module__.startswith("trpl"):
        return str(error)
    if isinstance(error, ImportError) and (missing := missing_extra(error, instead={"jax": "train"})):
        return str(missing)  # commands that need JAX need the rest of the trainer too
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {os_problem(error)}" if error.filename else os_problem(error)
    if isinstance(error, MemoryError):
        return "out of memory: use smaller rollouts, fewer environments or smaller networks"
    return f"{type(error).__name__}: {error} (set TRPL_TRACEBACK=1 to see where)"
