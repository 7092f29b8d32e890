"""The episodic reacher and its movements, against finite differences and the step-wise task."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from trpl.rollouts import make_environment
from trpl.rollouts.environments import Environment
from trpl.rollouts.episodic import DAMPING, STIFFNESS
from trpl.rollouts.primitives import RESTING, MovementPrimitive

TASK = "trpl/EpisodicReacher5-v0"


def primitive(**changes):
    return MovementPrimitive.make(**{"num_joints": 2, "num_bases": 3, "num_steps": 400, "time_step": 0.01} | changes)


def test_velocities_are_derivatives_of_angles():
    weights = np.random.default_rng(0).normal(size=6)
    angles, velocities = primitive().course(weights, start=np.array([0.5, -0.5]))
    np.testing.assert_allclose(velocities[1:-1], (angles[2:] - angles[:-2]) / 0.02, atol=1e-4)


def test_a_movement_begins_where_the_arm_is_and_ends_at_its_last_weights():
    angles, velocities = primitive().course(np.full(6, 2.0), start=np.array([0.5, -0.5]))
    assert np.abs(angles[0] - [0.5, -0.5]).max() < 0.3
    assert np.abs(angles[-1] - [2.5, 1.5]).max() < 0.1  # the bases sum to one but for those at rest
    assert np.abs(velocities[-1]).max() < 0.2
    assert primitive().bases.shape == (400, 3)
    whole = primitive(num_bases=3 + RESTING).bases
    assert (whole.sum(-1) <= 1.0).all()


@pytest.mark.parametrize("changes", [{"num_bases": 0}, {"time_step": -0.1}])
def test_movements_that_are_none(changes):
    with pytest.raises(ValueError, match="must be positive"):
        primitive(**changes)


def test_the_wrong_number_of_parameters():
    with pytest.raises(ValueError, match=r"shape \(5,\), expected \(6,\)"):
        primitive().course(np.zeros(5), start=np.zeros(2))


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized space:UserWarning")  # weights are angles, to ±π
def test_gymnasiums_checker():
    env = make_environment(TASK)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_return_is_that_of_the_step_wise_task(seed):
    """The same controller through `step` of the step-wise task, which integrates by Runge-Kutta."""
    episodic, stepwise = (make_environment(name).unwrapped for name in (TASK, "trpl/Reacher5Sparse-v0"))
    context, _ = episodic.reset(seed=seed)
    observation, _ = stepwise.reset(seed=seed)
    np.testing.assert_array_equal(context, observation[10:12])
    parameters = np.random.default_rng(seed).normal(size=25)
    angles, velocities = stepwise.data.qpos[:5], stepwise.data.qvel[:5]
    total = 0.0
    for wanted, rate in zip(*episodic.primitive.course(parameters, start=angles.copy()), strict=True):
        _, reward, terminated, _, info = stepwise.step(STIFFNESS * (wanted - angles) + DAMPING * (rate - velocities))
        total += reward
    _, found, ended, _, said = episodic.step(parameters)
    assert terminated
    assert ended
    assert found == pytest.approx(total, rel=3e-3)
    assert said["distance"] == pytest.approx(info["distance"], abs=3e-4)


def test_an_episode_is_replayed():
    """What a checkpoint keeps leads to the same context and the same reward again."""
    first, again = (Environment(TASK, seed=3) for _ in range(2))
    first.begin()
    first.step(np.zeros(25, np.float32))
    observation = first.begin()
    actions, meta = first.state()
    again.restore(actions, meta, observation=observation)
    action = np.full(25, 0.2, np.float32)
    assert first.step(action)[1] == again.step(action)[1]
