"""TensorBoard events, written synchronously: there is no thread or queue that a full disk would block."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trpl.runs.folder import TENSORBOARD

SECONDS_BETWEEN_FLUSHES = 30.0
Write = Callable[[int, Mapping[str, float | None]], None]


@contextlib.contextmanager
def event_writer(folder: Path, *, done: int) -> Iterator[Write]:
    """Yield a function that writes scalars as TensorBoard events; purge events after the `done` steps."""
    record_writer, event, session_log, summary = tensorboard_classes()
    place = folder / TENSORBOARD
    place.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
    file, flushed = record_writer(str(place / name)), time.monotonic()

    def put(**content: Any) -> None:
        file.write(event(wall_time=time.time(), **content).SerializeToString())

    def write(steps: int, scalars: Mapping[str, float | None]) -> None:
        nonlocal flushed
        values = [summary.Value(tag=n, simple_value=v) for n, v in scalars.items() if v is not None]
        put(step=steps, summary=summary(value=values))
        if time.monotonic() > flushed + SECONDS_BETWEEN_FLUSHES:
            file.flush()
            flushed = time.monotonic()

    try:
        put(file_version="brain.Event:2")
        if done:
            put(step=done + 1, session_log=session_log(status=session_log.START))
        yield write
    finally:
        file.close()


def tensorboard_classes() -> tuple[Any, Any, Any, Any]:
    """Import tensorboardX's RecordWriter, Event, SessionLog and Summary with PyTorch hidden.

    tensorboardX imports PyTorch if installed, to draw graphs: seconds and 180 MB that scalars do not need.
    """
    missing = object()
    before = sys.modules.get("torch", missing)
    if before is missing:
        sys.modules["torch"] = None  # type: ignore[assignment]  # makes `import torch` raise ImportError
    try:
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]
        from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
        from tensorboardX.record_writer import RecordWriter
    finally:
        if before is missing:
            del sys.modules["torch"]
    return RecordWriter, Event, SessionLog, Summary
