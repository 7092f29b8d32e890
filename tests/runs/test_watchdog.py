"""Environments that hang: noticed from outside, at no cost per step."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium as gym
import pytest

import tiny
from trpl.errors import ConfigError, FaultyEnvironmentError
from trpl.rollouts import Environment, local_lanes
from trpl.runs import folder as files
from trpl.runs import guard
from trpl.runs.run import resume, train
from trpl.runs.stopping import stop_requests
from trpl.runs.watchdog import Watchdog

SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]


class Hanging(tiny.Point):
    """Hangs at the third step, in Python."""

    def step(self, action):
        while self.steps == 2:
            time.sleep(0.01)
        return super().step(action)


@pytest.fixture
def hanging(monkeypatch):
    monkeypatch.setitem(gym.registry, "test/Hanging-v0", gym.envs.registration.EnvSpec("test/Hanging-v0", Hanging))
    return "test/Hanging-v0"


def test_a_hanging_environment_is_interrupted_where_it_hangs(hanging, tmp_path):
    environment = Environment(hanging, seed=0)
    environment.begin()
    with stop_requests() as stop, Watchdog(seconds=0.3, env_id=hanging, folder=tmp_path) as watchdog:
        watchdog.interrupt = stop.fail
        started = time.monotonic()
        action = environment.gym_env.action_space.sample()
        environment.step(action)
        environment.step(action)
        with pytest.raises(FaultyEnvironmentError) as raised, watchdog.watching(environment.position):
            environment.step(action)
    assert str(raised.value).startswith(
        "test/Hanging-v0 (environment 0), episode 1, step 3 has not answered for 0.3 s, in test_watchdog.py, line"
    )
    assert "--env-timeout" in str(raised.value)
    assert time.monotonic() - started > 0.3


class HangingElsewhere(tiny.Point):
    """Hangs at the third step, in any thread but the main one."""

    def step(self, action):
        while self.steps == 2 and threading.current_thread() is not threading.main_thread():
            time.sleep(0.01)
        time.sleep(0.002)  # gives every thread an environment
        return super().step(action)


def test_a_run_whose_environment_hangs_in_another_thread_ends_and_names_it(monkeypatch, tmp_path):
    spec = gym.envs.registration.EnvSpec("test/Elsewhere-v0", HangingElsewhere)
    monkeypatch.setitem(gym.registry, "test/Elsewhere-v0", spec)
    monkeypatch.setattr(local_lanes, "num_cores", lambda: 2)
    settings = tiny.config(env_id="test/Elsewhere-v0", env_timeout=1.0, num_envs=2, vectorisation="threads")
    with pytest.raises(FaultyEnvironmentError) as raised:
        train(settings, tmp_path / "run", progress=False)
    words = r"test/Elsewhere-v0 \(environment [01]\), episode \d, step 3 has not answered for 1 s, in test_watchdog.py"
    assert re.match(words, str(raised.value))


def test_a_run_ends_with_what_is_saved_and_how_to_go_on(hanging, tmp_path):
    with pytest.raises(FaultyEnvironmentError, match=r"step 3 has not answered.*No checkpoint was due.*trpl resume"):
        train(tiny.config(env_id=hanging, env_timeout=0.5), tmp_path / "run", progress=False)
    with pytest.raises(FaultyEnvironmentError, match=r"has not answered for 0\.3 s"):
        resume(tmp_path / "run", progress=False, env_timeout=0.3)
    assert files.read_config(tmp_path / "run").env_timeout == 0.5
    with pytest.raises(ConfigError, match="discount cannot change"):
        resume(tmp_path / "run", discount=0.5)


def test_slow_steps_and_time_outside_environments_are_no_hanging(tmp_path):
    told = []
    with Watchdog(seconds=0.2, env_id="any", folder=tmp_path) as watchdog:
        watchdog.interrupt = told.append
        counter = iter(range(1000))
        with watchdog.watching(lambda: next(counter)):
            time.sleep(0.6)
        time.sleep(0.6)
        with watchdog.watching():
            time.sleep(0.1)
        assert watchdog._guard.poll() is None
    assert told == []
    assert watchdog._guard.poll() is not None


def test_nothing_is_started_without_a_time_out_or_outside_the_main_thread(tmp_path):
    with Watchdog(seconds=None, env_id="any", folder=tmp_path) as watchdog, watchdog.watching():
        assert watchdog._guard is None
    started = []

    def elsewhere():
        with Watchdog(seconds=1.0, env_id="any", folder=tmp_path) as watchdog:
            started.append(watchdog._guard)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert started == [None]


@pytest.mark.parametrize(
    ("told", "killed"),
    [
        (b"+\n", True),  # inside, and silent
        (b"+\n.\n", True),
        (b"-\n", False),
        (b"+\n-\n", False),
        (b"+\n!its last words\n", True),
        (b"", False),  # never inside
    ],
)
def test_guard(told, killed):
    """Kills a run that is silent inside an environment, with its last words; leaves one that is elsewhere."""
    run = subprocess.Popen(SLEEPER)
    command = [sys.executable, "-I", "-S", guard.__file__, str(run.pid), "0.03", "it hangs"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        process.stdin.write(told)
        process.stdin.flush()
        if killed:
            assert run.wait(timeout=20) == -9
            words = b"its last words" if b"!" in told else b"it hangs"
            assert process.communicate(timeout=20)[1].strip() == b"trpl: " + words
        else:
            time.sleep(0.03 * guard.NUM_POLLS * 2)
            assert run.poll() is None
            process.communicate(timeout=20)  # closes its input: the run is gone
            assert process.returncode == 0
    finally:
        run.kill()
        run.wait()


def test_the_guard_imports_nothing_of_the_package():
    source = Path(guard.__file__).read_text()
    assert "import trpl" not in source
    assert "from trpl" not in source


def test_a_fault_after_the_last_signal_is_left_to_the_guard():
    with stop_requests() as stop:
        pass
    stop.fail(FaultyEnvironmentError("late"))  # would end the process if it were still sent
    assert stop.fault is not None
