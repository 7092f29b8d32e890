"""Sparse categorical policies: a few kept ids of a vocabulary, and everything else lumped into one class.

The joint projection is the categorical one over K + 1 classes. The policy with the projected masses on the kept ids
that distributes the rest as the old policy does has the same KL to it over the whole vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trpl.engines import constants, engine_of, values_of
from trpl.families.categorical import CATEGORICAL, Categorical
from trpl.families.checks import check_arrays, num_states
from trpl.families.interpolated import Interpolated
from trpl.families.protocol import Held, Policy, register
from trpl.implicit import Saved, Solved
from trpl.natural.categorical import CategoricalPath, log_sum_exp
from trpl.types import A_co, Generic, cast

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask, PerState, Vector


LARGEST_EXCESS = 0.05
"""Largest deviation of the logarithm of all probabilities' sum from 0: more than bfloat16 rounds, less than logits."""


class SparseCategorical(NamedTuple, Generic[A_co]):
    """A batch of categorical distributions over a vocabulary, lumped to K kept ids and the rest.

    Args:
        ids: The kept ids `[*batch, K]`, distinct whole numbers; −1 marks an unused place.
        log_probs: `[*batch, K + 1]`: the log-probabilities of the kept ids, then of the rest; −inf in unused places.
    """

    ids: A_co
    log_probs: A_co

    @property
    def dim(self) -> int:
        """Number of classes: the kept ids and the rest."""
        return self.log_probs.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape in front of the classes."""
        return tuple(self.log_probs.shape[:-1])

    @property
    def lumped(self) -> Categorical[A_co]:
        """The distribution over places and the rest, without the ids."""
        return Categorical(self.log_probs)

    @property
    def arrays(self) -> tuple[A_co, ...]:
        """The arrays that a projection changes: the log-probabilities."""
        return (self.log_probs,)

    def detached(self) -> SparseCategorical[A_co]:
        """Detach the distribution from autodiff.

        Returns:
            The distribution as a constant.
        """
        return SparseCategorical(self.ids, *constants(self.log_probs))


@dataclass(frozen=True)
class SparseFamily(Interpolated):
    """The categorical family over kept ids and rest; the ids never change and are dropped while computing."""

    accept = staticmethod(CATEGORICAL.accept)

    @property
    def words(self) -> str:
        return "SparseCategorical"

    @property
    def cores(self) -> tuple[int, ...]:
        return (1,)

    def make(self, arrays: Sequence[Array], like: Policy | None = None) -> SparseCategorical:
        (log_probs,) = arrays
        if not isinstance(like, SparseCategorical):
            return SparseCategorical(cast("Array", None), log_probs)
        batch, kept = tuple(log_probs.shape[:-1]), like.ids.shape[-1:]
        alone = tuple(like.ids.shape[:-1]) == batch  # else the old policy's batch is larger
        return SparseCategorical(
            like.ids if alone else engine_of(like.ids).xp.broadcast_to(like.ids, (*batch, *kept)), log_probs
        )

    def between(self, e: Engine, predicted: Sequence[Array], old: Sequence[Array]) -> CategoricalPath:
        return CATEGORICAL.between(e, predicted, old)

    def check_one(self, name: str, p: SparseCategorical) -> None:
        check_arrays(name, [("log_probs", p.log_probs)])
        shape, ids = tuple(p.log_probs.shape), tuple(p.ids.shape)
        if len(shape) < 1 or ids != (*shape[:-1], shape[-1] - 1):
            raise ValueError(
                f"{name}.log_probs has shape {shape} and {name}.ids {ids}; expected [*batch, K + 1] and [*batch, K]"
            )

    def check_pair(self, name: str, p: SparseCategorical, q: SparseCategorical, *, other: str = "old") -> None:
        if p.dim != q.dim:
            raise ValueError(f"{other} policy keeps {q.dim - 1} ids, {name} keeps {p.dim - 1}")
        if p.ids is q.ids:
            return
        ids, old_ids = values_of(p.ids), values_of(q.ids)
        if ids is not None and old_ids is not None and not (ids == old_ids).all():
            raise ValueError(f"{name} must keep the {other} policy's ids, in the same places")

    def admit(self, e: Engine, predicted: SparseCategorical, old: SparseCategorical) -> None:
        CATEGORICAL.admit(e, predicted.lumped, old.lumped)
        for name, p in (("predicted", predicted), ("old", old)):
            count = int(e.xp.sum(e.xp.abs(log_sum_exp(e, p.log_probs)) > LARGEST_EXCESS))
            if count:
                raise ValueError(
                    f"the probabilities of {name}, kept ids and rest, do not sum to 1 in {num_states(count)}; "
                    "log_probs are log-probabilities over the vocabulary, not logits"
                )

    def kl(self, e: Engine, p: SparseCategorical, q: SparseCategorical) -> PerState:
        """Compute the KL over kept ids and rest, a lower bound on that over the vocabulary; both keep the same ids."""
        return CATEGORICAL.kl(e, p.lumped, q.lumped)

    def penalty(self, e: Engine, p: SparseCategorical, q: SparseCategorical) -> PerState:
        """Compute KL(p‖q)."""
        return self.kl(e, p, q)

    def entropy(self, e: Engine, p: SparseCategorical) -> PerState:
        """Compute the entropy over kept ids and rest, a lower bound on the entropy over the vocabulary."""
        return CATEGORICAL.entropy(e, p.lumped)

    def log_prob(self, e: Engine, p: SparseCategorical, x: Array) -> PerState:
        """Return the log-probability of token x, which must be kept: of the others only the sum is known."""
        here = (p.ids == x[..., None]) & (x >= 0)[..., None]  # −1 marks unused places
        kept = e.xp.any(here, axis=-1)
        seen = values_of(kept)
        if seen is not None and not seen.all():
            raise ValueError(f"{int((~seen).sum())} tokens are not among the kept ids")
        found = e.xp.where(here, p.log_probs[..., :-1], -math.inf)
        return e.xp.where(kept, e.xp.max(found, axis=-1), math.nan)

    def solve(self, e: Engine, inputs: Sequence[Array], held: Held, *, whole: bool) -> Solved | None:
        """Solve the categorical problem and normalise states that moved, so that outputs are log-probabilities."""
        found = super().solve(e, inputs, held, whole=whole)
        if found is None:
            return None
        (logits,), left = cast("tuple[tuple[Vector], tuple[PerState, ...]]", found)
        normalised = logits - log_sum_exp(e, logits)[..., None]
        moved = _moved(left)[..., None]
        return Solved((e.xp.where(moved, normalised, logits),), found.residuals)

    def pullback(
        self, e: Engine, saved: Saved, cotangents: Sequence[Array | None], needed: Sequence[bool], held: Held
    ) -> Sequence[Array | None]:
        """Pull back through the normalisation, g ↦ g − p Σg, then as for any categorical."""
        (given,) = cotangents
        if given is not None:
            total = e.xp.sum(given, axis=-1)[..., None]
            moved = _moved(saved.residuals)[..., None]
            given = given - e.xp.where(moved, e.xp.exp(saved.outputs[0]) * total, 0.0 * given)
        return super().pullback(e, saved, [given], needed, held)


def _moved(residuals: Sequence[Array]) -> Mask:
    """Return the mask of states that differ from the prediction: s or, with an entropy, τ is not 1."""
    moved = residuals[0] != 1.0
    return moved if len(residuals) == 1 else moved | (residuals[1] != 1.0)


SPARSE = SparseFamily()
register(SparseCategorical, lambda p: SPARSE)
