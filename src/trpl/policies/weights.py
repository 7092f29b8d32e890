"""The names of a policy's weights: the contract between networks, acting, checkpoints and exports.

layer0/weight, layer0/bias, layer1/...    the hidden layers, [in, out] and [out]
mean/weight, mean/bias                    the head of the mean
std/raw or chol/raw                       a shared covariance, as raw numbers (`covariances`)
std/weight, std/bias or chol/...          instead of these: a head for a contextual covariance
logits/..., shape/...                     instead of all these: the last layer of a discrete or of a Beta policy
part0.mean/..., part1.logits/...          the last layers of a product's parts
observation/shift, observation/scale      the observation normaliser, in checkpoints
"""

from collections.abc import Mapping
from typing import TypeVar

SPREADS = {"diagonal": "std", "full": "chol"}  # covariance → the prefix of its weights
SHIFT, SCALE = "observation/shift", "observation/scale"
A = TypeVar("A")


def hidden_name(index: int) -> str:
    """Name the hidden layer `index`, counted from 0."""
    return f"layer{index}"


def hidden_names(weights: Mapping[str, A]) -> list[str]:
    """Name the hidden layers, in order."""
    names: list[str] = []
    while f"{hidden_name(len(names))}/weight" in weights:
        names.append(hidden_name(len(names)))
    return names


def prefixed(prefix: str, arrays: Mapping[str, A]) -> dict[str, A]:
    """Put a prefix before every name; `without_prefix` takes it off again."""
    return {prefix + name: array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, A]) -> dict[str, A]:
    """Find what has a prefix, by the names without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def as_affine(name: str, weight: A, bias: A) -> dict[str, A]:
    """Return weight and bias of the layer `name` by their names; `affine` finds them again."""
    return {f"{name}/weight": weight, f"{name}/bias": bias}


def raw_name(name: str) -> str:
    """Name the numbers that all states share."""
    return f"{name}/raw"


def affine(weights: Mapping[str, A], name: str) -> tuple[A, A]:
    """Find weight and bias of the layer `name`."""
    return weights[f"{name}/weight"], weights[f"{name}/bias"]


def covariance_of(weights: Mapping[str, A]) -> str:
    """Tell "full" from "diagonal" by the names of the weights."""
    return "full" if any(name.startswith(f"{SPREADS['full']}/") for name in weights) else "diagonal"


def is_contextual(weights: Mapping[str, A]) -> bool:
    """Tell whether the covariance is contextual."""
    return f"{SPREADS[covariance_of(weights)]}/weight" in weights
