"""A run's state to and from checkpoint files: the learner's pytree, the collector's arrays, the policy for acting."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from trpl.errors import CheckpointError
from trpl.policies.storage import newest_checkpoint, read_checkpoint, write_checkpoint
from trpl.rollouts import Collector, Evaluator

LEARNER, COLLECTOR = "learner/", "collector/"


def save(run: Path, *, epoch: int, state: Any, collector: Collector, evaluator: Evaluator, seconds: float) -> Path:
    """The checkpoint after `epoch`."""
    arrays, meta = collector.state()
    normaliser = collector.normaliser
    enabled = normaliser.enabled
    policy = {
        **{name: np.asarray(weight) for name, weight in state.policy.items()},
        "observation/shift": normaliser.mean if enabled else np.zeros(collector.observation_size),
        "observation/scale": normaliser.scale if enabled else np.ones(collector.observation_size),
    }
    return write_checkpoint(
        run,
        epoch=epoch,
        parts={
            "policy": policy,
            "state": learner_arrays(state) | {COLLECTOR + name: array for name, array in arrays.items()},
        },
        meta={
            "collector": meta,
            "evaluator": evaluator.state(),
            "observation_clip": normaliser.clip if enabled else None,
            "seconds": seconds,
        },
    )


def restore(run: Path, *, like: Any, collector: Collector, evaluator: Evaluator) -> tuple[Any, int, float]:
    """Learner state, epoch and seconds of the newest sound checkpoint; collector and evaluator go back to it too."""
    folder = newest_checkpoint(run)
    arrays, meta = read_checkpoint(folder, part="state")
    state = learner_state(arrays, like=like, where=folder)
    try:
        collector.restore(
            {name.removeprefix(COLLECTOR): array for name, array in arrays.items() if name.startswith(COLLECTOR)},
            meta["collector"],
        )
        evaluator.restore(meta.get("evaluator", {}))  # absent from checkpoints before 0.2
        return state, meta["epoch"], float(meta["seconds"])
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{folder} does not fit the run: {type(error).__name__}: {error}") from error


def learner_arrays(state: Any) -> dict[str, np.ndarray]:
    """The leaves of the state under the paths that lead to them."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {LEARNER + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def learner_state(arrays: dict[str, np.ndarray], *, like: Any, where: Path) -> Any:
    """The state of the shape of `like` from its leaves by name."""
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
