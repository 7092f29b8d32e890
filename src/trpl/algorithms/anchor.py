"""A slow anchor: the trust region around an exponential moving average of past policies, not around the last one.

The data are still the last policy's, and importance ratios are taken to it. Only what the projection holds on to, and
what the audit measures from, is the average. Its weights go a share 1 − `anchor_decay` towards the policy's after each
update.
"""

import jax
from jax import Array

from trpl.algorithms.learner import Improve, Learner, LearnerState, Metrics, Samples
from trpl.algorithms.minibatches import Orders
from trpl.methods.trust_region import TrustRegion


def around_anchor(improve: Improve, learner: Learner[TrustRegion]) -> Improve:
    """Let `improve` hold on to the anchor of the state where the settings ask for one."""
    decay = learner.config.anchor_decay
    if decay is None:
        return improve

    def anchored(
        state: LearnerState, samples: Samples, orders: Orders[Array], learning_rate: Array
    ) -> tuple[LearnerState, Metrics]:
        assert state.anchor is not None
        old = learner.policy(state.anchor, samples.observations)
        state, report = improve(state, samples._replace(old=old), orders, learning_rate)
        anchor = jax.tree.map(lambda slow, new: decay * slow + (1.0 - decay) * new, state.anchor, state.policy)
        return state._replace(anchor=anchor), report

    return anchored
