"""The paper's update (Algorithm 2) inside Stable-Baselines3's on-policy loop.

Collection is Stable-Baselines3's own: the network acts, actions are clipped to the action space before `env.step`, and
the buffer and the log-densities have the raw ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule, update_learning_rate
from torch import Tensor

from trpl.errors import ConvergenceError
from trpl.families import Policy, entropy, family_of, kl
from trpl.gaussians import DiagGaussian, FullGaussian
from trpl.integrations.sb3.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from trpl.integrations.sb3.reading import add_optimisers, log_prob, predicted, set_shared, value_optimizer
from trpl.integrations.trust_region import TrustRegion
from trpl.losses import squared_error, trust_region_loss
from trpl.messages import nearest


class Samples(NamedTuple):
    """A rollout as tensors, or a minibatch of it; shared arrays of the old policy have no batch axis."""

    observations: Any
    actions: Tensor
    advantages: Tensor
    returns: Tensor
    old_log_prob: Tensor
    old: Policy[Tensor]


class TRPL(OnPolicyAlgorithm):
    """Policy gradient through a differentiable trust-region layer.

    Defaults are the paper's table of MuJoCo hyperparameters. The old policy of an update is the network that collected
    the rollout, so a saved model contains it.

    Args:
        policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", a subclass of these, or any `ActorCriticPolicy` with a
            Gaussian, a Categorical, several Categoricals or a Bernoulli.
        env: The environment, or its name; it may have any actions that PPO supports.
        projection: "kl", "w2", "frobenius", or "kl-joint", whose one bound is the sum of the two. For discrete actions
            "kl" has one bound too, the sum of the two, and "w2" and "frobenius" do not exist.
        mean_bound: ε_μ, bound on the mean part of the distance to the old policy, in every state.
        cov_bound: ε_Σ, bound on the covariance part.
        projection_kwargs: Further arguments of the layer: `form`, `whitened`, `entropy_first`.
        regression_weight: α, weight of the penalty that pulls the network to its projection.
        entropy_schedule: "none", "exponential" or "linear": the entropy stays above β, which goes from that of the
            first policy to `target_entropy`.
        target_entropy: κ, final entropy per action dimension.
        temperature: τ of the exponential schedule.
        entropy_equality: Keep the entropy at β instead of above it.
        learning_rate: Adam's rate for the policy.
        learning_rate_vf: Adam's rate for the value function.
        n_steps: Steps of each environment per update.
        batch_size: Samples per minibatch.
        n_epochs: Passes over the rollout for the policy.
        n_epochs_vf: Passes over the rollout for the value function.
        gamma: Discount.
        gae_lambda: λ of the generalised advantage estimate.
        ent_coef: Weight of an entropy bonus.
        normalize_advantage: Whether to normalise advantages in each minibatch.
        use_sde: Explore with noise that depends on the state (gSDE), as PPO does. The trust region is that of each
            state's Gaussian, which is what the ratio is computed from.
        sde_sample_freq: Draw that noise anew after so many steps; -1 draws it once per rollout.
        rollout_buffer_class: See Stable-Baselines3.
        rollout_buffer_kwargs: See Stable-Baselines3.
        stats_window_size: See Stable-Baselines3.
        tensorboard_log: See Stable-Baselines3.
        policy_kwargs: Arguments of `ActorCriticPolicy`, and `covariance="full"`, `contextual=True`.
        verbose: See Stable-Baselines3.
        seed: See Stable-Baselines3.
        device: See Stable-Baselines3.

    Raises:
        TypeError: An argument does not exist (for one of PPO's, the message says what replaces it), or the policy is
            recurrent or masked.
        ValueError: A setting of the trust region is out of range, does not fit the actions, or a minibatch has a single
            sample whose advantage would be normalised.
    """

    policy: ActorCriticPolicy  # type: ignore[assignment]
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | str,
        *,
        projection: str = "kl",
        mean_bound: float = 0.03,
        cov_bound: float = 1e-3,
        projection_kwargs: dict[str, Any] | None = None,
        regression_weight: float = 8.0,
        entropy_schedule: str = "none",
        target_entropy: float = 0.0,
        temperature: float = 0.5,
        entropy_equality: bool = False,
        learning_rate: float | Schedule = 5e-5,
        learning_rate_vf: float | Schedule = 4.5e-4,
        n_steps: int = 2048,
        batch_size: int = 32,
        n_epochs: int = 20,
        n_epochs_vf: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        ent_coef: float = 0.0,
        normalize_advantage: bool = True,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: Any = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise TypeError(f"TRPL takes no {name!r}{_instead(name)}")
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            ent_coef=ent_coef,
            vf_coef=1.0,
            max_grad_norm=0.0,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            supported_action_spaces=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
            _init_setup_model=False,
        )
        self.projection, self.mean_bound, self.cov_bound = projection, mean_bound, cov_bound
        self.projection_kwargs = projection_kwargs or {}
        self.regression_weight = regression_weight
        self.entropy_schedule, self.target_entropy, self.temperature = entropy_schedule, target_entropy, temperature
        self.entropy_equality = entropy_equality
        self.learning_rate_vf = learning_rate_vf
        self.batch_size, self.n_epochs, self.n_epochs_vf = batch_size, n_epochs, n_epochs_vf
        self.normalize_advantage = normalize_advantage
        self.initial_entropy: float | None = None  # H₀, set by the first update
        self._n_updates = 0
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        kind = self.policy_class
        if not issubclass(kind, ActorCriticPolicy) or "lstm_states" in inspect.signature(kind.forward).parameters:
            raise TypeError(f"TRPL needs an ActorCriticPolicy without memory or masks, not a {kind.__name__}")
        self.region = self._read_settings()
        super()._setup_model()
        add_optimisers(self.policy, self.lr_schedule)
        self.region.check_serves(gaussian=isinstance(self.action_space, spaces.Box), words=str(self.action_space))

    def _read_settings(self) -> TrustRegion:
        """Check the current settings, which callbacks may change between updates; return their trust region."""
        single = self.batch_size < 2 or (self.n_steps * self.n_envs) % self.batch_size == 1
        if single and self.normalize_advantage:
            raise ValueError(
                f"batch_size {self.batch_size} leaves a minibatch of one sample from n_steps × n_envs = "
                f"{self.n_steps * self.n_envs}, and the advantage of a single sample cannot be normalised:"
                " choose another, or normalize_advantage=False"
            )
        return TrustRegion(**{field.name: getattr(self, field.name) for field in fields(TrustRegion)})

    @property
    def layer(self) -> Any:
        """The layer for Gaussians."""
        return self.region.layer

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "region"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer", "policy.value_optimizer"], []

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "TRPL",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> TRPL:
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)

    def train(self) -> None:
        """Do one update: fit the value function, run policy epochs through the layer, set the covariance, audit.

        The old policy is the network that collected the rollout.
        """
        self.region = self._read_settings()
        samples = self._samples()
        self._update_learning_rates()
        self.policy.set_training_mode(True)
        value_loss = self._fit_value(samples)
        constraint = self._constraint(samples.old)
        policy_loss, penalty = self._fit_policy(samples, constraint)
        self.policy.set_training_mode(False)
        with torch.no_grad():
            found = predicted(self.policy, samples.observations)
            projected = self.region.project(found, samples.old, constraint)
            self._check_finite(projected)
            if set_shared(self.policy, projected):
                found = predicted(self.policy, samples.observations)
                projected = self.region.project(found, samples.old, constraint)
        self._n_updates += self.n_epochs
        self._record(samples, found, projected)
        self.logger.record("train/policy_loss", policy_loss)
        self.logger.record("train/value_loss", value_loss)
        self.logger.record("train/penalty", penalty)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for target in constraint.values():
            self.logger.record("train/entropy_target", target)

    def _check_finite(self, projected: Policy[Tensor]) -> None:
        """Refuse a non-finite policy: the layer does not check values during the epochs."""
        if any(torch.isnan(x.sum()) for x in projected.arrays):
            raise ConvergenceError(
                f"the policy is not finite after {self.num_timesteps} steps: try a smaller learning_rate or smaller"
                " bounds"
            )

    @torch.no_grad()
    def _samples(self) -> Samples:
        """Return the rollout as tensors, in any order."""
        data = next(self.rollout_buffer.get(batch_size=None))
        return Samples(
            observations=data.observations,
            actions=data.actions,
            advantages=data.advantages,
            returns=data.returns,
            old_log_prob=data.old_log_prob,
            old=predicted(self.policy, data.observations),
        )

    def _minibatches(self, samples: Samples, num_epochs: int) -> Iterator[Samples]:
        """Yield each sample once per epoch in a new order: the rollout is shuffled whole, then split into views."""
        size, total = self.batch_size, len(samples.actions)
        for _ in range(num_epochs):
            order = torch.randperm(total, device=self.device)
            shuffled = _rows(samples, order)
            for start in range(0, total, size):
                yield _rows(shuffled, slice(start, start + size))

    def _fit_value(self, samples: Samples) -> float:
        """Minimise the squared error on the GAE returns; return the loss of the last minibatch."""
        optimizer = value_optimizer(self.policy)
        loss = torch.zeros(())
        for batch in self._minibatches(samples, self.n_epochs_vf):
            values = self.policy.predict_values(batch.observations)
            loss = squared_error(values[:, 0], batch.returns)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    def _fit_policy(self, samples: Samples, constraint: dict[str, float]) -> tuple[float, float]:
        """Maximise surrogate − α · penalty of the projected policy (eq. 12); return both for the last minibatch."""
        policy, layer = self.policy, self.region.layer_of(samples.old)
        found = None
        for batch in self._minibatches(samples, self.n_epochs):
            here = predicted(policy, batch.observations)
            projected = self.region.project(here, batch.old, constraint)
            found = trust_region_loss(
                projected,
                log_ratio=log_prob(projected, batch.actions) - batch.old_log_prob,
                advantages=batch.advantages,
                penalties=layer.penalty(here, projected),
                regression_weight=self.regression_weight,
                entropy_weight=self.ent_coef,
                normalise=self.normalize_advantage,
                unbiased=True,  # as in Stable-Baselines3
            )
            policy.optimizer.zero_grad()
            found.total.backward()
            policy.optimizer.step()
        return (0.0, 0.0) if found is None else (found.surrogate.item(), found.penalty.item())

    def _constraint(self, old: Policy[Tensor]) -> dict[str, float]:
        """Return the entropy constraint of this update, by the share of steps done before this rollout."""
        if self.initial_entropy is None:
            self.initial_entropy = float(entropy(old).mean())
        before = self.num_timesteps - self.n_steps * self.n_envs
        progress = max(before, 0) / max(self._total_timesteps, 1)
        return self.region.constraint(
            initial=self.initial_entropy, progress=progress, dim=get_action_dim(self.action_space)
        )

    def _update_learning_rates(self) -> None:
        self._update_learning_rate(self.policy.optimizer)
        rate = FloatSchedule(self.learning_rate_vf)(self._current_progress_remaining)
        update_learning_rate(value_optimizer(self.policy), rate)
        self.logger.record("train/learning_rate_vf", rate)

    @torch.no_grad()
    def _record(self, samples: Samples, here: Policy[Tensor], projected: Policy[Tensor]) -> None:
        """Record the new policy's distances from the old one, over all states of the rollout."""
        total = kl(here, samples.old)
        audit = self.region.layer_of(here).audit(here, projected, samples.old)
        found = {
            "kl": total.mean(),
            "kl_max": total.max(),
            "entropy": entropy(here).mean(),
            "before_mean": audit.before.mean.mean(),
            "before_mean_max": audit.before.mean.max(),
            "before_cov": audit.before.cov.mean(),
            "after_mean": audit.after.mean.mean(),
            "after_mean_max": audit.after.mean.max(),
            "after_cov": audit.after.cov.mean(),
            "projected_mean_share": audit.mean_projected.float().mean(),
            "projected_cov_share": audit.cov_projected.float().mean(),
        }
        if isinstance(here, DiagGaussian | FullGaussian):
            found["std"] = (here.std if isinstance(here, DiagGaussian) else here.chol.square().sum(-1).sqrt()).mean()
        for name, value in found.items():
            self.logger.record(f"train/{name}", float(value))
        values, returns = self.rollout_buffer.values.flatten(), self.rollout_buffer.returns.flatten()
        spread = np.var(returns)
        explained = float("nan") if spread == 0 else 1.0 - np.var(returns - values) / spread
        self.logger.record("train/explained_variance", float(explained))


def _rows(samples: Samples, index: Any) -> Samples:
    """Select samples; shared arrays of the old policy are kept."""
    observations, actions, advantages, returns, old_log_prob, old = samples
    if isinstance(observations, dict):
        observations = {name: part[index] for name, part in observations.items()}
    else:
        observations = observations[index]
    family = family_of(old)
    every = zip(old.arrays, family.cores, strict=True)
    old = family.make([x[index] if x.ndim > core else x for x, core in every])
    return Samples(observations, actions[index], advantages[index], returns[index], old_log_prob[index], old)


INSTEAD = {
    "clip_range": "the trust region takes its place: mean_bound and cov_bound",
    "target_kl": "the bounds hold the KL in every state: mean_bound and cov_bound",
    "clip_range_vf": "the value function is fitted apart: learning_rate_vf and n_epochs_vf",
    "vf_coef": "the value function has an optimiser of its own: learning_rate_vf and n_epochs_vf",
    "max_grad_norm": "gradients are not clipped: the layer bounds the step",
    "bound": "with projection='kl-joint' the bound is mean_bound + cov_bound",
    "mean_eps": "it is called mean_bound",
    "cov_eps": "it is called cov_bound",
}


def _instead(name: str) -> str:
    if name in INSTEAD:
        return f": {INSTEAD[name]}"
    return nearest(name, inspect.signature(TRPL.__init__).parameters)
