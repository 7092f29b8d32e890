"""rl_games: an agent with an exact trust region in place of PPO's clip.

    runner = Runner()
    register(runner)                      # then `algo: name: trpl` in an otherwise unchanged configuration
    runner.load(configuration)
    runner.run({"train": True})

Collection, datasets, networks, normalisers, schedules, checkpoints and players are rl_games' own. So is the sum of its
losses, in which the policy's loss and entropy of each sample are those of the projected policy; masks of recurrent
batches apply to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trpl.messages import needs

with needs("rl-games"):
    import torch
    from rl_games.algos_torch.a2c_continuous import A2CAgent
    from rl_games.algos_torch.models import ModelA2CContinuousLogStd
    from rl_games.algos_torch.players import PpoPlayerContinuous
    from torch import Tensor

from trpl.families import entropy
from trpl.gaussians import DiagGaussian
from trpl.integrations.trust_region import SharedDeviation, TrustRegion

NAME = "trpl"
ACTED = ("acted_mu", "acted_sigma")
"""The parameters of the policy that collected the data (each minibatch overwrites `mu` and `sigma` of a dataset)."""
INITIAL_ENTROPY = "trpl_initial_entropy"


def register(runner: Any) -> None:
    """Register `algo: name: trpl` with a runner, for training and for playing.

    Args:
        runner: rl_games' `Runner`.
    """
    runner.algo_factory.register_builder(NAME, lambda **settings: TRPL(**settings))
    runner.player_factory.register_builder(NAME, lambda **settings: PpoPlayerContinuous(**settings))


class _RecordingModel:
    """A proxy that records the model's last output."""

    def __init__(self, model: Any) -> None:
        self.model, self.answer = model, {}

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.answer = self.model(inputs)
        return self.answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class TRPL(A2CAgent):
    """rl_games' continuous PPO with an exact trust region in place of the clip.

    `config: trust_region:` holds the settings of `TrustRegion`; `e_clip` clips only the value loss. An entropy schedule
    runs over `max_epochs`, or over `max_frames` if epochs are not limited.

    Args:
        base_name: See rl_games' agents.
        params: See rl_games' agents.

    Raises:
        ValueError: If a setting of the trust region is out of range, or does not fit the network.
    """

    def __init__(self, base_name: str, params: dict[str, Any]) -> None:
        super().__init__(base_name, params)
        self.region = TrustRegion(**self.config.get("trust_region", {}))
        self.shared = _shared_deviation(self.model)
        self.region.check_shared(self.shared, instead="set fixed_sigma: False")
        if self.region.controls_entropy and self.max_epochs == -1 and self.max_frames == -1:
            raise ValueError("entropy_schedule runs over max_epochs or max_frames, and neither is given")
        self.initial_entropy: float | None = None
        self._constraint: dict[str, float] = {}
        self._batch: dict[str, Any] = {}

    def prepare_dataset(self, batch_dict: dict[str, Any]) -> None:
        """Prepare rl_games' dataset, store the policy that acted with it, and determine this update's entropy target.

        Args:
            batch_dict: rl_games' rollout.
        """
        super().prepare_dataset(batch_dict)
        for name, x in zip(ACTED, (batch_dict["mus"], batch_dict["sigmas"]), strict=True):
            self.dataset.values_dict[name] = x.detach().clone()
        if self.region.controls_entropy:
            old = self._old(self.dataset.values_dict)
            if self.initial_entropy is None:
                self.initial_entropy = float(entropy(old).mean())
            self._constraint = self.region.constraint(
                initial=self.initial_entropy, progress=self._progress(), dim=old.dim
            )

    def train_epoch(self) -> Any:
        """Do rl_games' epoch, then set a shared standard deviation, measure, and log.

        Returns:
            What rl_games' epoch returns.
        """
        found = super().train_epoch()
        if self.shared is not None:
            self.shared.project_(self.region, self._old(self.dataset.values_dict).std, self._constraint)
        measured = self.region.measured(self._pairs(), self._constraint)
        writer: Any = self.writer
        if self.global_rank == 0:
            for name, value in measured.items():
                writer.add_scalar(f"trpl/{name}", value, self.frame)
        return found

    def calc_gradients(self, input_dict: dict[str, Any]) -> None:
        """Do rl_games' step, and record the model's output: the loss needs its mean and standard deviation.

        Args:
            input_dict: rl_games' minibatch.
        """
        model = self.model
        self.model, self._batch = _RecordingModel(model), input_dict
        try:
            super().calc_gradients(input_dict)
        finally:
            self.model = model
        if self.shared is not None:
            self.shared.keep_positive(self._old(input_dict).std)

    def calc_losses(
        self, actor_loss_func: Any, old_action_log_probs_batch: Tensor, action_log_probs: Tensor, *rest: Any
    ) -> Any:
        """Compute rl_games' losses with the loss and the entropy of the projected policy, sample by sample.

        Args:
            actor_loss_func: rl_games' loss of the policy, which is replaced.
            old_action_log_probs_batch: The negative log-density of each action at collection.
            action_log_probs: That of the network's policy.
            *rest: rl_games' further arguments: the advantages first, entropy and masks last.

        Returns:
            What rl_games' method returns.
        """
        model: Any = self.model
        advantages, *others, _, masks = rest
        terms = self.region.terms(
            self._gaussian(model.answer["mus"], model.answer["sigmas"]),
            self._old(self._batch),
            actions=self._batch["actions"],
            old_log_prob=-old_action_log_probs_batch,
            advantages=advantages,
            constraint=self._constraint,
        )
        densities = old_action_log_probs_batch, action_log_probs
        return super().calc_losses(lambda *_: terms.loss, *densities, advantages, *others, terms.entropy, masks)

    def get_full_state_weights(self) -> dict[str, Any]:
        """Collect what a checkpoint holds.

        Returns:
            rl_games' state, and the start of the entropy schedule.
        """
        return super().get_full_state_weights() | {INITIAL_ENTROPY: self.initial_entropy}

    def set_full_state_weights(self, weights: dict[str, Any], set_epoch: bool = True) -> None:
        """Load a state of this agent, or of rl_games' PPO.

        Args:
            weights: The state.
            set_epoch: Whether to continue its count of epochs and frames.
        """
        super().set_full_state_weights(weights, set_epoch=set_epoch)
        self.initial_entropy = weights.get(INITIAL_ENTROPY)

    def _progress(self) -> float:
        if self.max_epochs != -1:
            return (self.epoch_num - 1) / self.max_epochs
        return self.frame / self.max_frames

    def _gaussian(self, mean: Tensor, std: Tensor) -> DiagGaussian[Tensor]:
        return DiagGaussian(mean.float(), std.float() if self.shared is None else std.float()[0])

    def _old(self, batch: dict[str, Any]) -> DiagGaussian[Tensor]:
        return self._gaussian(*(batch[name] for name in ACTED))

    @torch.no_grad()
    def _pairs(self) -> Iterator[tuple[DiagGaussian[Tensor], DiagGaussian[Tensor]]]:
        """Yield the policy after the update and the one before it, minibatch by minibatch."""
        self.set_eval()
        for number in range(len(self.dataset)):
            batch = self.dataset[number]
            inputs = {"is_train": True, "prev_actions": batch["actions"], "obs": self._preproc_obs(batch["obs"])}
            if self.is_rnn:
                inputs |= {"rnn_states": batch["rnn_states"], "seq_length": self.seq_length}
                inputs |= {"dones": batch["dones"]} if self.zero_rnn_on_done else {}
            answer = self.model(inputs)
            yield self._gaussian(answer["mus"], answer["sigmas"]), self._old(batch)


def _shared_deviation(model: Any) -> SharedDeviation | None:
    """Return the parameter of a shared standard deviation, if the network has one."""
    network = model.a2c_network
    if not getattr(network, "fixed_sigma", False):
        return None
    if not isinstance(network.sigma_act, torch.nn.Identity):
        raise ValueError("sigma_activation must be None where fixed_sigma is True: the standard deviation is set")
    return SharedDeviation(network.sigma, is_log=isinstance(model, ModelA2CContinuousLogStd.Network))
