"""What stress/survivors.toml excuses is there: files, functions and lines that were removed have no excuse left."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENTRIES = tomllib.loads((ROOT / "stress" / "survivors.toml").read_text(encoding="utf-8"))["survivor"]


def source(entry: dict) -> list[str]:
    files = [ROOT / entry["file"]] if "file" in entry else sorted((ROOT / "src" / "trpl").rglob("*.py"))
    return [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["reason"][:40])
def test_an_excuse_names_what_is_there(entry):
    lines = source(entry)
    assert lines
    for pattern in entry.get("line", "").split("|"):
        assert any(re.search(pattern, line) for line in lines), pattern
    if "function" in entry:
        assert any(re.search(rf"def {entry['function']}\b", line) for line in lines)
    if "was" in entry:
        assert any(entry["was"] == line.strip() for line in lines)
