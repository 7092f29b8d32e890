"""A slow anchor: the trust region around an exponential moving average of past policies, not around the last one.

The last policy still collects the data, and importance ratios are taken with respect to it. The average replaces it
only as the centre of the projection and of the audit. After each update the average moves towards the policy by a
share 1 − `anchor_decay`.
"""

import jax
from jax import Array

from trpl.algorithms.learner import Improve, Learner, LearnerState, Metrics, Samples
from trpl.algorithms.minibatches import Orders
from trpl.methods.trust_region import TrustRegion


def around_anchor(improve: Improve, learner: Learner[TrustRegion]) -> Improve:
    """Wrap `improve` so that its trust region is around the anchor; return it unchanged without `anchor_decay`."""
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
