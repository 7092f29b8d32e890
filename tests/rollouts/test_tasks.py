import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from trpl.rollouts import make_environment

REACHERS = ["trpl/Reacher5Sparse-v0", "trpl/Reacher5SparsePaper-v0"]
TARGET, VELOCITIES, TO_TARGET = slice(10, 12), slice(12, 17), slice(17, 20)


@pytest.fixture(params=REACHERS)
def reacher(request):
    env = make_environment(request.param)
    yield env
    env.close()


@pytest.mark.filterwarnings("ignore:.*infinity. This is probably too:UserWarning")  # velocities have no bounds
def test_reacher_passes_gymnasiums_checker(reacher):
    check_env(reacher.unwrapped, skip_render_check=True)


def test_masses(reacher):
    model = reacher.unwrapped.model
    for n in range(5):
        assert model.body(f"link{n}").mass[0] == pytest.approx(0.0356, abs=5e-5)
    assert model.body("fingertip").mass[0] == pytest.approx(0.00419, abs=5e-6)
    assert model.body("target").mass[0] == pytest.approx(0.00305, abs=5e-6)


def test_mechanics(reacher):
    model = reacher.unwrapped.model
    assert (model.opt.timestep, model.opt.integrator) == (0.01, mujoco.mjtIntegrator.mjINT_RK4)
    assert reacher.unwrapped.dt == pytest.approx(0.02)
    np.testing.assert_array_equal(model.dof_armature, [1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(model.dof_damping, [1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(model.jnt_limited, [0, 0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(model.jnt_range[4], [-3, 3])
    np.testing.assert_array_equal(model.actuator_gear[:, 0], [200] * 5)
    assert not model.geom_contype.any()
    assert not model.geom_conaffinity.any()
    np.testing.assert_array_equal(reacher.action_space.high, np.ones(5))


def test_full_torque_for_a_second(reacher):
    reacher.reset(seed=0)
    for _ in range(50):
        observation, *_ = reacher.step(np.array([1.0, 0, 0, 0, 0]))
    assert observation[VELOCITIES][0] == pytest.approx(125, abs=0.5)


def test_reach_and_layout(reacher):
    observation, _ = reacher.reset(seed=0)
    env = reacher.unwrapped
    angles, target = np.array([0.3, -0.2, 0.5, 0.1, -0.4]), np.array([0.11, -0.07])
    env.set_state(np.append(angles, target), np.array([1.0, 2, 3, 4, 5, 0, 0]))
    observation = env._observation()
    assert observation.shape == (21,)
    np.testing.assert_allclose(observation[:5], np.cos(angles))
    np.testing.assert_allclose(observation[5:10], np.sin(angles))
    np.testing.assert_allclose(observation[TARGET], target)
    np.testing.assert_allclose(observation[VELOCITIES], [1, 2, 3, 4, 5])
    bearing, lengths = np.cumsum(angles), np.array([0.1, 0.1, 0.1, 0.1, 0.11])
    fingertip = np.array([lengths @ np.cos(bearing), lengths @ np.sin(bearing)])
    np.testing.assert_allclose(observation[TO_TARGET], [*(fingertip - target), 0.0], atol=1e-12)
    env.set_state(np.zeros(7), np.zeros(7))
    np.testing.assert_allclose(env._observation()[TO_TARGET], [0.51, 0, 0], atol=1e-12)


def test_observations_are_of_the_state_reached(reacher):
    """Fingertip and angles belong to the same moment, also after simulating."""
    reacher.reset(seed=0)
    for _ in range(20):
        observation, *_ = reacher.step(np.full(5, 0.5))
    bearing, lengths = np.cumsum(reacher.unwrapped.data.qpos[:5]), np.array([0.1, 0.1, 0.1, 0.1, 0.11])
    fingertip = np.array([lengths @ np.cos(bearing), lengths @ np.sin(bearing)])
    np.testing.assert_allclose(observation[TO_TARGET][:2], fingertip - observation[TARGET], atol=1e-12)


def test_reset_distribution(reacher):
    observations = np.array([reacher.reset(seed=seed)[0] for seed in range(300)])
    angles = np.arctan2(observations[:, 5:10], observations[:, :5])
    assert 0.09 < np.abs(angles).max() <= 0.1
    assert 0.0045 < np.abs(observations[:, VELOCITIES]).max() <= 0.005
    radius = np.linalg.norm(observations[:, TARGET], axis=1)
    assert 0.49 < radius.max() <= 0.5
    assert np.mean(radius < 0.25) == pytest.approx(0.25, abs=0.08)  # uniform in the disc, not in the radius
    assert (observations[:, 20] == 0).all()


def test_reward_is_of_the_state_before_the_action_and_the_end_is_terminal(reacher):
    observation, _ = reacher.reset(seed=1)
    generator = np.random.default_rng(0)
    for step in range(1, 201):
        before, action = observation, 1.5 * generator.normal(size=5)  # beyond the motors' range: the raw action pays
        observation, reward, terminated, truncated, _ = reacher.step(action)
        expected = -(action @ action)
        if step == 200:
            expected -= 200 * np.linalg.norm(before[TO_TARGET]) + np.linalg.norm(before[VELOCITIES])
        assert reward == pytest.approx(expected, rel=1e-12)
        assert observation[20] == step
        assert (terminated, truncated) == (step == 200, False)


def test_motors_are_clamped_by_the_simulator(reacher):
    reached = []
    for torque in (1.0, 3.0):
        reacher.reset(seed=0)
        reached.append(reacher.step(np.full(5, torque))[0])
    np.testing.assert_array_equal(reached[0], reached[1])


@pytest.mark.parametrize(("env_id", "moves"), [(REACHERS[0], False), (REACHERS[1], True)])
def test_only_the_papers_targets_bounce(env_id, moves):
    env = make_environment(env_id)
    env.reset(seed=0)
    env.unwrapped.set_state(np.array([0, 0, 0, 0, 0, 0.4, 0.1]), np.zeros(7))
    for _ in range(50):
        observation, *_ = env.step(np.zeros(5))
    assert (abs(observation[TARGET][0] - 0.4) > 0.05) == moves
    assert observation[TARGET][1] == pytest.approx(0.1, abs=1e-9)  # inside its limit either way


def test_wrong_actions_are_refused(reacher):
    reacher.reset(seed=0)
    with pytest.raises(ValueError, match=r"action has shape \(1,\), expected \(5,\)"):
        reacher.step(np.zeros(1))


def test_humanoid_without_contact_forces():
    paper, plain = make_environment("trpl/HumanoidPaper-v4"), make_environment("Humanoid-v4")
    assert paper.spec.max_episode_steps == 1000
    a, b = paper.reset(seed=0)[0], plain.reset(seed=0)[0]
    action = np.full(17, 0.1, np.float32)
    for _ in range(30):
        np.testing.assert_array_equal(a[:-84], b[:-84])
        assert not a[-84:].any()
        (a, reward_a, *_), (b, reward_b, *_) = paper.step(action), plain.step(action)
        assert reward_a == reward_b  # within the motors' range the cost is the same
    assert b[-84:].any()


def control_costs(env_id, actions):
    """What each action costs in the first step of an episode."""
    env, costs = make_environment(env_id), []
    for action in actions:
        env.reset(seed=0)
        costs.append(-env.step(action)[4]["reward_quadctrl"])
    env.close()
    return np.array(costs)


def test_humanoids_control_cost_is_of_the_clamped_control():
    """MuJoCo before 2.2.1: a policy of deviation 1 pays 0.1 · 17 · E[min(|a|, 0.4)²] = 0.215, not 0.1 · 17 = 1.70."""
    actions = np.random.default_rng(0).standard_normal((2000, 17)).astype(np.float32)
    assert control_costs("trpl/HumanoidPaper-v4", actions).mean() == pytest.approx(0.215, abs=0.002)
    assert control_costs("Humanoid-v4", actions).mean() == pytest.approx(1.70, abs=0.03)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_humanoids_control_cost_has_a_largest_value(sign):
    full, beyond = control_costs("trpl/HumanoidPaper-v4", [np.full(17, sign * a, np.float32) for a in (0.4, 2.0)])
    assert full == pytest.approx(0.272, abs=1e-6)
    assert beyond == pytest.approx(0.272, abs=1e-12)


def test_registered_under_our_name():
    assert {name for name in gym.registry if name.startswith("trpl/")} == {
        *REACHERS,
        "trpl/EpisodicReacher5-v0",
        "trpl/HumanoidPaper-v4",
    }
