"""Fenced blocks of the documentation, as data."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if "generated" not in path.parts)
RUN = "runs/HalfCheetah-v4/kl/seed-0"  # the run that the pages speak of
TINY = [
    *("--steps", "64", "--rollout-size", "32", "--minibatch-size", "16"),
    *("--policy-epochs", "1", "--value-epochs", "1", "--eval-episodes", "1"),
]

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"pip install (?P<words>[^`\n#]+)")
INCLUDE = re.compile(r'^--8<-- "(?P<path>[^"]+)"\s*$', re.MULTILINE)


class Block(NamedTuple):
    line: int
    code: str


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[Block]:
    """Blocks marked python, in the order of the page, with included files in place."""
    text = page.read_text(encoding="utf-8")
    found = [match for match in FENCE.finditer(text) if match["info"].split(" ")[0] == "python"]
    return [Block(text.count("\n", 0, match.start("code")), INCLUDE.sub(_included, match["code"])) for match in found]


def commands(page: Path) -> list[str]:
    """Command lines in shell blocks (bash, or unmarked), without comments and variables set in front."""
    text = page.read_text(encoding="utf-8")
    blocks = [match["code"] for match in FENCE.finditer(text) if match["info"].strip() in ("", "bash")]
    lines = [re.sub(r"^[A-Z_]+=\S+ |\s+#.*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def installs(page: Path) -> str:
    """What the page's `pip install` commands ask for, as requirements; a clone's ".[torch]" is "trpl[torch]"."""
    text = page.read_text(encoding="utf-8")
    words = [word for match in INSTALL.finditer(text) for word in shlex.split(match["words"])]
    asked = [re.sub(r"^(\.|dist/trpl\S*\.whl)(?=\[|$)", "trpl", word) for word in words if not word.startswith("-")]
    return " ".join(dict.fromkeys(word for word in asked if "://" not in word))


def _included(match: re.Match) -> str:
    return (ROOT / match["path"]).read_text(encoding="utf-8")
