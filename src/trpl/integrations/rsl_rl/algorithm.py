"""The paper's update (Algorithm 2) inside rsl_rl's runner.

Collection, returns, storage, networks, logging, saving and export are rsl_rl's own; only `update` is replaced.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from torch import Tensor, nn
from torch.nn import functional as F

from trpl.families import Policy, entropy, kl
from trpl.gaussians import DiagGaussian
from trpl.integrations.rsl_rl.layouts import HAS_MODELS, Minibatch, Mirror, layout_of
from trpl.integrations.trust_region import TrustRegion
from trpl.losses import clipped_squared_error, normalised, squared_error
from trpl.types import cast

UPDATES, INITIAL_ENTROPY = "trpl_updates", "trpl_initial_entropy"
"""State of the entropy schedule; kept with the optimiser, which every version of rsl_rl saves and loads."""


class TRPL(PPO):
    """PPO of rsl_rl with an exact trust region in place of the clip.

    `clip_param` clips only the value loss. With `schedule: "adaptive"` the learning rate follows the exact mean KL of
    the network, as PPO's follows its own.

    Args:
        *args: See rsl_rl's PPO.
        schedule_iterations: The number of iterations that an entropy schedule spans.
        **settings: The fields of `TrustRegion`, and the settings of rsl_rl's PPO.

    Raises:
        ValueError: If a setting is out of range, or the networks and settings do not fit together.
    """

    def __init__(self, *args: Any, schedule_iterations: int | None = None, **settings: Any) -> None:
        self.region = TrustRegion.take(settings)
        super().__init__(*args, **settings)
        self.layout = layout = layout_of(self)
        self.schedule_iterations = schedule_iterations
        shared = layout.shared
        if self.region.controls_entropy and not (schedule_iterations and schedule_iterations > 0):
            raise ValueError(
                "entropy_schedule needs schedule_iterations, the number of iterations it runs over: rsl_rl does not "
                "tell the algorithm how long training will be"
            )
        if self.region.controls_entropy and shared is not None and not shared.learns:
            raise ValueError("entropy_schedule needs a standard deviation that learns, and learn_std is False")
        self.region.check_shared(shared, instead="use a distribution with a standard deviation per state")
        if layout.is_beta and not self.region.joint:
            raise ValueError(
                f"a BetaDistribution has one bound on its whole KL: projection must be kl-joint, not "
                f"{self.region.projection}"
            )
        if layout.is_beta and layout.mirror is not None and layout.mirror.augments:
            raise ValueError(
                "symmetry with use_data_augmentation mirrors Gaussians, and the actor has a BetaDistribution"
            )

    def update(self) -> dict[str, float]:
        """Run the epochs through the layer, set a shared standard deviation, and audit.

        Returns:
            The means to log, by name.
        """
        layout, shared = self.layout, self.layout.shared
        constraint, old_std = self._constraint(), None
        totals: dict[str, Any] = defaultdict(float)
        for batch in layout.minibatches(self.num_learning_epochs):
            old = layout.policy_value(batch.old_distribution_params)
            loss, logged = self._losses(batch, old, constraint)
            self._step(loss, logged.get("rnd"))
            if shared is not None:
                old_std = cast("DiagGaussian[Tensor]", old).std
                shared.keep_positive(old_std)
            for name, value in logged.items():
                totals[name] = totals[name] + value.detach()
        num_steps = self.num_learning_epochs * self.num_mini_batches
        found = {name: float(total) / num_steps for name, total in totals.items()}
        if shared is not None and old_std is not None:
            shared.project_(self.region, old_std, constraint)
        found |= self._audit(constraint)
        layout.finish()
        self.storage.clear()
        self.optimizer.param_groups[0][UPDATES] = self._updates + 1
        return found

    @property
    def teacher_loaded(self) -> bool:
        """Refuse rsl_rl's DistillationRunner, which reads this first."""
        raise ValueError("TRPL learns from rewards: DistillationRunner needs algorithm.class_name Distillation")

    @property
    def _updates(self) -> int:
        return self.optimizer.param_groups[0].get(UPDATES, 0)

    @torch.no_grad()
    def _constraint(self) -> dict[str, float]:
        """Return the entropy constraint of this update; the first update records where the schedule starts."""
        if not self.region.controls_entropy:
            return {}
        kept = self.optimizer.param_groups[0]
        old = self.layout.policy_value(next(self.layout.minibatches(1)).old_distribution_params)
        if INITIAL_ENTROPY not in kept:
            kept[INITIAL_ENTROPY] = float(self._over_processes(entropy(old).mean()))
        progress = self._updates / self.schedule_iterations  # type: ignore[operator]
        return self.region.constraint(initial=kept[INITIAL_ENTROPY], progress=progress, dim=old.arrays[0].shape[-1])

    def _losses(
        self, batch: Minibatch, old: Policy[Tensor], constraint: dict[str, float]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a minibatch, and its terms by the names under which they are logged."""
        layout, mirror, size = self.layout, self.layout.mirror, batch.observations.batch_size[0]
        if self.normalize_advantage_per_mini_batch:
            batch.advantages = normalised(batch.advantages, unbiased=True)
        centre = old
        if mirror is not None and mirror.augments:
            centre = _augment(batch, cast("DiagGaussian[Tensor]", old), mirror)
        half = getattr(self, "use_mixed_precision", False)
        with torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16, enabled=half):
            predicted, values = layout.policy(batch), layout.values(batch)
        if self.desired_kl is not None and self.schedule == "adaptive":
            unmirrored = predicted if centre is old else _first(cast("DiagGaussian[Tensor]", predicted), size)
            self._adapt_learning_rate(unmirrored, old)
        actions, old_log_prob = layout.taken(batch)
        advantages = batch.advantages.squeeze(-1)
        samples = {"actions": actions, "old_log_prob": old_log_prob, "advantages": advantages}
        terms = self.region.terms(predicted, centre, **samples, constraint=constraint).mean()
        value_loss = self._value_loss(values, batch)
        logged = {"surrogate": -terms.surrogate, layout.value_loss_name: value_loss, "penalty": terms.penalty}
        loss = terms.loss + self.value_loss_coef * value_loss - self.entropy_coef * terms.entropy
        if self.rnd:
            logged["rnd"] = self._rnd_loss(batch.observations[:size])
        if mirror is not None:
            logged["symmetry"] = symmetry = self._mirror_loss(batch, mirror, size)
            if mirror.loss_weight is not None:
                loss = loss + mirror.loss_weight * symmetry
        return loss, logged

    def _over_processes(self, mean: Tensor) -> Tensor:
        """Average a mean over the processes of a training on several GPUs."""
        if self.is_multi_gpu:
            torch.distributed.all_reduce(mean)
            mean /= self.gpu_world_size
        return mean

    def _step(self, loss: Tensor, rnd_loss: Tensor | None) -> None:
        """Do one step of all optimisers; average gradients over processes and clip them as PPO does."""
        self.optimizer.zero_grad()
        loss.backward()
        if rnd_loss is not None:
            self.layout.rnd_optimizer.zero_grad()
            rnd_loss.backward()
        if self.is_multi_gpu:
            self.reduce_parameters()
        for network in self.layout.networks:
            nn.utils.clip_grad_norm_(network.parameters(), self.max_grad_norm)
        self.optimizer.step()
        if rnd_loss is not None:
            self.layout.rnd_optimizer.step()

    def _value_loss(self, values: Tensor, batch: Minibatch) -> Tensor:
        """Compute the squared error on the returns, clipped around the old values if PPO would."""
        if not self.use_clipped_value_loss:
            return squared_error(values, batch.returns)
        return clipped_squared_error(values, batch.returns, old_values=batch.values, clip=self.clip_param)

    def _rnd_loss(self, observations: Any) -> Tensor:
        """Compute the predictor's error in random network distillation."""
        rnd: Any = self.rnd
        with torch.no_grad():
            state = rnd.state_normalizer(rnd.get_rnd_state(observations))
            target = rnd.target(state)
        return F.mse_loss(rnd.predictor(state), target)

    def _mirror_loss(self, batch: Minibatch, mirror: Mirror, size: int) -> Tensor:
        """Compute the difference between the action at mirrored observations and the mirrored action."""
        observations = batch.observations if mirror.augments else mirror.observations(batch.observations)
        actions = self.layout.mean_action(observations.detach().clone())
        wanted = mirror.actions(actions[:size]).detach()
        loss = F.mse_loss(actions[size:], wanted[size:])
        return loss if mirror.loss_weight is not None else loss.detach()

    @torch.no_grad()
    def _adapt_learning_rate(self, predicted: Policy[Tensor], old: Policy[Tensor]) -> None:
        """Apply PPO's rule: towards the desired mean KL, in factors of 1.5 between 1e-5 and 1e-2."""
        mean = self._over_processes(kl(predicted, old).mean())
        if mean > 2.0 * self.desired_kl:
            self.learning_rate = max(1e-5, self.learning_rate / 1.5)
        elif 0.0 < mean < 0.5 * self.desired_kl:
            self.learning_rate = min(1e-2, self.learning_rate * 1.5)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    @torch.no_grad()
    def _audit(self, constraint: dict[str, float]) -> dict[str, float]:
        """Compare the new policy with the old one: the exact KL in every state of the rollout."""
        layout = self.layout
        pairs = ((layout.policy(b), layout.policy_value(b.old_distribution_params)) for b in layout.minibatches(1))
        return self.region.measured(pairs, constraint)


def _first(p: DiagGaussian[Tensor], size: int) -> DiagGaussian[Tensor]:
    """Return the first states; a shared standard deviation is kept."""
    return DiagGaussian(p.mean[:size], p.std if p.shares_covariance else p.std[:size])


@torch.no_grad()
def _augment(batch: Minibatch, old: DiagGaussian[Tensor], mirror: Mirror) -> DiagGaussian[Tensor]:
    """Append the mirror images to a minibatch; return the old policy with the mirrored one appended.

    Its log-density at a mirrored action is that of the action itself, as in PPO. A mirror permutes joints and flips
    signs, so a standard deviation is mirrored as the difference of two actions.
    """
    size = batch.observations.batch_size[0]
    batch.observations, batch.actions = mirror.function(env=mirror.env, obs=batch.observations, actions=batch.actions)
    copies = batch.observations.batch_size[0] // size
    for name in ("old_actions_log_prob", "values", "advantages", "returns"):
        setattr(batch, name, getattr(batch, name).repeat(copies, 1))
    mean = mirror.actions(old.mean)
    std = old.std if old.shares_covariance else (mirror.actions(old.mean + old.std) - mean).abs()
    return DiagGaussian(mean, std)


if not HAS_MODELS:  # rsl_rl 3.1 evaluates class_name in the namespace of its runner's module
    from rsl_rl.runners import on_policy_runner

    setattr(on_policy_runner, "TRPL", TRPL)  # noqa: B010
