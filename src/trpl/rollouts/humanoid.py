"""Humanoid as in the paper's experiments."""

from functools import cached_property

import numpy as np
from gymnasium.envs.mujoco.humanoid_v4 import HumanoidEnv

CONTACT_FORCES = slice(-84, None)


class PaperHumanoid(HumanoidEnv):
    """Humanoid-v4 as MuJoCo 2.0 computed it.

    The last 84 observations, the contact forces, are zero: MuJoCo 2.0 never computed them. The control cost is that of
    the control clamped to the motors' range of ±0.4, at most 0.272 a step: MuJoCo before 2.2.1 clamped `data.ctrl` in
    place, from which the cost is computed; later versions do not, so that a policy of deviation 1 pays eight times as
    much.
    """

    @cached_property
    def _control_range(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.model.actuator_ctrlrange.T
        return low.copy(), high.copy()

    def control_cost(self, action: np.ndarray) -> np.float64:
        low, high = self._control_range
        clamped = np.minimum(np.maximum(self.data.ctrl, low), high)
        return self._ctrl_cost_weight * np.add.reduce(np.square(clamped))

    def _get_obs(self) -> np.ndarray:
        observation = super()._get_obs()
        observation[CONTACT_FORCES] = 0.0
        return observation
