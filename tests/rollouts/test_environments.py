import json
import sys
from decimal import Decimal
from fractions import Fraction

import gymnasium as gym
import numpy as np
import pytest
import worlds
from gymnasium.wrappers import TimeLimit

from trpl.errors import FaultyEnvironmentError, ReplayError, UnknownEnvironmentError
from trpl.rollouts import Collector, Environment, environments, make_environment
from trpl.rollouts.task_spec import Task


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raises", "step raised ZeroDivisionError: the motor is off"),
        ("nan observation", r"observation is not finite at index \[1\]"),
        ("inf observation", r"observation is not finite at index \[0\]"),
        ("nan reward", "reward is nan"),
        ("no reward", "reward is None"),
        ("huge reward", "reward is 1000"),
        ("shape", r"observation has shape \(1,\), its space has \(2,\)"),
        ("type", "observation is a dict"),
    ],
)
def test_faults_name_environment_episode_and_step(fault, words):
    gym.register("test/Faulty-v0", worlds.Broken, kwargs={"fault": fault})
    try:
        collector = Collector("test/Faulty-v0", seed=0)
        collector.collect(worlds.LinearActor(2, 1), num_steps=7, iteration=0)
        with pytest.raises(
            FaultyEnvironmentError, match=rf"test/Faulty-v0 \(environment 0\), episode 2, step 3: {words}"
        ):
            collector.collect(worlds.LinearActor(2, 1), num_steps=7, iteration=1)
    finally:
        del gym.registry["test/Faulty-v0"]


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("NoSuchEnv-v0", r"there is no environment 'NoSuchEnv-v0' \(your own is named"),
        ("Hoper-v4", "did you mean 'Hopper-v4'"),
        ("hopper-v4", "did you mean 'Hopper-v4'"),
        ("Hopper-v9", "did you mean 'Hopper-v5'"),
        ("trpl/Reacher-v0", "did you mean 'trpl/Reacher5Sparse-v0'"),
        ("nowhere.to.be.found:Mine-v0", "no module 'nowhere.to.be.found' to find 'Mine-v0' in: install it"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(env_id, words):
    with pytest.raises(UnknownEnvironmentError, match=words):
        make_environment(env_id)


def test_a_package_that_would_register_the_task_is_named(monkeypatch):
    monkeypatch.setitem(environments.REGISTERING_PACKAGES, "Maze-", "package_of_mazes")
    with pytest.raises(UnknownEnvironmentError, match="Maze-5x5-v0 needs the module 'package_of_mazes', which is not"):
        make_environment("Maze-5x5-v0")


def test_an_environment_that_cannot_be_made_says_why(monkeypatch):
    def broken(**_):
        raise OSError("no robot is connected")

    def lacks(**_):
        raise ModuleNotFoundError("No module named 'robot_driver'", name="robot_driver")

    for entry, error, words in (
        (broken, FaultyEnvironmentError, "test/New-v0 could not be made: OSError: no robot is connected"),
        (lacks, UnknownEnvironmentError, "test/New-v0 needs the module 'robot_driver', which is not installed"),
    ):
        monkeypatch.setitem(gym.registry, "test/New-v0", gym.envs.registration.EnvSpec("test/New-v0", entry))
        with pytest.raises(error, match=words):
            make_environment("test/New-v0")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ((np.zeros(2), 0.0, False, {}), r"step did not return \(observation, reward, terminated, truncated, info\)"),
        (None, r"step did not return \(observation, reward"),
    ],
)
def test_a_step_that_returns_something_else(returned, words, monkeypatch):
    environment = Environment("test/Endless-v0", seed=0)
    environment.begin()
    monkeypatch.setattr(environment, "_step", lambda action: returned)
    with pytest.raises(FaultyEnvironmentError, match=words):
        environment.step(np.zeros(1))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.array, int, Fraction, Decimal])
def test_rewards_of_any_type_are_summed_in_double_precision(kind, monkeypatch):
    environment = Environment("test/Endless-v0", seed=0)
    environment.begin()
    monkeypatch.setattr(environment, "_step", lambda action: (np.zeros(2), kind(2.0), False, False, {}))
    assert type(environment.step(np.zeros(1))[1]) is float


def test_the_shortest_of_several_time_limits_holds(monkeypatch):
    for limits in ((3, 20), (20, 3)):
        limited = TimeLimit(TimeLimit(worlds.Counter(), limits[0]), limits[1])
        spec = gym.envs.registration.EnvSpec("test/Limited-v0", lambda env=limited, **_: env)
        monkeypatch.setitem(gym.registry, "test/Limited-v0", spec)
        environment = Environment("test/Limited-v0", seed=0)
        environment.begin()
        assert [environment.step(np.zeros(1))[3] for _ in range(3)] == [False, False, True]


def test_an_environment_that_exits_does_not_end_the_process_in_silence(monkeypatch):
    environment = Environment("test/Endless-v0", seed=0)
    environment.begin()
    monkeypatch.setattr(environment, "_step", lambda action: sys.exit(0))
    with pytest.raises(FaultyEnvironmentError, match="step raised SystemExit: 0"):
        environment.step(np.zeros(1))


def test_an_environment_cannot_change_the_record_of_actions():
    environment = Environment("test/Meddles-v0", seed=0)
    environment.begin()
    action = np.ones(1, np.float32)
    environment.step(action)
    assert action == 1.0


@pytest.mark.parametrize("env_id", ["HalfCheetah-v4", "Hopper-v5", "test/Drift-v0"])
def test_replay_leads_to_the_same_place_bit_for_bit(env_id):
    generator = np.random.default_rng(0)
    original = Environment(env_id, seed=3)
    for length in (7, 23):
        observation = original.begin()
        for _ in range(length):
            observation, *_ = original.step(generator.normal(size=original.action_size).astype(np.float32))
    actions, meta = original.state()
    assert actions.shape == (23, original.action_size)

    again = Environment(env_id, seed=4)
    again.restore(actions, meta, observation=observation)
    assert (again.episode, again.num_steps) == (2, 23)
    for _ in range(5):
        action = generator.normal(size=original.action_size).astype(np.float32)
        expected, got = original.step(action), again.step(action)
        assert expected[0].tobytes() == got[0].tobytes()
        assert expected[1:] == got[1:]
    assert original.begin().tobytes() == again.begin().tobytes()  # the generator is where it was, too


def test_arguments_of_the_environment_may_have_any_name():
    """Also those that this package uses itself; a render mode of the caller takes precedence."""
    made = []

    def entry(**named):
        made.append(named)
        return worlds.Counter()

    gym.register("test/Named-v0", entry)
    try:
        task = Task("test/Named-v0", {"env_id": 3, "task": 4, "index": 5})
        Environment(task, seed=0)
        Environment(Task("test/Named-v0", {"render_mode": "rgb_array"}), seed=0)
        Environment(Task("test/Named-v0", {"render_mode": "human"}), seed=0, render_mode="rgb_array")
    finally:
        gym.registry.pop("test/Named-v0")
    assert made == [{"env_id": 3, "task": 4, "index": 5}, {"render_mode": "rgb_array"}, {"render_mode": "rgb_array"}]


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_any_generator_of_numpy_is_carried_over_a_restart(kind):
    """All but PCG64 have arrays in their state, which JSON does not; saving the first checkpoint failed."""
    original, again = (Environment("test/Drift-v0", seed=seed) for seed in (3, 4))
    for environment in (original, again):
        environment.gym_env.unwrapped.np_random = np.random.Generator(kind(environment.index))
    original.begin()
    for _ in range(3):
        observation, *_ = original.step(np.ones(1, np.float32))
    actions, meta = original.state()
    again.restore(actions, json.loads(json.dumps(meta)), observation=observation)
    assert original.begin().tobytes() == again.begin().tobytes()


def test_an_environment_that_is_not_deterministic_is_found_out():
    original = Environment("test/Forgetful-v0", seed=0)
    original.begin()
    observation, *_ = original.step(np.zeros(1, np.float32))
    actions, meta = original.state()
    with pytest.raises(ReplayError, match="not deterministic"):
        Environment("test/Forgetful-v0", seed=0).restore(actions, meta, observation=observation)


def test_making_v4_tasks_is_silent(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_environment("HalfCheetah-v4").close()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    assert list(tmp_path.iterdir()) == []
