"""The examples run for a few updates, repeat with the seed, and stay short."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples"
LOOPS = ["pytorch_loop", "jax_loop"]


def example(name):
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=LOOPS)
def loop(request):
    module = example(request.param)
    module.ROLLOUT_SIZE, module.POLICY_EPOCHS, module.VALUE_EPOCHS = 256, 2, 1
    return module


def test_a_loop_is_short_and_complete(loop):
    source = (FOLDER / loop.__spec__.origin).read_text()
    assert len(source.splitlines()) < 200


@pytest.mark.parametrize("projection", ["kl", "w2", "frobenius"])
def test_a_loop_runs(loop, projection):
    returns = loop.train("Pendulum-v1", num_steps=768, projection=projection, verbose=False)
    assert len(returns) == 3
    assert np.isfinite(returns).all()


def test_a_seed_replays_a_loop(loop):
    first, second, other = (loop.train("Pendulum-v1", num_steps=768, seed=seed, verbose=False) for seed in (1, 1, 2))
    assert first == second
    assert first != other


def test_advantages_treat_the_two_endings_apart(loop):
    """Reward 1 for ever is worth 1/(1 − γ): a truncated step bootstraps, a terminated one does not."""
    worth = 1 / (1 - loop.DISCOUNT)
    rollout = loop.Rollout(
        *(np.zeros((3, 2), np.float32),) * 3,
        np.ones(3, np.float32),
        terminated=np.array([0, 0, 1], np.float32),
        truncated=np.array([0, 1, 0], np.float32),
    )
    if loop.__name__.endswith("pytorch_loop"):
        import torch

        rollout = loop.Rollout(*map(torch.from_numpy, rollout))
        value = lambda x: torch.full((len(x), 1), worth)  # noqa: E731
    else:
        import jax.numpy as jnp

        value = {"layers": [(jnp.zeros((2, 1)), jnp.array([worth]))]}
    advantages, returns = loop.advantages_and_returns(rollout, value)
    assert np.asarray(advantages) == pytest.approx([0.0, 0.0, 1.0 - worth], abs=1e-5)
    assert np.asarray(returns) == pytest.approx([worth, worth, 1.0], abs=1e-5)


@pytest.mark.filterwarnings("ignore")  # torchrl's and gymnasium's own
def test_torchrl_pendulum(capsys):
    module = example("torchrl_pendulum")
    module.ROLLOUT_SIZE, module.POLICY_EPOCHS, module.VALUE_EPOCHS = 256, 1, 1
    assert -2000.0 < module.train(512, seed=0) < 0.0
    assert "256 steps" in capsys.readouterr().out


def test_a_language_model_learns_in_a_plain_loop():
    pytest.importorskip("transformers", reason="transformers is not installed: pip install trpl[trl]")
    module = example("language_loop")
    assert len((FOLDER / "language_loop.py").read_text().splitlines()) < 200
    module.PRETRAINING_STEPS, module.NUM_GROUPS = 3, 2
    first, second = (module.train(2, seed=1, verbose=False) for _ in range(2))
    assert first == second
    assert len(first.rewards) == 2
    assert first.projected_kl_max <= module.BOUND * (1.0 + 1e-4)
