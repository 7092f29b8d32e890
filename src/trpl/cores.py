"""How many cores there are to work with."""

import os


def num_cores() -> int:
    """Count the cores that this process may use, on a shared machine perhaps not all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
