"""Several cores for one run: the same bits as one after the other, also after a restart."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import gymnasium as gym
import jax
import numpy as np
import pytest
from worlds import LinearActor

from trpl.algorithms import make_algorithm
from trpl.errors import FaultyEnvironmentError
from trpl.policies.acting import make_actor
from trpl.presets import preset
from trpl.rollouts import Collector, local_lanes
from trpl.runs.environments import make_collector

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


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {"policy": "beta"}),
        ("Pendulum-v1", {"policy": "squashed", "normalise_rewards": True, "reward_clip": 5.0}),
        ("Hopper-v4", {"contextual": True, "covariance": "full", "normalise_observations": False}),
        ("Hopper-v4", {"as_released": True}),
    ],
)
def test_threads_give_the_bits_of_sync_with_every_kind_of_policy(env_id, settings, monkeypatch):
    monkeypatch.setattr(local_lanes, "num_cores", lambda: 2)
    monkeypatch.setattr(local_lanes, "TURN", 7)
    found = []
    for way in ("sync", "threads"):
        config = preset("kl", env_id, num_envs=3, vectorisation=way, rollout_size=3072, seed=5, **settings)
        with contextlib.closing(make_collector(config)) as lanes:
            algorithm = make_algorithm(config, obs_size=lanes.observation_size, head=lanes.head)
            actor = make_actor(algorithm.init(jax.random.key(0)).policy, algorithm.policy.head)
            rollouts = [lanes.collect(actor, num_steps=60, iteration=i) for i in range(2)]
            arrays, _ = lanes.state()
            parts = [*rollouts[0], *rollouts[1], *(arrays[name] for name in sorted(arrays))]
            found.append([np.ascontiguousarray(part).tobytes() for part in parts])
    assert found[0] == found[1]


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
    arrays, meta = threads.state()
    going_on = threads.collect(fine, num_steps=5, iteration=2)  # is not affected
    other = collector("sync")
    other.restore(arrays, meta)  # each lane stopped where its environment did
    np.testing.assert_array_equal(other.collect(fine, num_steps=5, iteration=2).actions, going_on.actions)
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


def test_an_error_in_a_process_is_told_once(recwarn, tmp_path, monkeypatch):
    text = "import gymnasium, worlds\ngymnasium.register('Raises-v0', lambda **kw: worlds.Broken(fault='raises', **kw))"
    (tmp_path / "raising.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    processes = collector("processes", num_envs=2, env_id="raising:Raises-v0")
    with pytest.raises(FaultyEnvironmentError, match="step raised ZeroDivisionError: the motor is off") as found:
        processes.collect(LinearActor(2, 1), num_steps=20, iteration=0)
    processes.close()
    assert not recwarn  # Gymnasium's, with the traceback in the process
    assert "Traceback" in "".join(found.value.__notes__)


def test_processes_leave_sigterm_to_the_run_and_end_with_it():
    """A batch system sends it to the whole process group; the run then ends its epoch and saves."""
    processes = collector("processes", num_envs=2)
    workers = processes.lanes._vector.processes
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
    processes.collect(LinearActor(11, 3), num_steps=5, iteration=0)
    processes.close()
    assert not any(worker.is_alive() for worker in workers)


def test_nobody_needs_to_close_processes_for_the_program_to_end():
    program = (
        "from trpl.rollouts import Collector\nif __name__ == '__main__':\n    kept = "
        "Collector('Pendulum-v1', num_envs=1, vectorisation='processes', seed=0)\n    print('made')"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "made"


def test_processes_answer_in_turns_so_that_the_watchdog_sees_them_step(tmp_path, monkeypatch):
    text = """
import time, gymnasium, worlds

class Sleeps(worlds.Counter):
    def step(self, action):
        time.sleep(0.1)
        return super().step(action)

gymnasium.register("Sleeps-v0", Sleeps)
"""
    (tmp_path / "sleeping.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    processes = collector("processes", num_envs=1, env_id="sleeping:Sleeps-v0")
    before = processes.lanes.position()
    processes.collect(LinearActor(2, 1), num_steps=6, iteration=0)  # 0.6 seconds, a turn takes 0.2
    assert processes.lanes.position() > before
    processes.close()
