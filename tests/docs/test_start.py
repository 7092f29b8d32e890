"""What a newcomer reads first: what a trust region is, how to install, how to cite."""

import re
import tomllib

import pytest
from blocks import PAGES, ROOT, page_id

FIRST = [ROOT / "README.md", ROOT / "docs" / "index.md"]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
first = pytest.mark.parametrize("page", FIRST, ids=page_id)


@first
def test_words_and_a_picture_come_before_code(page):
    before, fence, _ = page.read_text(encoding="utf-8").partition("```")
    assert fence
    assert "**trust region**" in before
    assert "old" in before[: before.index("**trust region**")]  # why one wants it, before its name
    (picture,) = re.findall(r"!\[.+?\]\((.+?)\)", before)
    assert (page.parent / picture).exists()


@first
def test_how_to_install_what_is_not_on_the_registry(page):
    text = " ".join(page.read_text(encoding="utf-8").split())
    for said in ("not on PyPI", 'pip install ".[torch]"', "pip wheel", "pytorch.org/get-started", "CITATION.cff"):
        assert said in text
    assert f'pip install "dist/trpl-{VERSION}-py3-none-any.whl[torch]"' in text


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_brackets_are_quoted(page):
    """Shells such as zsh read them as a pattern."""
    for line in re.findall(r"pip install [^`\n]*", page.read_text(encoding="utf-8")):
        assert "[" not in re.sub(r'"[^"]*"', "", line), line


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", text, re.MULTILINE) == [VERSION]
    assert "Differentiable Trust Region Layers" in text
