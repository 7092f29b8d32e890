"""Several cores for one run: the same bits as one after the other, also after a restart."""

import json
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest
from worlds import LinearActor

from trpl.errors import FaultyEnvironmentError
from trpl.rollouts import Collector, local_lanes

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


class Watched(LinearActor):
    """Remembers which threads act; from the given step on, an error in another thread than the main one."""

    def __init__(self, *args, failing_at=None):
        super().__init__(*args)
        self.threads, self.num_steps, self.failing_at = set(), 0, failing_at

    def sample(self, observations, noise):
        self.threads.add(threading.current_thread())
        self.num_steps += 1
        late = self.failing_at is not None and self.num_steps > self.failing_at
        if late and threading.current_thread() is not threading.main_thread():
            raise ZeroDivisionError("no action")
        return super().sample(observations, noise)


def test_threads_share_the_lanes_and_an_error_in_any_reaches_the_caller(monkeypatch):
    monkeypatch.setattr(local_lanes, "num_cores", lambda: 2)
    threads = collector("threads")
    fine, failing = Watched(11, 3), Watched(11, 3, failing_at=40)
    threads.collect(fine, num_steps=300, iteration=0)
    assert len(fine.threads) == 2
    with pytest.raises(ZeroDivisionError, match="no action"):
        threads.collect(failing, num_steps=1000, iteration=1)
    assert failing.num_steps < 2000  # the others do not finish the rollout
    threads.collect(fine, num_steps=5, iteration=2)  # is not affected
    threads.close()


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
        threads = collector("threads", env_id="test/Fails-v0")
        with pytest.raises(FaultyEnvironmentError, match=r"test/Fails-v0 \(environment \d\), episode 1, step 1"):
            threads.collect(LinearActor(2, 1), num_steps=5, iteration=0)
        threads.close()
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
        else:
            self.entered.wait()
            if self.error is not None:
                raise self.error
        return np.zeros(2), 0.0, False, False, {}

    def close(self):
        type(self).closed += 1


@pytest.fixture
def stuck(monkeypatch):
    """Two environments and two threads; the helper never leaves its environment."""
    for name, fresh in (("entered", threading.Event()), ("released", threading.Event()), ("closed", 0)):
        monkeypatch.setattr(Stuck, name, fresh)
    monkeypatch.setattr(local_lanes, "num_cores", lambda: 2)
    monkeypatch.setattr(local_lanes, "PATIENCE", 0.1)
    monkeypatch.setitem(gym.registry, "test/Stuck-v0", gym.envs.registration.EnvSpec("test/Stuck-v0", Stuck))
    threads = collector("threads", num_envs=2, env_id="test/Stuck-v0")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    yield threads
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
        stuck.collect(LinearActor(2, 1), num_steps=2, iteration=0)
    with pytest.raises(RuntimeError, match="interrupted and may still be running"):
        stuck.collect(LinearActor(2, 1), num_steps=2, iteration=0)
    stuck.close()
    assert Stuck.closed == 0  # not under the hands of the thread
    Stuck.released.set()
    stuck.close()
    assert Stuck.closed == 2


def test_a_process_that_was_killed_is_named():
    processes = collector("processes", num_envs=2)
    actor = LinearActor(11, 3)
    processes.collect(actor, num_steps=5, iteration=0)
    processes.lanes._vector.processes[1].kill()
    with pytest.raises(FaultyEnvironmentError, match=r"Hopper-v4: a process ended by itself \(environment 1 with exit"):
        processes.collect(actor, num_steps=5, iteration=1)
    processes.close()


def test_processes_answer_in_turns_so_that_the_watchdog_sees_them_step():
    processes = collector("processes", num_envs=1, env_id="Humanoid-v4")
    processes.collect(LinearActor(376, 17), num_steps=5, iteration=0)  # less than a turn
    before = processes.lanes.position()
    processes.collect(LinearActor(376, 17), num_steps=1000, iteration=1)
    assert processes.lanes.position() > before
    processes.close()
