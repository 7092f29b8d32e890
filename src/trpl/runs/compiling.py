"""How XLA compiles and runs what a run computes; nothing here imports JAX, which reads these once, when imported."""

import os
import socket
from pathlib import Path

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


def one_thread_flags() -> str:
    """Give XLA_FLAGS with one thread, unless they say how many already.

    At these sizes XLA's thread pool costs more than it gives, and runs share the machine.

    Returns:
        The value of the variable.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    return flags if "xla_cpu_multi_thread_eigen" in flags else f"{flags} {ONE_THREAD}".strip()


def cache_variables(folder: str | Path) -> dict[str, str]:
    """Give the variables that let JAX keep compiled code, apart for each machine.

    Compiling takes seconds and is the same for every seed; a truncated entry is noticed by JAX and compiled again.

    Args:
        folder: Where to keep it.

    Returns:
        Variables by name.
    """
    return {
        "JAX_COMPILATION_CACHE_DIR": str(Path(folder, socket.gethostname())),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def prepare_jax() -> None:
    """Before JAX is imported: one thread, and a folder for compiled code that later calls find.

    Compiled code is kept below the user's cache folder; JAX_COMPILATION_CACHE_DIR names another place, and empty none.
    """
    os.environ["XLA_FLAGS"] = one_thread_flags()
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    for name, value in cache_variables(Path(caches, "trpl", "compiled")).items():
        os.environ.setdefault(name, value)
