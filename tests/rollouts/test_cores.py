"""Several cores for one run: the same bits as one after the other, also after a restart."""

import json
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest
from worlds import LinearActor

from trpl.cores import num_cores
from trpl.errors import FaultyEnvironmentError
from trpl.rollouts import Collector, batches
from trpl.rollouts.batches import make_environments
from trpl.rollouts.rounds import Round

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


def rounds(environments, *, num):
    """Rounds without policy."""
    size = environments.num_envs
    actions, observations = np.zeros((size, environments.head.action_size), np.float32), environments.begin()
    for _ in range(num):
        yield Round(actions, observations, np.zeros(size), np.zeros(size, bool), np.zeros(size, bool), [])


def test_whichever_thread_computes_a_round_its_error_reaches_the_caller_and_ends_the_run():
    def failing(num):
        yield from rounds(environments, num=num)
        threads.add(threading.current_thread())
        raise ZeroDivisionError("no action")

    environments, threads = make_environments("Hopper-v4", num_envs=4, seed=0, vectorisation="threads"), set()
    for num in range(30):  # the last to finish a round, which is neither always the caller nor always a helper
        with pytest.raises(ZeroDivisionError, match="no action"):
            environments.run(failing(num))
        environments.run(rounds(environments, num=2))  # the next run is not affected
    assert threading.current_thread() in threads
    assert len(threads) > 1 or num_cores() == 1
    environments.close()


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
        with pytest.raises(FaultyEnvironmentError, match=r"test/Fails-v0 \(environment \d\), episode 1, step 1"):
            environments.run(rounds(environments, num=5))
        environments.close()
    finally:
        del gym.registry["test/Fails-v0"]


class Stuck(gym.Env):
    """Does not leave `step` in a helper thread before it is released, and raises there in the main thread."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))
    error: BaseException | None = None
    entered = threading.Event()
    released = threading.Event()
    closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action):
        if threading.current_thread() is not threading.main_thread():
            self.entered.set()
            self.released.wait()
        elif self.error is not None:
            self.entered.wait()
            raise self.error
        return np.zeros(2), 0.0, False, False, {}

    def close(self):
        type(self).closed += 1


@pytest.fixture
def stuck(monkeypatch):
    """Two environments and two threads; the helper never leaves its environment."""
    for name, fresh in (("entered", threading.Event()), ("released", threading.Event()), ("closed", 0)):
        monkeypatch.setattr(Stuck, name, fresh)
    monkeypatch.setattr(batches, "num_cores", lambda: 2)
    monkeypatch.setattr(batches, "PATIENCE", 0.1)
    monkeypatch.setitem(gym.registry, "test/Stuck-v0", gym.envs.registration.EnvSpec("test/Stuck-v0", Stuck))
    environments = make_environments("test/Stuck-v0", num_envs=2, seed=0, vectorisation="threads")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    yield environments
    signal.signal(signal.SIGINT, before)
    Stuck.released.set()


@pytest.mark.parametrize("while_waiting", [False, True])
def test_an_interruption_does_not_wait_for_a_thread_that_hangs_in_an_environment(stuck, monkeypatch, while_waiting):
    if while_waiting:  # the main thread is done with its environment
        timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.start()
    else:
        monkeypatch.setattr(Stuck, "error", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        stuck.run(rounds(stuck, num=2))
    with pytest.raises(RuntimeError, match="interrupted and may still be running"):
        stuck.run(rounds(stuck, num=2))
    stuck.close()
    assert Stuck.closed == 0  # not under the hands of the thread
    Stuck.released.set()
    stuck.close()
    assert Stuck.closed == 2


def test_a_process_that_was_killed_is_named():
    environments = make_environments("Hopper-v4", num_envs=2, seed=0, vectorisation="processes")
    steps = rounds(environments, num=5)
    environments.step(next(steps))
    environments._vector.processes[1].kill()
    with pytest.raises(FaultyEnvironmentError, match=r"Hopper-v4: a process ended by itself \(environment 1 with exit"):
        environments.run(steps)
    environments.close()


def test_one_environment_in_a_thread_is_stepped_by_itself():
    environments = make_environments("Hopper-v4", num_envs=1, seed=0, vectorisation="threads")
    assert environments.single is not None
    environments.close()
