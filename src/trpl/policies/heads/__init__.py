"""Heads: the map from a network's outputs to a family's distribution, and from an action to the environment's.

A head is a frozen value. It defines the network's last layers and shared numbers (`layers`, `shared`), makes their
distribution (`distribution`, in any framework), draws from it (`sample`, `mode`, in NumPy), and converts a drawn action
to the environment's own (`take`). Rollouts keep actions as float32 vectors of `action_size` numbers: a class is its
index, a binary decision 1 or 0. `trpl.rollouts.spaces` has the registry of heads by action space.
"""

from __future__ import annotations

from trpl.policies.heads.beta import BetaHead as BetaHead
from trpl.policies.heads.discrete import BernoulliHead as BernoulliHead
from trpl.policies.heads.discrete import CategoricalHead as CategoricalHead
from trpl.policies.heads.gaussian import GaussianHead as GaussianHead
from trpl.policies.heads.product import ProductHead as ProductHead
from trpl.policies.heads.protocol import Ending as Ending
from trpl.policies.heads.protocol import Head as Head
from trpl.policies.heads.reading import from_json as from_json
