"""TRPL in rl_games: its own runner trains it, losses are masked by its own code, and the exact KL is written."""

import contextlib
import inspect
import io
import warnings
from importlib import metadata

import numpy as np
import pytest
import torch

pytest.importorskip("rl_games", reason="rl_games is not installed: pip install trpl[rl-games]")

from host_worlds import example

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what rl_games uses of PyTorch is deprecated
    from rl_games.algos_torch.a2c_continuous import A2CAgent

from torch.distributions import Normal, kl_divergence

from trpl.entropy_schedule import exponential

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
pendulum = example("rl_games_pendulum")
VERSION = metadata.version("rl_games")
SMALL = {
    "trust_region": {},
    "num_actors": 4,
    "horizon_length": 16,
    "minibatch_size": 32,
    "mini_epochs": 2,
    "learning_rate": 1e-2,
    "lr_schedule": None,
    "normalize_input": True,
    "normalize_value": True,
}


def agent(tmp_path, *, epochs=3, seed=0, rnn=False, per_state=False, **settings):
    """An agent of the runner, as `Runner.run_train` makes it."""
    chosen = pendulum.configuration("TRPL", num_epochs=epochs, seed=seed + 1, folder=str(tmp_path), **SMALL | settings)
    network = chosen["params"]["network"]
    network["space"]["continuous"]["fixed_sigma"] = not per_state
    if per_state:
        network["space"]["continuous"]["sigma_init"] = {"name": "default"}
    if rnn:
        network["rnn"] = {"name": "gru", "units": 8, "layers": 1, "before_mlp": False, "concat_input": False}
        chosen["params"]["config"]["seq_length"] = 4
    runner = pendulum.Runner()
    pendulum.register(runner)
    with contextlib.redirect_stdout(io.StringIO()):
        runner.load(chosen)
        return runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)


def train(made):
    """Train quietly; gives what was written, and the KL of each epoch by PyTorch's own distributions."""
    written, seen, epoch = [], [], made.train_epoch
    made.writer.add_scalar = lambda name, value, frame: written.append((name, float(value)))

    def outputs(batch):
        inputs = {"is_train": True, "prev_actions": batch["actions"], "obs": batch["obs"].clone()}
        made.set_eval()
        with torch.no_grad():
            found = made.model(inputs)
        return Normal(found["mus"].double(), found["sigmas"].double())

    def watched():
        prepare, kept = made.prepare_dataset, {}

        def prepared(batch):
            kept.update(old=Normal(batch["mus"].double().clone(), batch["sigmas"].double().clone()))
            kept.update(batch={name: batch[name].clone() for name in ("obses", "actions")})
            prepare(batch)

        made.prepare_dataset = prepared
        found = epoch()
        made.prepare_dataset = prepare
        if not made.is_rnn:
            new = outputs({"obs": kept["batch"]["obses"], "actions": kept["batch"]["actions"]})
            seen.append(kl_divergence(new, kept["old"]).sum(-1))
        return found

    made.train_epoch = watched
    with contextlib.redirect_stdout(io.StringIO()):
        made.train()
    return {name: [v for n, v in written if n == name] for name, _ in written}, seen


def test_the_seam():
    """What TRPL relies on in rl_games; where this fails, rl_games has moved."""
    assert VERSION.startswith("1.6."), f"rl_games {VERSION} was never tried with trpl"
    names = ["self", "actor_loss_func", "old_action_log_probs_batch", "action_log_probs", "advantage", "curr_e_clip"]
    names += ["value_preds_batch", "values", "return_batch", "mu", "entropy", "rnn_masks"]
    assert list(inspect.signature(A2CAgent.calc_losses).parameters) == names
    source = inspect.getsource(A2CAgent.calc_gradients)
    assert "self.model(batch_dict)" in source
    assert "self.calc_losses" in source


@pytest.mark.parametrize("per_state", [False, True], ids=["shared", "per state"])
def test_the_exact_kl_is_written(tmp_path, per_state):
    made = agent(tmp_path, per_state=per_state)
    written, seen = train(made)
    assert len(seen) == 3
    for n, kl in enumerate(seen):
        assert written["trpl/kl"][n] == pytest.approx(kl.mean().item(), rel=1e-3)
        assert written["trpl/kl_max"][n] == pytest.approx(kl.max().item(), rel=1e-3)


def test_a_shared_deviation_is_set_to_the_projected_one(tmp_path):
    made = agent(tmp_path, learning_rate=0.3, trust_region={"cov_bound": 1e-3})
    steps, epoch = [], made.train_epoch

    def watched():
        old = made.model.a2c_network.sigma.detach().exp().clone()
        found = epoch()
        new = made.model.a2c_network.sigma.detach().exp()
        steps.append(kl_divergence(Normal(0.0, new), Normal(0.0, old)).sum().item())
        return found

    made.train_epoch = watched
    train(made)
    assert steps == pytest.approx([1e-3] * 3, rel=0.01)


def test_recurrent_networks(tmp_path):
    written, _ = train(agent(tmp_path, rnn=True))
    assert np.isfinite(written["trpl/kl"]).all()
    assert max(written["trpl/kl"]) < 1.0


def test_entropy_follows_its_schedule_across_a_checkpoint(tmp_path):
    region = {"entropy_schedule": "exponential", "target_entropy": -1.0, "temperature": 0.7, "entropy_equality": True}
    made = agent(tmp_path, epochs=6, trust_region=region)
    made.max_epochs, found = 3, []
    made._progress = lambda: (made.epoch_num - 1) / 6
    found += train(made)[0]["trpl/entropy"]
    made.save(str(tmp_path / "kept"))
    again = agent(tmp_path, epochs=6, seed=1, trust_region=region)
    again.restore(str(tmp_path / "kept.pth"))
    found += train(again)[0]["trpl/entropy"]
    start = 0.5 * np.log(2 * np.pi * np.e)
    wanted = [exponential(initial=start, target=-1.0, temperature=0.7, progress=i / 6, dim=1) for i in range(6)]
    assert found == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize(
    ("region", "words"),
    [
        ({"projection": "clip"}, "projection must be one of"),
        ({"cov_bound": 0.0}, "cov_bound must be positive"),
        ({"projection": "kl-joint"}, "set fixed_sigma: False"),
    ],
)
def test_bad_settings(tmp_path, region, words):
    with pytest.raises(ValueError, match=words):
        agent(tmp_path, trust_region=region)


def test_a_player_acts(tmp_path):
    """A checkpoint is played by rl_games' own player under the same name."""
    made = agent(tmp_path, epochs=1)
    train(made)
    made.save(str(tmp_path / "kept"))
    runner = pendulum.Runner()
    pendulum.register(runner)
    chosen = pendulum.configuration("TRPL", num_epochs=1, seed=1, folder=str(tmp_path), **SMALL)
    chosen["params"]["config"]["env_info"] = made.env_info
    with contextlib.redirect_stdout(io.StringIO()):
        runner.load(chosen)
        player = runner.player_factory.create(runner.algo_name, params=runner.params)
        player.restore(str(tmp_path / "kept.pth"))
    player.has_batch_dimension = True
    action = player.get_action(torch.zeros(1, 3), is_deterministic=True)
    assert action.shape == (1, 1)


def test_the_example(tmp_path):
    with contextlib.redirect_stdout(io.StringIO()):
        made = pendulum.train(steps=2048, mini_epochs=1, folder=str(tmp_path))
    assert np.isfinite(pendulum.evaluate(made, episodes=2))
