"""A small trained run under the name the pages use, and the built site."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for blocks and building, whatever pytest's import mode
from blocks import RUN, TINY
from building import build_site

from trpl import cli


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A finished run of `trpl train kl HalfCheetah-v4` with next to no steps."""
    folder = tmp_path_factory.mktemp("docs") / "run"
    assert cli.main(["train", "kl", "HalfCheetah-v4", "--out", str(folder), "--quiet", *TINY]) == 0
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The documentation, built."""
    return build_site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """An empty working directory but for the run, as a reader's after the first command."""
    shutil.copytree(trained, tmp_path / RUN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path
