"""`trpl.train` and `trpl.load`: an environment as name, object or callable, callbacks, table and plot."""

import signal

import gymnasium as gym
import numpy as np
import pytest

import tiny
import trpl
from trpl.errors import ConfigError, FaultyEnvironmentError, RunError, UnknownEnvironmentError

SMALL = {
    "rollout_size": 32, "minibatch_size": 16, "policy_epochs": 1, "value_epochs": 1, "hidden_sizes": (4,),
    "hidden_sizes_vf": (4,), "eval_episodes": 1, "eval_every": 1, "progress": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    seen = []
    found = trpl.train(
        "ppo-m", tiny.Point, steps=128, out=tmp_path_factory.mktemp("api") / "run",
        callbacks=[lambda steps, scalars: seen.append((steps, scalars["kl"]))], seed=2, **SMALL,
    )  # fmt: skip
    assert [steps for steps, _ in seen] == [32, 64, 96, 128]
    return found


def test_table_and_policy(run):
    table = run.table()
    assert table["steps"].tolist() == [32, 64, 96, 128]
    assert run.final_return == pytest.approx(table["evaluation_return"].mean())
    assert run.config.seed == 2
    assert run.policy(np.zeros(2)).shape == (2,)
    assert len(run.evaluate(episodes=3).returns) == 3
    with pytest.raises(ConfigError, match="episodes must be at least 1, not 0"):
        run.evaluate(episodes=0)
    with pytest.raises(ConfigError, match="seed must be at least 0, not -3"):
        run.evaluate(seed=-3)


def test_it_plots_itself(run):
    assert len(run.plot().axes) == 2
    assert run._repr_png_().startswith(b"\x89PNG")


def test_load_and_best(run):
    again = trpl.load(run.folder)
    assert again == run
    assert trpl.load(run.folder / "best").checkpoint == run.best.checkpoint
    with pytest.raises(RunError):
        trpl.load(run.folder.parent)


def test_a_run_that_was_never_evaluated(tmp_path):
    never = trpl.train("ppo-m", tiny.Point, steps=32, out=tmp_path / "run", **{**SMALL, "eval_every": 0})
    assert never.final_return is None
    assert never._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(RunError, match="run has no best checkpoint: it was not evaluated yet"):
        _ = never.best


def test_an_object_and_arguments(tmp_path):
    env = tiny.Point()
    found = trpl.train(
        "trpo", env, steps=32, out=tmp_path / "a", **{k: v for k, v in SMALL.items() if k != "policy_epochs"}
    )
    assert found.config.env_id.startswith("local/Point-v")
    assert not hasattr(env, "x")  # copies were trained on
    found = trpl.train("ppo-m", "Pendulum-v1", steps=32, out=tmp_path / "b", env_kwargs={"g": 1.5}, **SMALL)
    assert found.config.env_kwargs == {"g": 1.5}
    with pytest.raises(FaultyEnvironmentError, match="handed over as an object: give g when you make that object"):
        trpl.train("ppo-m", env, out=tmp_path / "c", env_kwargs={"g": 1.5}, **SMALL)
    with pytest.raises(ConfigError, match=r"'processes' needs an environment by its name.*'threads' takes it"):
        trpl.train("ppo-m", env, out=tmp_path / "c", vectorisation="processes", **SMALL)
    assert not (tmp_path / "c").exists()
    with pytest.raises(TypeError, match="a callable that makes one, not 3"):
        trpl.train("kl", 3)


class Failing(tiny.Point):
    """Fails in its fifth episode, before the first checkpoint."""

    def reset(self, **options):
        self.episodes = getattr(self, "episodes", 0) + 1
        if self.episodes == 5:
            raise OSError("the robot fell over")
        return super().reset(**options)


def test_an_object_of_another_process_is_handed_over_again(tmp_path):
    """Advice to resume such a run is what works: no other process knows the name of its environment."""
    folder = tmp_path / "run"
    command = rf"continue.*`trpl.load\('{folder}', env=env\).resume\(\)`"
    with pytest.raises(FaultyEnvironmentError, match=rf"No checkpoint was due yet.*{command}"):
        trpl.train("ppo-m", Failing(), steps=64, out=folder, **SMALL)
    with pytest.raises(RunError, match=command):
        trpl.train("ppo-m", tiny.Point(), steps=64, out=folder, **SMALL)
    name = trpl.load(folder).config.env_id
    del gym.registry[name]  # as in another process
    with pytest.raises(UnknownEnvironmentError, match=rf"'{name}'.*trpl.load\(RUN, env=it\)"):
        trpl.load(folder).resume(progress=False)
    assert trpl.load(folder, env=tiny.Point()).resume(progress=False).final_return is not None
    assert gym.registry[name]


def test_an_environment_known_by_its_name_is_not_handed_over(tmp_path):
    named = trpl.train("ppo-m", "Pendulum-v1", steps=32, out=tmp_path / "run", **SMALL)
    with pytest.raises(ConfigError, match="trained on Pendulum-v1 by its name"):
        trpl.load(named.folder, env=tiny.Point())


def test_going_on_for_longer(run, tmp_path):
    """A copy, since the run is shared."""
    import shutil

    shutil.copytree(run.folder, tmp_path / "run")
    longer = trpl.load(tmp_path / "run").resume(steps=192, progress=False)
    assert len(longer.table()["epoch"]) == 6


def test_arguments_reach_every_environment():
    from trpl.rollouts import Collector, Evaluator, Task

    task = Task("Pendulum-v1", {"g": 2.5})
    collector, evaluator = Collector(task, num_envs=2, seed=0), Evaluator(task, seed=0)
    for environment in (*(lane.environment for lane in collector.lanes.lanes), evaluator.environment):
        assert environment.gym_env.unwrapped.g == 2.5
    assert isinstance(evaluator.environment.gym_env, gym.Env)


def test_a_callback_ends_the_run_with_a_false_of_numpy_and_raises_its_own_errors(tmp_path):
    ended = trpl.train("ppo-m", tiny.Point, steps=64, out=tmp_path / "a", callbacks=[lambda *_: np.bool_(0)], **SMALL)
    assert ended.table()["epoch"].tolist() == [1]
    missing = tmp_path / "nowhere" / "file"
    with pytest.raises(FileNotFoundError):  # not "the run folder cannot be written"
        trpl.train("ppo-m", tiny.Point, steps=64, out=tmp_path / "b", callbacks=[lambda *_: missing.open()], **SMALL)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_the_loop_that_trains_too_after_saving(tmp_path, number, raised):
    def leave(*_):
        raise SystemExit

    before = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: leave}
    before = {kind: signal.signal(kind, handler) for kind, handler in before.items()}
    try:
        with pytest.raises(raised):
            trpl.train(
                "ppo-m", tiny.Point, steps=128, out=tmp_path / "run", **SMALL,
                callbacks=[lambda steps, _: signal.raise_signal(number) if steps == 64 else None],
            )  # fmt: skip
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    assert trpl.load(tmp_path / "run").table()["epoch"].tolist() == [1, 2]
    assert trpl.load(tmp_path / "run").resume(progress=False).table()["epoch"].tolist() == [1, 2, 3, 4]


def test_a_single_callback_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match=r"callbacks=\[function\]"):
        trpl.train("kl", "Pendulum-v1", out=tmp_path / "run", callbacks=lambda steps, scalars: None)
    assert not (tmp_path / "run").exists()
