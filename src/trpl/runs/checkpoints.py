"""Conversion of a run's state to and from checkpoint files: learner's pytree, collector's arrays, acting policy."""

import math
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trpl.errors import CheckpointError
from trpl.policies.heads import GaussianHead, Head
from trpl.policies.storage import BEST, FOLDER, check, newest_checkpoint, read_checkpoint, write_checkpoint
from trpl.policies.weights import SCALE, SHIFT, prefixed, without_prefix
from trpl.rollouts import Collector, Evaluator

LEARNER, COLLECTOR = "learner/", "collector/"


def save(
    run: Path, *, epoch: int, state: Any, head: Head, collector: Collector, evaluator: Evaluator, seconds: float
) -> Path:
    """Write the checkpoint of `epoch`."""
    arrays, meta = collector.state()
    carried = prefixed(COLLECTOR, arrays)
    return write_checkpoint(
        run,
        epoch=epoch,
        parts={"policy": policy_arrays(state, head, collector), "state": learner_arrays(state) | carried},
        meta={
            "collector": meta,
            "evaluator": evaluator.state(),
            **acting_meta(head, collector),
            "seconds": seconds,
        },
    )


def save_best(run: Path, *, epoch: int, state: Any, head: Head, collector: Collector, evaluation: float) -> Path:
    """Save the policy with the best evaluation so far beside the numbered checkpoints; it can act, but not resume."""
    meta = {**acting_meta(head, collector), "evaluation": evaluation}
    parts = {"policy": policy_arrays(state, head, collector), "value": value_arrays(state)}
    return write_checkpoint(run, epoch=epoch, parts=parts, meta=meta, name=BEST)


def best_evaluation(run: Path) -> float:
    """Read the evaluation of the best checkpoint; −∞ without one."""
    try:
        return float(check(run / FOLDER / BEST)["meta"]["evaluation"])
    except (CheckpointError, LookupError, TypeError, ValueError):
        return -math.inf


def policy_arrays(state: Any, head: Head, collector: Collector) -> dict[str, np.ndarray]:
    """Collect the arrays needed to act: weights, observation normaliser, and the transformation of Gaussian actions."""
    normaliser, size = collector.normaliser, collector.observation_size
    actions = head.actions if isinstance(head, GaussianHead) else None
    return {
        **{name: np.asarray(weight) for name, weight in state.policy.items()},
        SHIFT: normaliser.mean if normaliser.enabled else np.zeros(size),
        SCALE: normaliser.scale if normaliser.enabled else np.ones(size),
        **({} if actions is None else actions.arrays()),
    }


def value_arrays(state: Any) -> dict[str, np.ndarray]:
    """Collect the value function's weights, if the state has any."""
    return {name: np.asarray(weight) for name, weight in getattr(state, "value", {}).items()}


def acting_meta(head: Head, collector: Collector) -> dict[str, Any]:
    """Collect the metadata needed to act: the clip of normalised observations, and any non-Gaussian head."""
    clip = collector.normaliser.clip if collector.normaliser.enabled else None
    return {"observation_clip": clip, **({} if head.gaussian else {"head": head.to_json()})}


def warm_start(state: Any, collector: Collector, *, source: Path) -> Any:
    """Initialise a new learner with policy, value function and observation normaliser of a checkpoint.

    Optimiser states are fresh. The normaliser counts as many observations as one rollout, so that it adapts.
    """
    arrays, _ = read_checkpoint(source, part="policy")
    for name, weight in state.policy.items():
        found = arrays.get(name)
        if found is None or found.shape != weight.shape:
            raise CheckpointError(
                f"{source} does not fit this run's policy ({name} is missing or of another shape): it takes the same"
                " task, hidden_sizes, policy and covariance"
            )
    collector.normaliser.start_from(arrays[SHIFT], arrays[SCALE])
    policy = {name: jax.numpy.asarray(arrays[name]) for name in state.policy}
    value = _value_of(source)
    fits = value.keys() == state.value.keys() and all(value[n].shape == w.shape for n, w in state.value.items())
    anchor = {} if getattr(state, "anchor", None) is None else {"anchor": jax.tree.map(jax.numpy.copy, policy)}
    return state._replace(policy=policy, **anchor, **({"value": value} if fits else {}))


def _value_of(source: Path) -> dict[str, Any]:
    """Find the value function in a checkpoint: in its own file, or among the learner's leaves."""
    if "value.safetensors" in check(source)["files"]:
        arrays, _ = read_checkpoint(source, part="value")
        return {name: jax.numpy.asarray(array) for name, array in arrays.items()}
    arrays, _ = read_checkpoint(source, part="state")
    leaf = re.compile(re.escape(LEARNER) + r"(?:\.learner)?\.value\['(.+)'\]")
    found = ((leaf.fullmatch(name), array) for name, array in arrays.items())
    return {match[1]: jax.numpy.asarray(array) for match, array in found if match}


def restore(run: Path, *, like: Any, collector: Collector, evaluator: Evaluator) -> tuple[Any, int, float]:
    """Restore the newest sound checkpoint, collector and evaluator included; return learner state, epoch, seconds."""
    folder = newest_checkpoint(run)
    arrays, meta = read_checkpoint(folder, part="state")
    state = learner_state(arrays, like=like, where=folder)
    try:
        collector.restore(without_prefix(COLLECTOR, arrays), meta["collector"])
        evaluator.restore(meta.get("evaluator", {}))  # absent from checkpoints before 0.2
        return state, meta["epoch"], float(meta["seconds"])
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{folder} does not fit the run: {type(error).__name__}: {error}") from error


def learner_arrays(state: Any) -> dict[str, np.ndarray]:
    """Return the leaves of the state by their paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {LEARNER + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def learner_state(arrays: dict[str, np.ndarray], *, like: Any, where: Path) -> Any:
    """Rebuild a state with the structure of `like` from its leaves by path."""
    nested = LEARNER + ".learner."  # where PAPI had the learner's leaves until 0.2
    arrays = {name.replace(nested, f"{LEARNER}."): array for name, array in arrays.items()}
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in paths:
        name = LEARNER + jax.tree_util.keystr(path)
        found = arrays.get(name)
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            raise CheckpointError(
                f"{where} does not fit the run's configuration: {name} is missing or of another shape"
            )
        leaves.append(jax.numpy.asarray(found))
    return jax.tree_util.tree_unflatten(structure, leaves)
