"""The head of hybrid actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trpl import families
from trpl.families import Policy, Product
from trpl.gaussians import DiagGaussian, FullGaussian
from trpl.policies.heads.protocol import Ending, Head, Outputs
from trpl.policies.weights import without_prefix
from trpl.types import A, Array


@dataclass(frozen=True)
class ProductHead:
    """Independent parts, for a tuple of action spaces or, with `names`, a dictionary of them."""

    parts: tuple[Head, ...]
    names: tuple[str, ...] | None = None
    kind = "product"
    gaussian = False

    @property
    def words(self) -> str:
        return f"Product of {', '.join(part.words for part in self.parts)}"

    @property
    def max_entropy(self) -> float:
        return sum(part.max_entropy for part in self.parts)

    @property
    def action_size(self) -> int:
        return sum(part.action_size for part in self.parts)

    @property
    def layers(self) -> tuple[Ending, ...]:
        every = ((i, ending) for i, part in enumerate(self.parts) for ending in part.layers)
        return tuple(ending._replace(name=part_name(i, ending.name)) for i, ending in every)

    @property
    def shared(self) -> Mapping[str, int]:
        return {part_name(i, name): x for i, part in enumerate(self.parts) for name, x in part.shared.items()}

    def initial(self, xp: Any) -> dict[str, Array]:
        return {part_name(i, name): x for i, part in enumerate(self.parts) for name, x in part.initial(xp).items()}

    def shaped(self, *, covariance: str, contextual: bool, initial_std: float) -> ProductHead:
        def shape(part: Head) -> Head:
            return part.shaped(covariance=covariance, contextual=contextual, initial_std=initial_std)

        if not any(part.gaussian for part in self.parts):
            shape(self.parts[0])  # refuses settings of a covariance
        return replace(self, parts=tuple(shape(p) if p.gaussian else p for p in self.parts))

    def _own(self, outputs: Outputs[A]) -> list[Outputs[A]]:
        return [without_prefix(part_name(i, ""), outputs) for i in range(len(self.parts))]

    def distribution(self, outputs: Outputs[A]) -> Product[A]:
        """Make one flat product: a part that is a product itself contributes its own parts."""
        found = [p.distribution(own) for p, own in zip(self.parts, self._own(outputs), strict=True)]
        return Product(tuple(q for p in found for q in (p.parts if isinstance(p, Product) else (p,))))

    def log_prob(self, policy: Policy[A], actions: A) -> A:
        return families.log_prob(policy, actions)

    def split(self, actions: Array) -> list[Any]:
        """Split actions [..., action_size] into those of the parts."""
        ends = np.cumsum([part.action_size for part in self.parts]).tolist()
        return [actions[..., end - part.action_size : end] for part, end in zip(self.parts, ends, strict=True)]

    def shared_values(self, projected: Policy[A]) -> dict[str, A]:
        assert isinstance(projected, Product)
        gaussians = iter([p for p in projected.parts if isinstance(p, DiagGaussian | FullGaussian)])
        found = [(i, part.shared_values(next(gaussians))) for i, part in enumerate(self.parts) if part.gaussian]
        return {part_name(i, name): x for i, values in found for name, x in values.items()}

    def noise(self, rng: np.random.Generator, num_steps: int, states: tuple[int, ...]) -> Sequence[Any]:
        return list(zip(*(part.noise(rng, num_steps, states) for part in self.parts), strict=True))

    def sample(self, outputs: Mapping[str, np.ndarray], noise: Sequence[Any]) -> np.ndarray:
        every = zip(self.parts, self._own(outputs), noise, strict=True)
        return np.concatenate([part.sample(own, drawn) for part, own, drawn in every], axis=-1)

    def mode(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([p.mode(own) for p, own in zip(self.parts, self._own(outputs), strict=True)], axis=-1)

    def take(self, action: np.ndarray) -> Any:
        found = tuple(part.take(own) for part, own in zip(self.parts, self.split(action), strict=True))
        return found if self.names is None else dict(zip(self.names, found, strict=True))

    def to_json(self) -> dict[str, Any]:
        names = None if self.names is None else list(self.names)
        return {"kind": self.kind, "parts": [part.to_json() for part in self.parts], "names": names}


def part_name(index: int, name: str) -> str:
    """Name a layer of a part of a product."""
    return f"part{index}.{name}"
