"""A small trained run under the name the pages use, and small budgets for what they train."""

import shutil
import sys
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for blocks and building, whatever pytest's import mode
from blocks import TINY
from building import build_site

from trpl import cli

RUN = "runs/HalfCheetah-v4/kl/seed-0"


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


@pytest.fixture
def small_budgets(monkeypatch):
    """Stable-Baselines3 models that learn for one short rollout, whatever the page says."""
    from trpl.integrations.sb3 import TRPL

    monkeypatch.setitem(TRPL.__init__.__kwdefaults__, "n_steps", 64)
    learn = TRPL.learn
    monkeypatch.setattr(TRPL, "learn", lambda self, total_timesteps, *args, **kwargs: learn(self, 64, *args, **kwargs))


@pytest.fixture
def third_party_warnings():
    """What other libraries warn of in the pages' code; everything else stays an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="rich is experimental")  # tqdm.rich, for SB3's progress bar
        warnings.filterwarnings("ignore", message="Creating .* inherits from WeightUpdaterBase")  # TorchRL, of itself
        warnings.filterwarnings("ignore", message=".*is out of date")  # Gymnasium, of the paper's -v4 tasks
        yield
