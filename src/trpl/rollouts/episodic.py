"""The five-link reacher as an episodic task: one decision per episode, the parameters of a whole movement.

A policy sees the target and returns the 25 parameters of a movement primitive. A controller follows the movement for
the 200 steps of `trpl/Reacher5Sparse-v0`, and the reward of the one step is the return of that episode: −Σ ‖a‖² of the
motors' commands, −200 ‖fingertip − target‖ and −‖joint velocities‖ at the end. Exploration is in the space of
movements, with one full covariance over their parameters, without temporal credit assignment.
"""

from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium.spaces import Box

from trpl.rollouts.primitives import MovementPrimitive
from trpl.rollouts.reacher import EPISODE_LENGTH, NUM_JOINTS, TARGET_RADIUS, SparseReacher

STIFFNESS, DAMPING = 0.5, 0.1  # of the controller: motor command per radian, and per radian a second
LARGEST_WEIGHT = np.pi


class EpisodicReacher(gym.Env):
    """Observation (2): the target. Action (5 joints × `num_bases`): the weights of the movement, in radians.

    The simulator integrates implicitly, at a quarter of the cost of the step-wise task's Runge-Kutta steps.
    """

    metadata = SparseReacher.metadata

    def __init__(self, *, num_bases: int = 5, **kwargs: Any):
        self.arm = SparseReacher(**kwargs)
        self.arm.model.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST  # type: ignore[attr-defined]
        self.primitive = MovementPrimitive.make(
            num_joints=NUM_JOINTS, num_bases=num_bases, num_steps=EPISODE_LENGTH, time_step=self.arm.dt
        )
        self.render_mode = self.arm.render_mode
        self.observation_space = Box(-TARGET_RADIUS, TARGET_RADIUS, (2,), np.float64)
        self.action_space = Box(-LARGEST_WEIGHT, LARGEST_WEIGHT, (self.primitive.num_parameters,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.arm.np_random = self.np_random  # one generator, so that an episode can be replayed
        self.arm.reset(options=options)
        return self._context(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        arm, data = self.arm, self.arm.data
        angles, velocities = data.qpos[:NUM_JOINTS], data.qvel[:NUM_JOINTS]  # live views
        wanted, rates = self.primitive.course(action, start=angles)
        commands = STIFFNESS * wanted + DAMPING * rates
        for command in commands[:-1]:
            command -= STIFFNESS * angles + DAMPING * velocities
            arm.advance(command)
        commands[-1] -= STIFFNESS * angles + DAMPING * velocities  # its cost counts, its effect does not
        cost, info = arm.final_cost()
        return self._context(), -float(np.square(commands).sum()) - cost, True, False, info

    def render(self) -> Any:
        return self.arm.render()

    def close(self) -> None:
        self.arm.close()

    def _context(self) -> np.ndarray:
        return self.arm.data.qpos[NUM_JOINTS:].copy()
