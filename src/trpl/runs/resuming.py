"""The words for how a run is resumed."""

from pathlib import Path

from trpl.messages import command_line
from trpl.rollouts import is_local


def resume_command(folder: Path, *, env_id: str) -> str:
    """Return what resumes a run: a command, or a line of Python if only Python can hand over its environment."""
    return f"trpl.load({str(folder)!r}, env=env).resume()" if is_local(env_id) else command_line("resume", folder)
