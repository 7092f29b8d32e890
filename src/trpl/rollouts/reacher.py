"""The five-link planar reacher with a sparse reward, which depends on the target only at the last step.

A planar arm of five links reaches for a point. Every step costs the squared norm of the action; the distance of the
fingertip from the target counts only at step 200, when the episode ends. Time is part of the observation, so that
end is a true terminal state.

Two variants are registered. `trpl/Reacher5Sparse-v0` keeps each target where it was drawn.
`trpl/Reacher5SparsePaper-v0` is the task of the paper's experiments: the target's joints are limited to ±0.27 m while
targets are drawn up to 0.5 m from the base, so in most episodes the simulator pushes the target back and it bounces.
Returns of the two are not comparable.
"""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.spaces import Box
from gymnasium.utils import EzPickle

MODEL = Path(__file__).parent / "assets" / "reacher5.xml"
NUM_JOINTS = 5
EPISODE_LENGTH = 200
PHYSICS_STEPS = 2  # of 0.01 s: control at 50 Hz
TARGET_RADIUS = 0.5
DISTANCE_WEIGHT = 200.0
CAMERA = {"lookat": np.zeros(3), "distance": 1.4, "azimuth": 90.0, "elevation": -90.0}


class SparseReacher(MujocoEnv, EzPickle):
    """Observation (21): cos and sin of the 5 angles, target x and y, 5 velocities, fingertip − target (3), step 0…200.

    Reward −‖a‖², and at step 200 also −200 ‖fingertip − target‖ − ‖joint velocities‖, both of the state before the
    action is simulated. The raw action is penalised; the simulator clamps the motors' commands to ±1.
    """

    metadata = {"render_modes": ["human", "rgb_array", "depth_array", "rgbd_tuple"], "render_fps": 50}  # noqa: RUF012

    def __init__(self, *, target_limit: float = 0.7, **kwargs: Any):
        EzPickle.__init__(self, target_limit=target_limit, **kwargs)
        super().__init__(
            str(MODEL),
            PHYSICS_STEPS,
            observation_space=Box(-np.inf, np.inf, (21,), np.float64),
            **{"default_camera_config": CAMERA, **kwargs},
        )
        self.model.jnt_range[NUM_JOINTS:] = -target_limit, target_limit
        self._fingertip, self._target = self.data.body("fingertip").xpos, self.data.body("target").xpos  # live views
        self._steps = 0

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        action = np.asarray(action)
        if action.shape != (NUM_JOINTS,):
            raise ValueError(f"action has shape {action.shape}, expected ({NUM_JOINTS},)")
        self._steps += 1
        terminated = self._steps >= EPISODE_LENGTH
        reward, info = -float(action.dot(action)), {}
        if terminated:
            cost, info = self.final_cost()
            reward -= cost
        self.advance(action)
        return self._observation(), reward, terminated, False, info

    def advance(self, action: np.ndarray) -> None:
        """Simulate one step of control; the motors get the action clamped to ±1."""
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, nstep=self.frame_skip)  # type: ignore[attr-defined]
        # positions of the state reached, not of the last substep
        mujoco.mj_kinematics(self.model, self.data)  # type: ignore[attr-defined]
        if self.render_mode == "human":
            self.render()

    def final_cost(self) -> tuple[float, dict[str, float]]:
        """Return the cost of the state at the end of an episode, and its terms."""
        distance = float(np.linalg.norm(self._fingertip - self._target))
        speed = float(np.linalg.norm(self.data.qvel[:NUM_JOINTS]))
        return DISTANCE_WEIGHT * distance + speed, {"distance": distance, "speed": speed}

    def reset_model(self) -> np.ndarray:
        angles = self.np_random.uniform(-0.1, 0.1, NUM_JOINTS)
        velocities = self.np_random.uniform(-0.005, 0.005, NUM_JOINTS)
        target = self.np_random.uniform(-TARGET_RADIUS, TARGET_RADIUS, 2)
        while target.dot(target) > TARGET_RADIUS**2:
            target = self.np_random.uniform(-TARGET_RADIUS, TARGET_RADIUS, 2)
        self.set_state(np.concatenate([angles, target]), np.concatenate([velocities, np.zeros(2)]))
        self._steps = 0
        return self._observation()

    def _observation(self) -> np.ndarray:
        angles, target = self.data.qpos[:NUM_JOINTS], self.data.qpos[NUM_JOINTS:]
        return np.concatenate(
            [
                np.cos(angles),
                np.sin(angles),
                target,
                self.data.qvel[:NUM_JOINTS],
                self._fingertip - self._target,
                [self._steps],
            ]
        )
