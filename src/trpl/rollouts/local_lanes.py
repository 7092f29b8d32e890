"""Lanes in this process, one after the other or in threads."""

import sys
import time
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from trpl.cores import num_cores
from trpl.rollouts.environments import Environment
from trpl.rollouts.lanes import (
    Actor,
    Lane,
    Lanes,
    Part,
    Segment,
    advance,
    joined,
    joined_states,
    separate_states,
    spawned,
)
from trpl.rollouts.normalisation import ObservationNormaliser
from trpl.rollouts.seeds import ENVIRONMENT_STREAM, derived_seed
from trpl.rollouts.task_spec import Task

TURN = 64  # steps before a thread changes to another lane, so that all lanes end at about the same time
PATIENCE = 1.0  # seconds for other threads to leave their environments after an error; they may hang there


class LocalLanes(Lanes):
    """Any Gymnasium environment, N times, one after the other."""

    def __init__(self, task: str | Task, *, num_envs: int, seed: int):
        self.num_envs = num_envs
        environments = [
            Environment(task, seed=derived_seed(seed, n, ENVIRONMENT_STREAM), index=n) for n in range(num_envs)
        ]
        self.observation_size, self.head = environments[0].observation_size, environments[0].head
        self.lanes = [Lane(environment) for environment in environments]

    def begin(self, normaliser: ObservationNormaliser) -> None:
        with normaliser.copies(self.num_envs) as copies:
            for lane, own in zip(self.lanes, copies, strict=True):
                lane.begin(own)

    def collect(
        self, actor: Actor, generator: np.random.Generator, num_steps: int, normaliser: ObservationNormaliser
    ) -> Segment:
        with normaliser.copies(self.num_envs) as copies:
            drawn = spawned(generator, self.num_envs)
            parts = [
                lane.collect(actor, noise, num_steps, own)
                for lane, noise, own in zip(self.lanes, drawn, copies, strict=True)
            ]
            return joined(self._finish(parts))

    def _finish(self, parts: Sequence[Part]) -> Sequence[Segment]:
        """Take all steps of every part."""
        return [segment for part in parts if (segment := advance(part, sys.maxsize)) is not None]

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return joined_states([lane.state() for lane in self.lanes])

    def restore(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bool:
        for lane, saved in zip(self.lanes, separate_states(arrays, meta), strict=True):
            lane.restore(saved)
        return True

    def position(self) -> list[tuple[int, int]]:
        return [lane.environment.position() for lane in self.lanes]

    def close(self) -> None:
        for lane in self.lanes:
            lane.environment.close()


class ThreadedLanes(LocalLanes):
    """The same in threads, one per core, for simulators that release Python's lock; MuJoCo does while it steps."""

    def __init__(self, task: str | Task, *, num_envs: int, seed: int):
        super().__init__(task, num_envs=num_envs, seed=seed)
        self._finished: SimpleQueue[None] = SimpleQueue()  # an entry for each helper of the last rollout that has ended
        self._num_helping = 0  # those that have not; above 0 after a rollout only if one hangs

    def _finish(self, parts: Sequence[Part]) -> Sequence[Segment]:
        if self._still_helping(patience=0.0):
            raise RuntimeError("the environments were interrupted and may still be running: close them, make new ones")
        waiting: SimpleQueue[int] = SimpleQueue()
        segments: list[Segment | None] = [None] * len(parts)
        errors: list[BaseException] = []
        for n in range(len(parts)):
            waiting.put(n)

        def work() -> None:
            try:
                while not errors:
                    n = waiting.get_nowait()
                    segments[n] = advance(parts[n], TURN)
                    if segments[n] is None:
                        waiting.put(n)
            except Empty:  # every lane is done, or with another thread
                pass
            except BaseException as error:  # raised below, in the thread that collects
                errors.append(error)

        def help_and_tell() -> None:
            work()
            self._finished.put(None)

        try:
            for _ in range(min(self.num_envs, num_cores()) - 1):
                self._num_helping += 1
                Thread(target=help_and_tell, daemon=True).start()
            work()
            while not errors and self._still_helping(patience=PATIENCE):
                pass
        except BaseException as error:  # interrupted; the others stop after their turn
            errors.append(error)
        if errors:
            self._still_helping(patience=PATIENCE)
            raise errors[0]
        return [segment for segment in segments if segment is not None]

    def _still_helping(self, *, patience: float) -> bool:
        """Wait for the helpers, at most for so many seconds; return whether one is still in an environment.

        Not by `Thread.join`, which takes a thread for ended when it is interrupted (Python 3.11).
        """
        deadline = time.monotonic() + patience
        try:
            while self._num_helping:
                self._finished.get(timeout=max(0.0, deadline - time.monotonic()))
                self._num_helping -= 1
        except Empty:
            pass
        return self._num_helping > 0

    def close(self) -> None:
        if not self._still_helping(patience=PATIENCE):  # else one hangs in an environment, which cannot be closed then
            super().close()
