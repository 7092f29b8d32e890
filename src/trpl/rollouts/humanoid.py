"""Humanoid as the paper saw it."""

import numpy as np
from gymnasium.envs.mujoco.humanoid_v4 import HumanoidEnv

CONTACT_FORCES = slice(-84, None)


class PaperHumanoid(HumanoidEnv):
    """Humanoid-v4 with its last 84 observations, the contact forces, at zero: MuJoCo 2.0 never computed them."""

    def _get_obs(self) -> np.ndarray:
        observation = super()._get_obs()
        observation[CONTACT_FORCES] = 0.0
        return observation
