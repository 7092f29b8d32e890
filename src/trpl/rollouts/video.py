"""Videos of a policy, also on machines without a screen.

MuJoCo draws through OpenGL. With a screen nothing is needed; without one, on Linux, either EGL (`libegl1`, and
`libgl1` with Mesa's drivers `libgl1-mesa-dri` where there is no GPU) or OSMesa (`libosmesa6`) must be installed. The
environment variable MUJOCO_GL decides between them where it is set; where it is not, whichever library is there is
taken.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trpl.errors import RenderingError
from trpl.rollouts.environments import Environment
from trpl.rollouts.seeds import derived_seed

VIDEO_STREAM = 104
DEFAULT_FPS = 30
GIF_FPS = 50  # most viewers slow down anything faster
FORMATS = (".mp4", ".gif")
HEADLESS_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
NO_OPENGL = (
    "no OpenGL to draw with: there is no screen and neither EGL nor OSMesa. On Debian or Ubuntu install one of them"
    " with `apt install libegl1 libgl1-mesa-dri` or `apt install libosmesa6`, and set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
    " if the right one is not found"
)


class Recording(NamedTuple):
    path: Path
    num_frames: int
    returns: list[float]  # one per episode, raw rewards


def record(
    policy: Callable[[np.ndarray], np.ndarray],
    env_id: str,
    path: str | Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    max_steps: int = 1000,
) -> Recording:
    """Write a video (.mp4 or .gif) of `policy`, a function from raw observation to action.

    Episodes are cut at `max_steps`. Frames go to the file as they are drawn.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"a video is written as {' or '.join(FORMATS)}, not as {path.suffix or path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _headless_backend():
        environment = Environment(env_id, seed=derived_seed(seed, VIDEO_STREAM), render_mode="rgb_array")
        try:
            fps = environment.gym_env.metadata.get("render_fps", DEFAULT_FPS)
            _draw(environment)  # fails before there is a file
            with _writer(path, fps) as append:
                returns, num_frames = [], 0
                for episode in range(episodes):
                    total, frames = _play(
                        environment,
                        policy,
                        append,
                        seed=derived_seed(seed, episode, VIDEO_STREAM),
                        max_steps=max_steps,
                    )
                    returns.append(total)
                    num_frames += frames
        finally:
            environment.close()
    return Recording(path, num_frames, returns)


def _play(
    environment: Environment,
    policy: Callable[[np.ndarray], np.ndarray],
    append: Callable[[np.ndarray], None],
    *,
    seed: int,
    max_steps: int,
) -> tuple[float, int]:
    """Return of one episode and the number of frames appended."""
    observation, total, ended = environment.begin(seed=seed), 0.0, False
    append(_draw(environment))
    while not ended and environment.num_steps < max_steps:
        observation, reward, terminated, truncated = environment.step(np.asarray(policy(observation)))
        append(_draw(environment))
        total, ended = total + reward, terminated or truncated
    return total, environment.num_steps + 1


def _draw(environment: Environment) -> np.ndarray:
    try:
        frame = environment.gym_env.render()
    except Exception as error:
        raise RenderingError(f"{environment.env_id} cannot be drawn: {type(error).__name__}: {error}") from error
    if not isinstance(frame, np.ndarray):
        raise RenderingError(f"{environment.env_id} draws no frames (render returned {type(frame).__name__})")
    return frame


@contextmanager
def _writer(path: Path, fps: float) -> Iterator[Callable[[np.ndarray], None]]:
    import imageio

    if path.suffix.lower() == ".gif":
        options = {"duration": 1000.0 / min(fps, GIF_FPS), "loop": 0}  # milliseconds per frame, for ever
    else:
        options = {"fps": fps, "macro_block_size": 2, "codec": "libx264"}  # x264 wants even sides
    with warnings.catch_warnings(), imageio.get_writer(path, **options) as writer:
        # JAX warns of any fork while it is loaded; this one only starts ffmpeg
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        yield writer.append_data  # type: ignore[attr-defined]


@contextmanager
def _headless_backend() -> Iterator[None]:
    """MUJOCO_GL set to what is installed, while this lasts, where there is no screen and no choice was made."""
    has_screen = not sys.platform.startswith("linux") or any(os.environ.get(v) for v in ("DISPLAY", "WAYLAND_DISPLAY"))
    if has_screen or os.environ.get("MUJOCO_GL"):
        yield
        return
    backend = next((name for name, library in HEADLESS_LIBRARIES.items() if find_library(library)), None)
    if backend is None:
        raise RenderingError(NO_OPENGL)
    os.environ["MUJOCO_GL"] = backend
    try:
        yield
    finally:
        del os.environ["MUJOCO_GL"]
