"""Several cores for one run: the same bits as one after the other, also after a restart."""

import json

import gymnasium as gym
import numpy as np
import pytest
from worlds import LinearActor

from trpl.errors import FaultyEnvironmentError
from trpl.rollouts import Collector
from trpl.rollouts.batches import make_environments

WAYS = ("threads", "processes")


def collected(collector, iterations):
    """Everything a rollout holds, as bytes."""
    actor = LinearActor(collector.observation_size, collector.action_size, std=1.0)
    found = []
    for iteration in iterations:
        rollout = collector.collect(actor, num_steps=60, iteration=iteration)
        found.append(b"".join(np.ascontiguousarray(part).tobytes() for part in rollout))
    return found


def collector(vectorisation, *, num_envs=3, env_id="Hopper-v4"):
    return Collector(env_id, num_envs=num_envs, vectorisation=vectorisation, seed=7)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_bits_as_sync_also_from_a_checkpoint(way):
    plain, other = collector("sync"), collector(way)
    wanted = collected(plain, (0, 1))
    assert collected(other, (0, 1)) == wanted
    arrays, meta = other.state()
    expected_arrays, expected_meta = plain.state()
    assert json.loads(json.dumps(meta)) == json.loads(json.dumps(expected_meta))
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: array.tobytes() for name, array in expected_arrays.items()
    }
    resumed = collector(way)
    resumed.restore(arrays, json.loads(json.dumps(meta)))
    wanted = collected(plain, (2,))
    assert collected(resumed, (2,)) == wanted
    for each in (plain, other, resumed):
        each.close()


def test_threads_say_which_environment_failed():
    class Fails(gym.Env):
        observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
        action_space = gym.spaces.Box(-1.0, 1.0, (1,))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2), {}

        def step(self, action):
            raise ZeroDivisionError("the motor is off")

    gym.register("test/Fails-v0", Fails)
    try:
        environments = make_environments("test/Fails-v0", num_envs=3, seed=0, vectorisation="threads")
        arrays = {"observations": environments.begin(), "rewards": np.zeros(3)}
        arrays |= {"terminated": np.zeros(3, bool), "truncated": np.zeros(3, bool)}
        with pytest.raises(FaultyEnvironmentError, match=r"test/Fails-v0 \(environment \d\), episode 1, step 1"):
            environments.step(np.zeros((3, 1), np.float32), **arrays)
        environments.close()
    finally:
        del gym.registry["test/Fails-v0"]


def test_one_environment_in_a_thread_is_stepped_by_itself():
    environments = make_environments("Hopper-v4", num_envs=1, seed=0, vectorisation="threads")
    assert environments.single is not None
    environments.close()
