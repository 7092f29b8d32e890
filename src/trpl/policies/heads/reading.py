"""Construction of heads from their descriptions in checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np

from trpl.policies.actions import ActionMap
from trpl.policies.heads.beta import BetaHead
from trpl.policies.heads.discrete import BernoulliHead, CategoricalHead
from trpl.policies.heads.gaussian import GaussianHead
from trpl.policies.heads.product import ProductHead
from trpl.policies.heads.protocol import Head
from trpl.policies.weights import SPREADS


def from_json(values: Any) -> Head:
    """Read the output of `to_json`.

    Raises:
        ValueError: The values do not describe a head.
    """
    try:
        match values["kind"]:
            case "gaussian":
                actions = ActionMap.from_json(values["actions"])
                found: Head = GaussianHead(
                    values["action_size"], values["covariance"], values["contextual"], 1.0, actions
                )
                sound = found.covariance in SPREADS and type(found.contextual) is bool  # type: ignore[attr-defined]
            case "categorical":
                shape = None if values["shape"] is None else tuple(values["shape"])
                found = CategoricalHead(tuple(values["sizes"]), tuple(values["starts"]), shape)
                whole = all(type(n) is int for n in (*found.sizes, *found.starts, *(shape or ())))
                sound = whole and len(found.sizes) == len(found.starts) and min(found.sizes) > 0
                sound = sound and (len(found.sizes) == 1 if shape is None else np.prod(shape) == len(found.sizes))
            case "bernoulli":
                found = BernoulliHead(values["action_size"], tuple(values["shape"]))
                sound = np.prod(found.shape) == found.action_size
            case "beta":
                found, sound = BetaHead(values["action_size"], ActionMap.from_json(values["actions"])), True
            case "product":
                names = None if values["names"] is None else tuple(map(str, values["names"]))
                found = ProductHead(tuple(map(from_json, values["parts"])), names)
                sound = names is None or len(names) == len(found.parts)
            case kind:
                raise ValueError(f"there is no head {str(kind)[:40]!r}")
        if sound and type(found.action_size) is int and 0 < found.action_size < 1_000_000:
            return found
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it does not describe a head ({type(error).__name__})") from error
    raise ValueError("it does not describe a head")
