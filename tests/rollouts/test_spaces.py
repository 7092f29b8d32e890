"""Which policy serves which action space, and which vector stands for an observation."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from trpl.errors import UnsupportedSpaceError
from trpl.policies.heads import from_json
from trpl.rollouts import Environment, Task, register_local
from trpl.rollouts.spaces import head_of, observing

BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
ACTIONS = {
    "Discrete": spaces.Discrete(5, start=3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 7, 3], start=[0, 1, -4]),
    "table of MultiDiscrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "MultiBinary": spaces.MultiBinary(4),
    "table of MultiBinary": spaces.MultiBinary([2, 3]),
    "Tuple": spaces.Tuple((BOX, spaces.Discrete(3))),
    "Dict": spaces.Dict(aim=BOX, fire=spaces.MultiBinary(2), gear=spaces.MultiDiscrete([2, 6])),
}
CLIPPED = {"units": "box", "clip": True}


def zeros(head, states=()):
    rng = np.random.default_rng(5)
    layers = {ending.name: rng.normal(size=(*states, ending.size)).astype(np.float32) for ending in head.layers}
    return layers | {name: np.zeros(size, np.float32) for name, size in head.shared.items()}


@pytest.mark.parametrize("name", ACTIONS)
def test_samples_and_modes_are_elements_of_the_space(name):
    space, rng = ACTIONS[name], np.random.default_rng(0)
    head = head_of(space, Task("mine", **CLIPPED))
    for noise in head.noise(rng, 20, ()):
        action = head.sample(zeros(head), noise)
        assert action.shape == (head.action_size,)
        assert action.dtype == np.float32
        assert space.contains(head.take(action))
    assert space.contains(head.take(head.mode(zeros(head))))
    again = from_json(head.to_json())
    assert again == head
    assert space.contains(again.take(head.mode(zeros(head))))


@pytest.mark.parametrize("policy", ["beta", "squashed"])
def test_bounded_policies_stay_inside_a_box(policy):
    head = head_of(BOX, Task("mine", policy=policy))
    outputs = {name: 50.0 * x for name, x in zeros(head, (30,)).items()}
    for noise in head.noise(np.random.default_rng(0), 10, (30,)):
        assert all(map(BOX.contains, head.take(head.sample(outputs, noise))))
    assert from_json(head.to_json()).actions.squash is (policy == "squashed")


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(3), "action space is Text"),
        (spaces.Box(-1.0, 1.0, (84, 84, 3)), "looks like images"),
        (spaces.Box(-1.0, 1.0, ()), r"action space has shape \(\)"),
        (spaces.Box(-3, 3, (2,), np.int64), "action space has dtype int64"),
        (spaces.Tuple((spaces.Tuple((BOX,)),)), "action space is a Tuple of a Tuple"),
    ],
)
def test_unsupported_actions_say_what_is_supported(space, words):
    with pytest.raises(UnsupportedSpaceError, match=f"mine: .*{words}.*; supported are"):
        head_of(space, Task("mine"))


def test_policies_for_boxes_say_where_they_mean_nothing():
    with pytest.raises(UnsupportedSpaceError, match=r"policy 'beta' is for bounded Box actions, .* Discrete\(2\)"):
        head_of(spaces.Discrete(2), Task("mine", policy="beta"))
    with pytest.raises(UnsupportedSpaceError, match="policy 'squashed' needs a bounded action space"):
        head_of(spaces.Box(-1.0, np.inf, (2,)), Task("mine", policy="squashed"))


@pytest.mark.parametrize(
    ("space", "observation", "vector"),
    [
        (spaces.Discrete(4), 2, [0, 0, 1, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (spaces.Box(0, 9, (2, 2)), np.array([[1, 2], [3, 4]], np.float32), [1, 2, 3, 4]),
        (spaces.Dict(a=spaces.Discrete(2), b=BOX), {"a": 1, "b": np.array([0.5, 7.0])}, [0, 1, 0.5, 7.0]),
    ],
)
def test_observations_become_vectors(space, observation, vector):
    size, flatten = observing(space, env_id="mine")
    assert size == len(vector)
    np.testing.assert_allclose(flatten(observation), vector)


def test_text_in_an_observation_is_left_out_aloud():
    space = spaces.Dict(mission=spaces.Text(9), image=BOX)
    with pytest.warns(UserWarning, match="the policy does not see mission"):
        size, flatten = observing(space, env_id="mine")
    np.testing.assert_allclose(flatten({"mission": "go", "image": np.array([0.5, 7.0])}), [0.5, 7.0])
    assert size == 2


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Sequence(BOX), "observation space is Sequence"),
        (spaces.Text(4), "observation space is Text"),
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "looks like images"),
        (spaces.Box(-1.0, 1.0, (0,)), r"observation space has shape \(0,\)"),
    ],
)
def test_unsupported_observations_say_what_is_supported(space, words):
    with pytest.raises(UnsupportedSpaceError, match=f"mine: .*{words}.*; supported are"):
        observing(space, env_id="mine")


def test_an_environment_takes_a_policys_actions_or_its_own():
    taken = []

    class Listens(gym.Env):
        observation_space, action_space = spaces.Discrete(3), ACTIONS["Tuple"]

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return 1, {}

        def step(self, action):
            taken.append(action)
            return 2, 0.0, False, False, {}

    name = register_local(Listens)
    environment = Environment(Task(name, **CLIPPED), seed=0)
    np.testing.assert_array_equal(environment.begin(), [0, 1, 0])
    environment.step(np.array([0.5, 3.0, 2.0], np.float32))
    np.testing.assert_allclose(taken[0][0], [0.5, 10.0])
    assert taken[0][1] == 2
    Environment(Task(name, **CLIPPED), seed=0, own_actions=True).step((np.array([0.1, 0.2]), 1))
    assert taken[1][1] == 1
