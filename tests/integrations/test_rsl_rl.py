"""TRPL in rsl_rl: a stock runner trains with it, whatever PPO's configuration says works or is refused in words."""

from __future__ import annotations

import copy
import inspect
import os
import socket
import tempfile
from importlib import metadata

import numpy as np
import pytest
import torch

pytest.importorskip("rsl_rl", reason="rsl_rl is not installed: pip install trpl[rsl-rl]")

from host_worlds import example
from rsl_rl.algorithms import PPO
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from trpl import DiagGaussian, kl_parts
from trpl.entropy_schedule import exponential
from trpl.integrations.rsl_rl.layouts import HAS_MODELS

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
VERSION = metadata.version("rsl-rl-lib")
only_models = pytest.mark.skipif(not HAS_MODELS, reason="rsl_rl 3.1 has no such option")
Reach = example("rsl_rl_reach").Reach
CLASS_NAME = "trpl.integrations.rsl_rl:TRPL" if HAS_MODELS else "TRPL"


def configuration(*, std="shared", std_type="scalar", recurrent=False, class_name=CLASS_NAME, **algorithm):
    """A configuration as a user of rsl_rl writes it; of the algorithm only what a test is about."""
    settings = {"class_name": class_name, "num_learning_epochs": 3, "num_mini_batches": 2, "schedule": "fixed"}
    settings |= {"learning_rate": 1e-3, "entropy_coef": 0.0} | algorithm
    common = {"num_steps_per_env": 20, "save_interval": 100, "obs_groups": {}, "algorithm": settings}
    if not HAS_MODELS:
        policy = {"class_name": "ActorCriticRecurrent" if recurrent else "ActorCritic", "noise_std_type": std_type}
        policy |= {"actor_hidden_dims": [16], "critic_hidden_dims": [16], "state_dependent_std": std == "state"}
        policy |= {"rnn_type": "gru", "rnn_hidden_dim": 8, "rnn_num_layers": 1} if recurrent else {}
        return common | {"policy": policy, "obs_groups": {"policy": ["policy"], "critic": ["policy"]}}
    model = {"class_name": "RNNModel" if recurrent else "MLPModel", "hidden_dims": [16], "activation": "elu"}
    model |= {"rnn_type": "gru", "rnn_hidden_dim": 8, "rnn_num_layers": 1} if recurrent else {}
    names = {"shared": "Gaussian", "state": "HeteroscedasticGaussian", "beta": "Beta"}
    distribution = {"class_name": names[std] + "Distribution"} | (
        {} if std == "beta" else {"init_std": 1.0, "std_type": std_type}
    )
    groups = {"actor": ["policy"], "critic": ["policy"]}
    return common | {"actor": model | {"distribution_cfg": distribution}, "critic": dict(model), "obs_groups": groups}


def stock_runner(env, settings):
    """rsl_rl 3.1 cannot train without a folder for its logs."""
    return OnPolicyRunner(env, settings, log_dir=None if HAS_MODELS else tempfile.mkdtemp(), device="cpu")


def runner(seed=0, **options):
    torch.manual_seed(seed)
    return stock_runner(Reach(16, seed=seed), configuration(**options))


def network(algorithm):
    return algorithm.actor if HAS_MODELS else algorithm.policy


def deviation(algorithm):
    """The shared standard deviation, read as rsl_rl keeps it."""
    held = algorithm.actor.distribution if HAS_MODELS else algorithm.policy
    name = "std_param" if HAS_MODELS else "std"
    return getattr(held, name).detach().clone() if hasattr(held, name) else getattr(held, "log_" + name).detach().exp()


def record_updates(run):
    """Let every update leave what it logs in a list."""
    logged, update = [], run.alg.update
    run.alg.update = lambda: logged.append(update()) or logged[-1]
    return logged


def test_the_seam():
    """What TRPL relies on in rsl_rl; where this fails, rsl_rl has moved."""
    assert VERSION.startswith(("5.4.", "5.5.", "3.1.")), f"rsl_rl {VERSION} was never tried with trpl"
    assert list(inspect.signature(PPO.update).parameters) == ["self"], "PPO.update takes other arguments than before"
    needed = {"act", "process_env_step", "compute_returns", "update", "reduce_parameters", "broadcast_parameters"}
    missing = needed - set(dir(PPO))
    assert not missing, f"PPO of rsl_rl {VERSION} has no {', '.join(sorted(missing))}"
    alg = runner().alg
    held = {"storage", "optimizer", "rnd", "symmetry", "learning_rate", "desired_kl", "schedule", "is_multi_gpu"}
    missing = {name for name in held if not hasattr(alg, name)}
    assert not missing, f"PPO of rsl_rl {VERSION} keeps no {', '.join(sorted(missing))}"


@pytest.mark.parametrize("projection", ["kl", "w2", "frobenius"])
@pytest.mark.parametrize(("std", "std_type"), [("shared", "scalar"), ("shared", "log"), ("state", "log")])
def test_a_stock_runner_trains_with_every_deviation(projection, std, std_type):
    run = runner(std=std, std_type=std_type, projection=projection, learning_rate=0.01)
    before = copy.deepcopy(network(run.alg).state_dict())
    logged = record_updates(run)
    run.learn(3)
    assert any(not torch.equal(before[name], value) for name, value in network(run.alg).state_dict().items())
    assert all(np.isfinite(value) for found in logged for value in found.values())
    assert {"surrogate", "penalty", "entropy", "kl", "kl_max"} <= logged[-1].keys()


def test_it_learns():
    run = runner(learning_rate=3e-3)
    rewards, step = [], run.env.step
    run.env.step = lambda actions: (lambda out: rewards.append(out[1].mean().item()) or out)(step(actions))
    run.learn(40)
    assert np.mean(rewards[-100:]) > 0.4 * np.mean(rewards[:100])  # costs: less than 0.4 of the first ones


def test_a_shared_deviation_is_set_to_the_projected_one():
    """With a large learning rate every update wants to go further than the bound: it ends on the bound."""
    run = runner(learning_rate=0.05, cov_bound=1e-3)
    steps, update = [], run.alg.update

    def watched():
        old = deviation(run.alg)
        found = update()
        steps.append(kl_parts(*(DiagGaussian(torch.zeros(1, 2), std) for std in (deviation(run.alg), old))).cov.item())
        return found

    run.alg.update = watched
    run.learn(4)
    assert steps == pytest.approx([1e-3] * 4, rel=0.01)


def test_a_negative_parameter_cannot_happen():
    """rsl_rl #124: a plain standard deviation parameter under a large learning rate."""
    run = runner(learning_rate=0.5)
    run.learn(5)
    assert (deviation(run.alg) > 0.5).all()


def test_the_exact_kl_is_logged():
    """The logged mean is that of the network's policy after the update against the stored one, computed apart."""
    run = runner(learning_rate=0.01)
    seen, update = [], run.alg.update

    def watched():
        storage = run.alg.storage
        observations = storage.observations.flatten(0, 1).clone()
        if HAS_MODELS:
            mean, std = (x.flatten(0, 1).double().clone() for x in storage.distribution_params)
        else:
            mean, std = storage.mu.flatten(0, 1).double().clone(), storage.sigma.flatten(0, 1).double().clone()
        found = update()
        with torch.no_grad():
            if HAS_MODELS:
                new_mean = run.alg.actor(observations).double()
            else:
                new_mean = run.alg.policy.act_inference(observations).double()
        new_std = deviation(run.alg).double()
        kl = torch.distributions.kl_divergence(
            torch.distributions.Normal(new_mean, new_std), torch.distributions.Normal(mean, std)
        ).sum(-1)
        seen.append((found, kl))
        return found

    run.alg.update = watched
    run.learn(2)
    for found, kl in seen:
        assert found["kl"] == pytest.approx(kl.mean().item(), rel=1e-3)
        assert found["kl_max"] == pytest.approx(kl.max().item(), rel=1e-3)
        assert found["kl_above"] == pytest.approx((kl > 0.031).double().mean().item(), abs=0.01)


def test_entropy_follows_its_schedule(tmp_path):
    options = {"entropy_schedule": "exponential", "target_entropy": -1.0, "temperature": 0.7}
    options |= {"entropy_equality": True, "schedule_iterations": 6}
    run = runner(**options)
    logged = record_updates(run)
    run.learn(3)
    run.save(str(tmp_path / "model.pt"))
    again = runner(seed=1, **options)
    again.load(str(tmp_path / "model.pt"))
    more = record_updates(again)
    again.learn(3)
    start = 2 * 0.5 * np.log(2 * np.pi * np.e)
    wanted = [exponential(initial=start, target=-1.0, temperature=0.7, progress=i / 6, dim=2) for i in range(6)]
    found = [each["entropy"] for each in (*logged, *more)]
    assert found == pytest.approx(wanted, abs=1e-4)


def test_a_schedule_needs_its_length():
    with pytest.raises(ValueError, match="schedule_iterations"):
        runner(entropy_schedule="linear")


@pytest.mark.parametrize(
    ("setting", "words"),
    [({"projection": "clip"}, "projection must be one of"), ({"cov_bound": 0.0}, "cov_bound must be positive")],
)
def test_bad_settings(setting, words):
    with pytest.raises(ValueError, match=words):
        runner(**setting)


def test_the_joint_projection_needs_a_deviation_per_state():
    with pytest.raises(ValueError, match="its own covariance"):
        runner(projection="kl-joint")
    runner(projection="kl-joint", std="state", std_type="log").learn(2)


@only_models
def test_a_beta_distribution_within_one_bound():
    """The logged divergence is that of PyTorch's Beta distributions."""
    run = runner(std="beta", projection="kl-joint", learning_rate=3e-3, mean_bound=0.02, cov_bound=0.01)
    seen, update = [], run.alg.update

    def betas(observations):
        run.alg.actor(observations, stochastic_output=True)
        return torch.distributions.Beta(*(x.detach().double() for x in run.alg.actor.output_distribution_params))

    def watched():
        storage = run.alg.storage
        observations = storage.observations.flatten(0, 1).clone()
        old = torch.distributions.Beta(*(x.flatten(0, 1).double().clone() for x in storage.distribution_params))
        found = update()
        kl = torch.distributions.kl_divergence(betas(observations), old).sum(-1)
        seen.append((found, kl))
        return found

    run.alg.update = watched
    run.learn(3)
    for found, kl in seen:
        assert found["kl"] == pytest.approx(kl.mean().item(), rel=1e-3)
        assert found["kl_max"] == pytest.approx(kl.max().item(), rel=1e-3)
    assert seen[-1][0]["kl"] < 0.05


@only_models
def test_densities_of_a_beta_distribution():
    """At collection the ratio of the network to itself is 1: the layout and rsl_rl mean the same density."""
    from trpl import log_prob

    run = runner(std="beta", projection="kl-joint")
    checked, update = [], run.alg.update

    def watched():
        layout = run.alg.layout
        for batch in layout.minibatches(1):
            actions, density = layout.taken(batch)
            inside = ((actions > 1e-4) & (actions < 1 - 1e-4)).all(-1)
            found = log_prob(layout.policy_value(batch.old_distribution_params), actions)
            checked.append((found - density)[inside].abs().max().item())
        return update()

    run.alg.update = watched
    run.learn(1)
    assert max(checked) < 1e-3


@only_models
def test_what_a_beta_distribution_cannot():
    with pytest.raises(ValueError, match="projection must be kl-joint, not kl"):
        runner(std="beta")
    symmetry = {"use_data_augmentation": True, "use_mirror_loss": False, "mirror_loss_coeff": 0.0}
    with pytest.raises(ValueError, match="mirrors Gaussians"):
        runner(std="beta", projection="kl-joint", symmetry_cfg=symmetry | {"data_augmentation_func": mirrored})


@only_models
def test_a_fixed_deviation_stays_fixed():
    settings = configuration(learning_rate=0.05)
    settings["actor"]["distribution_cfg"]["learn_std"] = False
    run = stock_runner(Reach(16), settings)
    run.learn(2)
    assert torch.equal(deviation(run.alg), torch.ones(2))
    settings = configuration(entropy_schedule="linear", schedule_iterations=3)
    settings["actor"]["distribution_cfg"]["learn_std"] = False
    with pytest.raises(ValueError, match="learn_std is False"):
        stock_runner(Reach(16), settings)


def test_recurrent_networks():
    run = runner(recurrent=True)
    logged = record_updates(run)
    run.learn(2)
    assert 0.0 < logged[-1]["kl"] < 1.0


def test_the_adaptive_schedule_is_ppos():
    run = runner(schedule="adaptive", desired_kl=1e-5)
    run.learn(2)
    assert run.alg.learning_rate < 1e-3
    run = runner(schedule="adaptive", desired_kl=10.0)
    run.learn(2)
    assert run.alg.learning_rate == pytest.approx(1e-2)


def mirrored(env, obs=None, actions=None):
    """Points mirrored at the diagonal with turned signs: (x, y) to (−y, −x)."""
    if obs is not None:
        x = obs["policy"]
        turned = torch.stack([-x[:, 1], -x[:, 0], -x[:, 3], -x[:, 2]], -1)
        obs = TensorDict({"policy": torch.cat([x, turned])}, batch_size=[2 * len(x)])
    if actions is not None:
        actions = torch.cat([actions, -actions.flip(-1)])
    return obs, actions


@pytest.mark.parametrize("augments", [True, False])
@pytest.mark.parametrize("std", ["shared", "state"])
def test_symmetry(augments, std):
    symmetry = {"use_data_augmentation": augments, "use_mirror_loss": True, "mirror_loss_coeff": 1.0}
    run = runner(std=std, std_type="log", symmetry_cfg=symmetry | {"data_augmentation_func": mirrored})
    logged = record_updates(run)
    run.learn(3)
    assert np.isfinite(logged[-1]["symmetry"])
    assert logged[-1]["kl"] < 0.2


def test_augmented_states_have_the_mirrored_old_policy():
    """The mirrored Gaussian's log-density at a mirrored action is that of the action."""
    from trpl import log_prob
    from trpl.integrations.rsl_rl.algorithm import _augment
    from trpl.integrations.rsl_rl.layouts import Minibatch, Mirror

    old = DiagGaussian(torch.randn(5, 2), torch.rand(5, 2) + 0.5)
    actions, column = torch.randn(5, 2), torch.zeros(5, 1)
    density = log_prob(old, actions)
    observations = TensorDict({"policy": torch.randn(5, 4)}, batch_size=[5])
    batch = Minibatch(observations, actions, column, column, column, density[:, None], tuple(old), (None, None), None)
    both = _augment(batch, old, Mirror(mirrored, None, augments=True, loss_weight=None))
    assert torch.allclose(log_prob(both, batch.actions), batch.old_actions_log_prob[:, 0], atol=1e-5)


def test_random_network_distillation():
    rnd = {"weight": 1.0, "num_outputs": 4, "predictor_hidden_dims": [8], "target_hidden_dims": [8]}
    rnd |= {"learning_rate": 1e-3}
    settings = configuration(rnd_cfg=rnd)
    settings["obs_groups"]["rnd_state"] = ["policy"]
    env = Reach(16)
    env.unwrapped = env
    env.step_dt = 0.02
    run = stock_runner(env, settings)
    logged = record_updates(run)
    run.learn(3)
    assert logged[2]["rnd"] < logged[0]["rnd"]


@only_models
def test_distillation_is_refused():
    from rsl_rl.runners import DistillationRunner

    run = DistillationRunner(Reach(16), configuration(), device="cpu")
    with pytest.raises(ValueError, match="class_name Distillation"):
        run.learn(1)


@only_models
def test_export_by_rsl_rl(tmp_path):
    run = runner()
    run.learn(1)
    run.export_policy_to_jit(str(tmp_path))
    exported = torch.jit.load(str(tmp_path / "policy.pt"))
    observations = torch.randn(3, 4)
    wanted = run.alg.actor(TensorDict({"policy": observations}, batch_size=[3]))
    assert torch.allclose(exported(observations), wanted, atol=1e-6)


@only_models
@pytest.mark.skipif(not VERSION.startswith("5.5"), reason="mixed precision came with rsl_rl 5.5")
def test_mixed_precision():
    run = runner(use_mixed_precision=True)
    logged = record_updates(run)
    run.learn(2)
    assert all(np.isfinite(value) for value in logged[-1].values())


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Named(str):
    """The device "cpu", which the runner's check accepts as the GPU of its rank."""

    __hash__ = str.__hash__

    def __ne__(self, other):
        return not other.startswith("cuda:") and str.__ne__(self, other)


def weights(alg):
    networks = [alg.actor, alg.critic] if HAS_MODELS else [alg.policy]
    return [{name: x.detach().clone() for name, x in network.state_dict().items()} for network in networks]


def rollout_of(alg):
    """Everything the storage holds for each step and environment, by name."""
    found = {name: x for name, x in vars(alg.storage).items() if isinstance(x, torch.Tensor | tuple | TensorDict)}
    found = {name: x for name, x in found.items() if not isinstance(x, tuple) or isinstance(x[0], torch.Tensor)}
    return copy.deepcopy({name: dict(x) if isinstance(x, TensorDict) else x for name, x in found.items()})


def joined(first, second):
    if isinstance(first, dict):
        both = {name: joined(x, second[name]) for name, x in first.items()}
        return TensorDict(both, both["policy"].shape[:2])
    if isinstance(first, tuple):
        return tuple(map(joined, first, second))
    return torch.cat([first, second], 1)


def watch_update(alg, before=lambda: None):
    """Record weights and rollout of each update; `before` is called first."""
    seen, update = [], alg.update

    def watched():
        before()
        seen.append({"before": weights(alg), "rollout": rollout_of(alg)})
        update()
        seen[-1] |= {"after": weights(alg), "learning_rate": alg.learning_rate}

    alg.update = lambda: watched() or {}
    return seen


JOINTLY = {"num_mini_batches": 1, "learning_rate": 3e-3}
"""One minibatch, so that its mean loss is the mean of the two processes' losses."""
SCHEDULED = {"entropy_schedule": "linear", "target_entropy": 0.5, "entropy_equality": True, "schedule_iterations": 4}
CASES = {
    "PPO": {"class_name": "PPO"} | JOINTLY,
    "shared": {"cov_bound": 1e-4} | JOINTLY,
    "per state": {"std": "state", "std_type": "log"} | JOINTLY,
    "adaptive": {"schedule": "adaptive", "desired_kl": 0.01} | JOINTLY,
    "scheduled": {"std": "state", "std_type": "log"} | SCHEDULED | JOINTLY,
    "minibatches": {"schedule": "adaptive"},
}


def one_of_two(rank, port, folder):
    """One process of two: rsl_rl's own runner as torchrun starts it, with a backend and a device that need no GPU."""
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank}
    os.environ |= {name: str(value) for name, value in names.items()}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.distributed.init_process_group = lambda backend, **ranks: None  # by the runner of each case
    torch.cuda.set_device = lambda device: None
    found = {}
    for name, options in CASES.items():
        torch.manual_seed(rank)
        log_dir = None if HAS_MODELS else tempfile.mkdtemp()
        run = OnPolicyRunner(Reach(16, seed=rank), configuration(**options), log_dir=log_dir, device=Named("cpu"))
        with torch.no_grad():
            for x in run.alg.optimizer.param_groups[0]["params"]:
                x += 0.1 * torch.randn_like(x)  # standard deviations per state start equal in all states
        own, seen = weights(run.alg), watch_update(run.alg)
        run.learn(2)
        found[name] = {"own": own, "seen": seen, "multi_gpu": run.alg.is_multi_gpu}
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What each of two processes saw, in every case."""
    folder = tmp_path_factory.mktemp("two")
    torch.multiprocessing.spawn(one_of_two, args=(free_port(), str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def distance(first, second):
    """The largest difference of two weights."""
    return max((x[name] - y[name]).abs().max().item() for x, y in zip(first, second, strict=True) for name in x)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_stay_together(case, two_processes):
    """The first process's weights are broadcast at the start; after an update weights and learning rate are equal."""
    first, second = (found[case] for found in two_processes)
    assert first["multi_gpu"]
    assert second["multi_gpu"]
    assert distance(first["own"], second["own"]) > 0.01
    assert distance(first["own"], first["seen"][0]["before"]) == 0.0
    for one, other in zip(first["seen"], second["seen"], strict=True):
        assert not torch.equal(one["rollout"]["actions"], other["rollout"]["actions"])
        assert distance(one["before"], other["before"]) == distance(one["after"], other["after"]) == 0.0
        assert one["learning_rate"] == other["learning_rate"]
        assert distance(one["before"], one["after"]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case, options in CASES.items() if JOINTLY.items() <= options.items()])
def test_two_processes_update_as_one_with_both_rollouts(case, two_processes):
    """The mean of two gradients is the gradient of the mean: one process with both rollouts ends at the same weights.

    PPO shows that the comparison holds for rsl_rl's own reduction. With one rollout alone weights end 0.01 away.
    """
    first, second = (found[case]["seen"][0] for found in two_processes)
    torch.manual_seed(5)
    run = stock_runner(Reach(32), configuration(**CASES[case]))

    def both():
        networks = [run.alg.actor, run.alg.critic] if HAS_MODELS else [run.alg.policy]
        for network, values in zip(networks, first["before"], strict=True):
            network.load_state_dict(values)
        for name, x in first["rollout"].items():
            setattr(run.alg.storage, name, joined(x, second["rollout"][name]))

    seen = watch_update(run.alg, both)
    run.learn(1)
    (alone,) = seen
    assert distance(first["after"], alone["after"]) < 1e-6
    assert first["learning_rate"] == alone["learning_rate"]
