"""skrl: an agent with an exact trust region in place of PPO's clip.

    agent = TRPL(models=models, memory=memory, cfg=TRPL_CFG(rollouts=256, trust_region={"mean_bound": 0.03}), ...)

Memory, models, preprocessors, schedulers, tracking, checkpoints and trainers are skrl's own; only `PPO.update` is
replaced. skrl stores no distribution with its transitions, and needs none: until the first epoch of an update networks
and preprocessors are those that acted, so their prediction then is the old policy.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from trpl.messages import needs

with needs("skrl"):
    import torch
    from skrl import config
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.agents.torch.ppo.ppo import compute_gae
    from skrl.resources.schedulers.torch import KLAdaptiveLR
    from torch import Tensor, nn
    from torch.nn import functional as F

from trpl.families import entropy, kl
from trpl.gaussians import DiagGaussian
from trpl.integrations.trust_region import SharedDeviation, TrustRegion

OLD = ("old_mean", "old_std")
SCHEDULE = "entropy_schedule"
STATES_AT_ONCE = 16384
TRACKED = {
    "kl": "KL",
    "kl_max": "KL (largest)",
    "kl_above": "KL (share of states above the bound)",
    "entropy": "Entropy",
    "min_entropy_target": "Entropy (least)",
    "entropy_target": "Entropy (target)",
}


@dataclasses.dataclass(kw_only=True)
class TRPL_CFG(PPO_CFG):
    """Settings of skrl's PPO, of which `ratio_clip` and `kl_threshold` have no effect, and of the trust region.

    Args:
        trust_region: A `TrustRegion`, or its settings by name.
    """

    trust_region: TrustRegion | dict[str, Any] = dataclasses.field(default_factory=dict)


class Minibatch(NamedTuple):
    """Some of the transitions in memory, with the old policy."""

    observations: Tensor
    states: Tensor | None
    actions: Tensor
    log_prob: Tensor
    values: Tensor
    returns: Tensor
    advantages: Tensor
    old_mean: Tensor
    old_std: Tensor


class InitialEntropy(nn.Module):
    """The start of the entropy schedule, as a module so that skrl's checkpoints include it."""

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(float("nan")))


class TRPL(PPO):
    """skrl's PPO with an exact trust region in place of the clip, for Gaussian policies.

    Args:
        cfg: A `TRPL_CFG`, or its fields by name.
        **settings: See skrl's PPO.

    Raises:
        ValueError: If a setting of the trust region is out of range, or does not fit the policy.
    """

    cfg: TRPL_CFG  # type: ignore[assignment]
    policy: Any
    value: Any

    def __init__(self, *, cfg: TRPL_CFG | dict[str, Any] | None = None, **settings: Any) -> None:
        given = cfg if isinstance(cfg, TRPL_CFG) else TRPL_CFG(**(cfg or {}))
        super().__init__(cfg=given, **settings)
        chosen = self.cfg.trust_region
        self.region = chosen if isinstance(chosen, TrustRegion) else TrustRegion(**chosen)
        if not hasattr(self.policy, "_g_distribution"):
            raise ValueError(f"the policy must be a skrl GaussianMixin; it is {type(self.policy).__name__}")
        if self.policy._g_reduction is not torch.sum:
            raise ValueError("the policy's reduction must be 'sum': a ratio needs the log-density of the whole action")
        self.initial_entropy = InitialEntropy()
        self.checkpoint_modules[SCHEDULE] = self.initial_entropy
        self._shared: SharedDeviation | None = None

    def init(self, *, trainer_cfg: dict[str, Any] | None = None) -> None:
        """Create skrl's tensors, and two for the old policy.

        Args:
            trainer_cfg: The trainer's settings.
        """
        super().init(trainer_cfg=trainer_cfg)
        if self.memory is not None:
            for name in OLD:
                self.memory.create_tensor(name=name, size=self.action_space, dtype=torch.float32)

    def update(self, *, timestep: int, timesteps: int) -> None:
        """Run the epochs through the layer, set a shared standard deviation, audit, and track.

        Args:
            timestep: Current step.
            timesteps: Steps of the whole training, over which an entropy schedule runs.
        """
        self._remember_old_policy()
        self._estimate_advantages()
        constraint = self._constraint(progress=timestep / timesteps)
        totals: dict[str, float] = defaultdict(float)
        for epoch in range(self.cfg.learning_epochs):
            divergences = []
            for batch in self._minibatches():
                predicted, inputs = self._policy(batch, train=not epoch)
                old = self._old(batch)
                divergences.append(kl(predicted.detached(), old).mean())
                terms = self.region.terms(
                    predicted,
                    old,
                    actions=batch.actions,
                    old_log_prob=batch.log_prob.squeeze(-1),
                    advantages=batch.advantages.squeeze(-1),
                    constraint=constraint,
                ).mean()
                value_loss = self._value_loss(inputs, batch)
                self._step(terms.loss - self.cfg.entropy_loss_scale * terms.entropy + value_loss)
                if self._shared is not None:
                    self._shared.keep_positive(old.std)
                totals["Loss / Policy loss"] -= terms.surrogate.item()
                totals["Loss / Penalty"] += terms.penalty.item()
                totals["Loss / Value loss"] += value_loss.item()
            self._adapt_learning_rate(torch.stack(divergences).mean())
        self._finish(totals, constraint)

    @torch.no_grad()
    def _remember_old_policy(self) -> None:
        """Store the network's policy before the first epoch, which is the one that acted."""
        if self._shared is None:
            self._shared = self._find_shared()
        for batch in self._in_order():
            found = self._policy(batch, train=False)[0]
            batch.old_mean.copy_(found.mean)
            batch.old_std.copy_(found.std.expand_as(found.mean))

    def _find_shared(self) -> SharedDeviation | None:
        """Return the parameter of a shared standard deviation, if the network has one."""
        batch = next(self._in_order())
        _, outputs = self.policy.compute(self._inputs(batch, train=False), role="policy")
        parameter = next((p for p in self.policy.parameters() if p is outputs["log_std"]), None)
        shared = None if parameter is None else SharedDeviation(parameter, is_log=True)
        self.region.check_shared(shared, instead="use a policy with a standard deviation per state")
        return shared

    @torch.no_grad()
    def _estimate_advantages(self) -> None:
        """Compute returns and advantages as skrl's PPO does."""
        memory: Any = self.memory
        inputs = {
            "observations": self._observation_preprocessor(self._current_next_observations),
            "states": self._state_preprocessor(self._current_next_states),
        }
        self.value.enable_training_mode(False)
        last_values, _ = self.value.act(inputs, role="value")
        self.value.enable_training_mode(True)
        values = memory.get_tensor_by_name("values")
        returns, advantages = compute_gae(
            rewards=memory.get_tensor_by_name("rewards"),
            terminated=memory.get_tensor_by_name("terminated"),
            truncated=memory.get_tensor_by_name("truncated"),
            values=values,
            last_values=self._value_preprocessor(last_values, inverse=True),
            discount_factor=self.cfg.discount_factor,
            lambda_coefficient=self.cfg.gae_lambda,
            time_limit_bootstrap=self.cfg.time_limit_bootstrap,
        )
        memory.set_tensor_by_name("values", self._value_preprocessor(values, train=True))
        memory.set_tensor_by_name("returns", self._value_preprocessor(returns, train=True))
        memory.set_tensor_by_name("advantages", advantages)

    def _in_order(self) -> Iterator[Minibatch]:
        """Yield all transitions as views of the memory, in parts that fit a network."""
        memory: Any = self.memory
        whole = memory.sample_all(names=list(Minibatch._fields))[0]
        for start in range(0, len(whole[0]), STATES_AT_ONCE):
            rows = slice(start, start + STATES_AT_ONCE)
            yield Minibatch(*(None if x is None else x[rows] for x in whole))  # type: ignore[arg-type]

    def _minibatches(self) -> Iterator[Minibatch]:
        """Yield the transitions in skrl's random minibatches."""
        memory: Any = self.memory
        names, size = list(Minibatch._fields), len(memory)
        for sampled in memory.sample(names=names, batch_size=size, mini_batches=self.cfg.mini_batches):
            yield Minibatch(*sampled)

    def _inputs(self, batch: Minibatch, *, train: bool) -> dict[str, Any]:
        return {
            "observations": self._observation_preprocessor(batch.observations, train=train),
            "states": self._state_preprocessor(batch.states, train=train),
        }

    def _policy(self, batch: Minibatch, *, train: bool) -> tuple[DiagGaussian[Tensor], dict[str, Any]]:
        """Return the network's prediction, and its inputs."""
        inputs = self._inputs(batch, train=train)
        with torch.autocast(device_type=self._device_type, enabled=self.cfg.mixed_precision):
            self.policy.act({**inputs, "taken_actions": batch.actions}, role="policy")
        found = self.policy.distribution(role="policy")
        return self._gaussian(found.loc.float(), found.scale.float()), inputs

    def _gaussian(self, mean: Tensor, std: Tensor) -> DiagGaussian[Tensor]:
        return DiagGaussian(mean, std if self._shared is None else std[0])

    def _old(self, batch: Minibatch) -> DiagGaussian[Tensor]:
        return self._gaussian(batch.old_mean, batch.old_std)

    def _constraint(self, *, progress: float) -> dict[str, float]:
        """Return the entropy constraint of this update; the first update records where the schedule starts."""
        if not self.region.controls_entropy:
            return {}
        old = self._old(next(self._in_order()))
        if torch.isnan(self.initial_entropy.value):
            self.initial_entropy.value.fill_(entropy(old).mean())
        return self.region.constraint(initial=self.initial_entropy.value.item(), progress=progress, dim=old.dim)

    def _value_loss(self, inputs: dict[str, Any], batch: Minibatch) -> Tensor:
        """Compute the squared error on the returns, clipped around the old values as in skrl's PPO."""
        with torch.autocast(device_type=self._device_type, enabled=self.cfg.mixed_precision):
            values, _ = self.value.act(inputs, role="value")
        if self.cfg.value_clip > 0:
            values = batch.values + torch.clip(values - batch.values, -self.cfg.value_clip, self.cfg.value_clip)
        return self.cfg.value_loss_scale * F.mse_loss(values.float(), batch.returns)

    def _step(self, loss: Tensor) -> None:
        """Do one step; average gradients over processes and clip them as skrl's PPO does."""
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        networks = [self.policy] if self.policy is self.value else [self.policy, self.value]
        if config.torch.is_distributed:
            for network in networks:
                network.reduce_parameters()
        if self.cfg.grad_norm_clip > 0:
            self.scaler.unscale_(self.optimizer)
            parameters = itertools.chain.from_iterable(network.parameters() for network in networks)
            nn.utils.clip_grad_norm_(parameters, self.cfg.grad_norm_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _adapt_learning_rate(self, divergence: Tensor) -> None:
        """Step the scheduler; one that follows the KL gets the exact mean."""
        if not self.scheduler:
            return
        if not isinstance(self.scheduler, KLAdaptiveLR):
            self.scheduler.step()
            return
        if config.torch.is_distributed:
            torch.distributed.all_reduce(divergence)
            divergence = divergence / config.torch.world_size  # pyright: ignore[reportAttributeAccessIssue]
        self.scheduler.step(divergence.item())

    @torch.no_grad()
    def _finish(self, totals: dict[str, float], constraint: dict[str, float]) -> None:
        """Set a shared standard deviation to the projected one, measure, and pass everything to skrl's tracking."""
        if self._shared is not None:
            self._shared.project_(self.region, self._old(next(self._in_order())).std, constraint)
        num_steps = self.cfg.learning_epochs * self.cfg.mini_batches
        for name, total in totals.items():
            self.track_data(name, total / num_steps)
        pairs = ((self._policy(batch, train=False)[0], self._old(batch)) for batch in self._in_order())
        for name, value in self.region.measured(pairs, constraint).items():
            self.track_data(f"Policy / {TRACKED[name]}", value)
        self.track_data("Policy / Standard deviation", self.policy.distribution(role="policy").stddev.mean().item())
        if self.scheduler:
            self.track_data("Learning / Learning rate", self.scheduler.get_last_lr()[0])
