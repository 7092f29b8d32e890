"""Hosts as frameworks of the conformance suite: a layer's arguments are their settings, a projection is one update.

A host trains a table, a network that looks the policy of a state up by the state's number. The table is the old policy
while the host collects a step, and the predicted one when it updates. What the adapter then reads of its host, and the
projected policy of which the host computes its loss, are recorded.
"""

from __future__ import annotations

import tempfile
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from host_worlds import example
from numpy.testing import assert_allclose
from torch import Tensor, nn

from trpl import DiagGaussian
from trpl.integrations.trust_region import TrustRegion
from trpl.methods.registry import layers


class Seen(NamedTuple):
    """What passed through an adapter in one minibatch, and the gradient of the host's loss to the predicted policy.

    NumPy arrays, with the rows in the order in which they were given.
    """

    predicted: DiagGaussian
    old: DiagGaussian
    projected: DiagGaussian
    actions: np.ndarray
    old_log_prob: np.ndarray
    advantages: np.ndarray
    gradient: DiagGaussian


def as_settings(projection: str, *bounds: float, check: bool = True, **arguments: Any) -> dict[str, Any]:
    """A layer's arguments as a host's configuration has them; a single bound is the sum of its two."""
    mean_bound, cov_bound = bounds if len(bounds) == 2 else (bounds[0] - 0.01, 0.01)
    found = {"projection": projection, "mean_bound": mean_bound, "cov_bound": cov_bound}
    return found | ({"projection_kwargs": arguments} if arguments else {})


class Numbers(gymnasium.Env):
    """A world for each row of a batch: all that is ever seen is the number of the row."""

    observation_space = spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

    def __init__(self, number: int) -> None:
        self.seen = np.array([number], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen, {}

    def step(self, action):
        return self.seen, -float(np.square(action).sum()), False, False, {}


def numbers(size: int, **options: Any) -> gymnasium.vector.VectorEnv:
    return gymnasium.vector.SyncVectorEnv([partial(Numbers, row) for row in range(size)], **options)


class Table(nn.Module):
    """A network that looks a policy up."""

    def __init__(self, policy: DiagGaussian) -> None:
        super().__init__()
        self.mean, self.std = (nn.Parameter(torch.tensor(x, dtype=torch.float32)) for x in policy)

    @torch.no_grad()
    def hold(self, policy: DiagGaussian) -> None:
        self.mean.copy_(torch.as_tensor(policy.mean))
        self.std.copy_(torch.as_tensor(policy.std))

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        rows = seen[..., 0].long()
        return self.mean[rows], self.std[rows]


class Host:
    """A host as a framework: NumPy in, NumPy out; `update` is one update of the host with one minibatch."""

    name: str
    layers = SimpleNamespace(**{spec.kind: partial(as_settings, name) for name, spec in layers().items()})
    array, numpy = staticmethod(np.array), staticmethod(np.asarray)

    def update(self, settings: dict[str, Any], predicted: DiagGaussian, old: DiagGaussian) -> Seen:
        raise NotImplementedError

    def project(self, layer, predicted, old, **options):
        """The projected policy; numbers that did not move as they were given, before the host took exp(log std)."""
        seen = self.update(layer, predicted, old)
        for x, y in zip((*seen.predicted, *seen.old), (*predicted, *old), strict=True):
            assert_allclose(x, y, rtol=2e-6, atol=1e-7)
        return DiagGaussian(*map(np.where, map(np.equal, seen.projected, seen.predicted), predicted, seen.projected))


class TorchHost(Host):
    """`train` collects one step with the table, calls `move` and updates."""

    def train(self, settings: dict[str, Any], table: Table, move: Any) -> None:
        raise NotImplementedError

    def update(self, settings, predicted, old):
        torch.manual_seed(0)
        table, found, unchanged = Table(old), [], TrustRegion.terms

        def terms(region, predicted, old, *, actions, old_log_prob, advantages, constraint):
            batch = {"actions": actions, "old_log_prob": old_log_prob, "advantages": advantages}
            result = unchanged(region, predicted, old, **batch, constraint=constraint)
            for x in predicted:
                x.retain_grad()
            found.append((predicted, old, result.projected, *batch.values()))
            return result

        with mock.patch.object(TrustRegion, "terms", terms):
            self.train(settings, table, lambda: table.hold(predicted))
        ((seen, *others),) = found
        return in_given_order(old, seen, *others)


def in_given_order(given, predicted, old, *others) -> Seen:
    """What was seen, and the gradient of the predicted policy, in the order of the given rows: hosts shuffle."""
    order = torch.cdist(torch.as_tensor(given.mean).float(), old.mean).argmin(1)
    gradient = DiagGaussian(predicted.mean.grad, predicted.std.grad)

    def in_order(x):
        if isinstance(x, DiagGaussian):
            return DiagGaussian(*map(in_order, x))
        return x.detach()[order].numpy()

    return Seen(*map(in_order, (predicted, old, *others, gradient)))


class RslRl(TorchHost):
    name = "rsl_rl"

    def train(self, settings, table, move):
        from test_rsl_rl import HAS_MODELS, TensorDict, configuration, network, stock_runner

        size = len(table.mean)

        class Task(example("rsl_rl_reach").Reach):
            def get_observations(self):
                return TensorDict({"policy": torch.arange(size, dtype=torch.float32)[:, None]}, batch_size=[size])

        class Stacked(nn.Module):
            def forward(self, seen):
                return torch.stack(table(seen), -2)

        env = Task(size)
        env.num_actions = 3
        env.step = lambda actions: (env.get_observations(), -actions.square().sum(-1), torch.zeros(size).long(), {})
        chosen = configuration(std="state", num_learning_epochs=1, num_mini_batches=1, max_grad_norm=1e9, **settings)
        runner = stock_runner(env, chosen | {"num_steps_per_env": 1})
        setattr(network(runner.alg), "mlp" if HAS_MODELS else "actor", Stacked())
        update = runner.alg.update
        runner.alg.update = lambda: move() or update()
        runner.learn(1)


class Skrl(TorchHost):
    name = "skrl"

    def train(self, settings, table, move):
        from test_skrl import GaussianMixin, Model, wrap_env

        class Policy(GaussianMixin, Model):
            def __init__(self, **given):
                Model.__init__(self, **given)
                GaussianMixin.__init__(self, role="policy")
                self.table = table

            def compute(self, inputs, role=""):
                mean, std = self.table(inputs["observations"])
                return mean, {"log_std": std.log()}

        pendulum = example("skrl_pendulum")
        pendulum.Policy = Policy
        env = wrap_env(numbers(len(table.mean)), wrapper="gymnasium", verbose=False)
        options = {"learning_epochs": 1, "mini_batches": 1, "grad_norm_clip": 0.0, "observation_preprocessor": None}
        options |= {"observation_preprocessor_kwargs": {}, "trust_region": settings}
        agent = pendulum.make_agent("TRPL", env, rollouts=1, **options)
        remember = agent._remember_old_policy
        agent._remember_old_policy = lambda: remember() or move()
        quiet = {"timesteps": 1, "headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
        pendulum.SequentialTrainer(env=env, agents=agent, cfg=quiet).train()


class RlGames(TorchHost):
    name = "rl_games"

    def train(self, settings, table, move):
        import test_rl_games

        pendulum, size = test_rl_games.pendulum, len(table.mean)

        class Task(pendulum.Pendulums):
            def __init__(self, *_, **__):
                self.env = numbers(size, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)

        class Network(nn.Module):
            def is_rnn(self):
                return False

            def get_aux_loss(self):
                return None

            def forward(self, inputs):
                mean, std = table(inputs["obs"])
                return mean, std.log(), 0.0 * mean[:, :1], None

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(pendulum, "Pendulums", Task):
            options = {
                "num_actors": size,
                "horizon_length": 1,
                "minibatch_size": size,
                "mini_epochs": 1,
                "seq_length": 1,
            }
            options |= {"normalize_input": False, "normalize_value": False, "truncate_grads": False}
            agent = test_rl_games.agent(folder, epochs=1, per_state=True, trust_region=settings, **options)
            agent.model.a2c_network = Network()
            prepare = agent.prepare_dataset
            agent.prepare_dataset = lambda batch: prepare(batch) or move()
            agent.train()


class StableBaselines3(Host):
    name = "stable_baselines3"

    def update(self, settings, predicted, old):
        """One step in each row; without hidden layers the policy's latent values are the numbers of the rows."""
        from stable_baselines3.common.vec_env import DummyVecEnv

        from trpl.integrations.sb3 import TRPL
        from trpl.integrations.sb3.policies import GaussianDistribution, MlpPolicy

        torch.manual_seed(0)
        table, size, projections, batches = Table(old), len(old.mean), [], []
        unchanged = TrustRegion.project

        class Looked(MlpPolicy):
            def _get_action_dist_from_latent(self, latent_pi):
                return GaussianDistribution(DiagGaussian(*table(latent_pi)))

        class Watched(TRPL):
            def _samples(self):
                found = super()._samples()
                table.hold(predicted)
                return found

            def _minibatches(self, samples, num_epochs):
                for batch in super()._minibatches(samples, num_epochs):
                    batches.append(batch)
                    yield batch

        def project(region, predicted, old, constraint):
            result = unchanged(region, predicted, old, constraint)
            if torch.is_grad_enabled():
                for x in predicted:
                    x.retain_grad()
                projections.append((predicted, old, result))
            return result

        options = {"n_steps": 1, "batch_size": size, "n_epochs": 1, "n_epochs_vf": 0, "normalize_advantage": False}
        env = DummyVecEnv([partial(Numbers, row) for row in range(size)])
        kinds = {"contextual": True, "net_arch": {"pi": [], "vf": [8]}}
        model = Watched(Looked, env, **options, policy_kwargs=kinds, device="cpu", **settings)
        with mock.patch.object(TrustRegion, "project", project):
            model.learn(size)
        (seen,), (batch,) = projections, batches
        return in_given_order(old, *seen, batch.actions, batch.old_log_prob, batch.advantages)


class Brax(Host):
    name = "brax"

    def update(self, settings, predicted, old):
        """Brax's own loss of one step in each row; its networks return means and softplus⁻¹(std − 0.001)."""
        import jax
        from brax.training import distribution, networks
        from jax import numpy as jnp
        from test_brax import Transition, losses, ppo_networks, trust_region

        seen = []

        class Normal(distribution._NormalDistribution):
            """Records of which policy Brax takes the density."""

            def log_prob(self, x):
                seen.append(DiagGaussian(self.loc, self.scale))
                return super().log_prob(x)

        class Squashed(distribution.NormalTanhDistribution):
            def create_dist(self, parameters):
                made = super().create_dist(parameters)
                return Normal(made.loc, made.scale)

        def outputs(policy):
            return jnp.concatenate([policy.mean, jnp.log(jnp.expm1(policy.std - 0.001))], -1)

        squashed, size = Squashed(3), len(old.mean)
        made = ppo_networks.make_ppo_networks(1, 3, value_hidden_layer_sizes=(8,))
        table = networks.FeedForwardNetwork(
            init=made.policy_network.init, apply=lambda _, policy, x: outputs(policy)[x[..., 0].astype(int)]
        )
        network = made.replace(policy_network=table, parametric_action_distribution=squashed)
        keys = jax.random.split(jax.random.PRNGKey(0), 3)
        value = network.value_network.init(keys[0])
        given, before = (DiagGaussian(*(jnp.asarray(x, jnp.float32) for x in p)) for p in (predicted, old))
        actions, ones = jax.random.normal(keys[1], (size, 1, 3)), jnp.ones((size, 1))
        stored = {"distribution_params": outputs(before)[:, None], "raw_action": actions}
        stored["log_prob"] = squashed.log_prob(stored["distribution_params"], actions)
        rows = jnp.arange(float(size))[:, None, None]
        data = Transition(
            observation=rows,
            action=jnp.tanh(actions),
            reward=jax.random.normal(keys[2], (size, 1)),
            discount=0.0 * ones,
            next_observation=rows,
            extras={"state_extras": {"truncation": 0.0 * ones}, "policy_extras": stored},
        )

        def loss(policy):
            options = {"entropy_cost": 0.0, "vf_coefficient": 0.0, "normalize_advantage": False}
            params = losses.PPONetworkParams(policy, value)
            return losses.compute_ppo_loss(params, None, data, keys[0], ppo_network=network, **options)[0]

        chosen = dict(settings)
        chosen |= chosen.pop("projection_kwargs", {})
        with trust_region(**chosen):
            loss(given)
            projected = seen[-1]
            gradient = jax.grad(loss)(given)
        policies = [squashed.create_dist(outputs(p)) for p in (given, before)]
        density = policies[1].log_prob(actions[:, 0]).sum(-1)
        advantages = data.reward[:, 0] - network.value_network.apply(None, value, rows)[:, 0]  # the step ends
        return Seen(
            *(DiagGaussian(p.loc, p.scale) for p in policies),
            DiagGaussian(projected.mean[0], projected.std[0]),
            *(np.asarray(x) for x in (actions[:, 0], density, advantages)),
            gradient,
        )


HOSTS = [StableBaselines3(), RslRl(), Skrl(), RlGames(), Brax()]
