"""Movement primitives: trajectories of joint angles that are linear in a few parameters.

primitive = MovementPrimitive.make(num_joints=5, num_bases=5, num_steps=200, time_step=0.02)
angles, velocities = primitive.course(parameters, start=angles_now)          # [200, 5] each
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

RESTING = 2
"""Basis functions before the first with a parameter: their weights are zero, so that a movement begins slowly."""


class MovementPrimitive(NamedTuple):
    """The basis functions of a movement at every step, and their derivatives by time.

    A joint's desired angle is its first angle plus `bases @ weights`: Gaussians of equal width spread over the movement
    and normalised to sum to one at every step, each with one weight per joint (a probabilistic movement primitive, with
    the weights as the parameters that a policy chooses once per episode).
    """

    bases: np.ndarray  # [steps, bases]
    rates: np.ndarray  # [steps, bases], per second
    num_joints: int

    @classmethod
    def make(cls, *, num_joints: int, num_bases: int, num_steps: int, time_step: float) -> MovementPrimitive:
        """Spread basis functions over a movement.

        Args:
            num_joints: Joints that move.
            num_bases: Weights of each joint.
            num_steps: Steps of the movement.
            time_step: Seconds between two of them.

        Returns:
            The primitive; it has `num_joints · num_bases` parameters.

        Raises:
            ValueError: If a number is not positive.
        """
        given = {"num_joints": num_joints, "num_bases": num_bases, "num_steps": num_steps, "time_step": time_step}
        for name, value in given.items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, not {value!r}")
        total = num_bases + RESTING
        phase = np.arange(1, num_steps + 1)[:, None] / num_steps
        centres, width = np.linspace(0.0, 1.0, total), 1.0 / (total - 1)
        raw = np.exp(-0.5 * np.square((phase - centres) / width))
        slope = raw * (centres - phase) / width**2  # by phase
        total_raw, total_slope = raw.sum(-1, keepdims=True), slope.sum(-1, keepdims=True)
        bases = raw / total_raw
        rates = (slope - bases * total_slope) / total_raw / (num_steps * time_step)  # quotient rule; phase to seconds
        return cls(bases[:, RESTING:], rates[:, RESTING:], num_joints)

    @property
    def num_parameters(self) -> int:
        """Count the parameters of a movement."""
        return self.num_joints * self.bases.shape[-1]

    def course(self, parameters: np.ndarray, *, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute desired angles and velocities at every step.

        Args:
            parameters: Weights, those of the first joint first, in the unit of angles.
            start: Angles before the movement.

        Returns:
            Angles and velocities, `[steps, joints]` each.

        Raises:
            ValueError: If the number of parameters is wrong.
        """
        parameters = np.asarray(parameters, dtype=np.float64)
        if parameters.shape != (self.num_parameters,):
            raise ValueError(f"parameters have shape {parameters.shape}, expected ({self.num_parameters},)")
        weights = parameters.reshape(self.num_joints, -1).T
        return start + self.bases @ weights, self.rates @ weights
