"""Videos of a policy, also on machines without a screen.

MuJoCo draws through OpenGL. Without a screen, on Linux, it needs EGL (`libegl1`, and `libgl1` with Mesa's drivers
`libgl1-mesa-dri` if there is no GPU) or OSMesa (`libosmesa6`). The environment variable MUJOCO_GL selects one; if it is
not set, whichever library is installed is used.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from ctypes.util import find_library
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trpl.errors import FaultyEnvironmentError, RenderingError, UsageError
from trpl.rollouts.environments import Environment
from trpl.rollouts.seeds import VIDEO_STREAM, derived_seed
from trpl.rollouts.task_spec import Task, as_task

DEFAULT_FPS = 30
GIF_FPS = 50  # most viewers slow down anything faster
FORMATS = (".mp4", ".gif")
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")
FREE_JOINT = 0  # mujoco.mjtJoint.mjJNT_FREE
HEADLESS_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
NO_OPENGL = (
    "no OpenGL to draw with: there is no screen and neither EGL nor OSMesa. On Debian or Ubuntu install one of them"
    " with `apt install libegl1 libgl1-mesa-dri` or `apt install libosmesa6`, and set MUJOCO_GL=egl or MUJOCO_GL=osmesa"
    " if the right one is not found"
)


class Recording(NamedTuple):
    """A written video."""

    path: Path
    num_frames: int
    returns: list[float]  # one per episode, raw rewards


def record(
    policy: Callable[[np.ndarray], Any],
    task: str | Task,
    path: str | Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    max_steps: int = 1000,
    camera: str | None = None,
    size: tuple[int, int] | None = None,
) -> Recording:
    """Write a video of a policy, frame by frame.

    Args:
        policy: A function from raw observation to the environment's action.
        task: The environment's name, or the task with its arguments.
        path: The file, .mp4 or .gif.
        episodes: How many to show.
        seed: Determines the initial states.
        max_steps: The largest length of an episode.
        camera: The name of a camera of the simulator's model; by default its camera "track" or, without one, a camera
            that follows the robot.
        size: Width and height of the picture.

    Returns:
        The file, the number of frames, and each episode's return.

    Raises:
        UsageError: The file's ending is not that of a video.
        RenderingError: The environment cannot be rendered here, or not with these options.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"a video is written as {' or '.join(FORMATS)}, not as {path.suffix or path.name!r}")
    with (
        _headless_backend(),
        closing(_environment(task, seed=seed, render_mode="rgb_array", camera=camera, size=size)) as environment,
    ):
        fps = environment.gym_env.metadata.get("render_fps", DEFAULT_FPS)
        draw = partial(_draw, environment, follow=camera is None)
        draw()  # fails before a file is created
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")  # where that fails, ffmpeg would say so in many lines
        with _writer(path, fps) as append:
            played = _play(
                environment, policy, lambda: append(draw()), episodes=episodes, seed=seed, max_steps=max_steps
            )
    return Recording(path, sum(frames for _, frames in played), [total for total, _ in played])


def show(
    policy: Callable[[np.ndarray], Any],
    task: str | Task,
    *,
    episodes: int = 1,
    seed: int = 0,
    max_steps: int = 1000,
    camera: str | None = None,
    size: tuple[int, int] | None = None,
) -> list[float]:
    """Play episodes in a window; return their returns. The arguments are those of `record`."""
    if not _has_screen():
        raise RenderingError("there is no screen to show it on: write a video instead, --video FILE.mp4")
    with closing(_environment(task, seed=seed, render_mode="human", camera=camera, size=size)) as environment:
        played = _play(environment, policy, lambda: None, episodes=episodes, seed=seed, max_steps=max_steps)
    return [total for total, _ in played]


def _environment(
    task: str | Task, *, seed: int, render_mode: str, camera: str | None, size: tuple[int, int] | None
) -> Environment:
    """Make an environment that can be rendered, with this camera and picture size if given."""
    options: dict[str, Any] = {} if camera is None else {"camera_name": camera}
    options |= {} if size is None else {"width": size[0], "height": size[1]}
    env_id = as_task(task).env_id
    try:
        environment = Environment(
            task, seed=derived_seed(seed, VIDEO_STREAM), own_actions=True, render_mode=render_mode, **options
        )
    except FaultyEnvironmentError as error:
        if not options:
            raise
        if "unexpected keyword argument" in str(error):
            unsupported = " and no ".join(
                name for name, given in (("camera", camera), ("size", size)) if given is not None
            )
            raise RenderingError(f"{env_id} takes no {unsupported}: leave it to the environment") from error
        raise RenderingError(f"{error} (given {', '.join(options)}, which not every environment supports)") from error
    cameras = _cameras(environment.gym_env.unwrapped)
    if camera is not None and cameras is not None and camera not in cameras:
        environment.close()
        raise RenderingError(f"{env_id} has no camera {camera!r}; it has {', '.join(cameras) or 'none by name'}")
    return environment


def _cameras(env: Any) -> list[str] | None:
    """Return the names of a MuJoCo model's cameras; None for other simulators."""
    model: Any = getattr(env, "model", None)
    return [model.camera(n).name for n in range(model.ncam)] if hasattr(model, "ncam") else None


def _play(
    environment: Environment,
    policy: Callable[[np.ndarray], Any],
    show_frame: Callable[[], None],
    *,
    episodes: int,
    seed: int,
    max_steps: int,
) -> list[tuple[float, int]]:
    """Play episodes; return the return and the number of frames of each."""
    played = []
    for episode in range(episodes):
        observation, total, ended = environment.begin(seed=derived_seed(seed, episode, VIDEO_STREAM)), 0.0, False
        show_frame()
        while not ended and environment.num_steps < max_steps:
            observation, reward, terminated, truncated = environment.step(policy(observation))
            show_frame()
            total, ended = total + reward, terminated or truncated
        played.append((total, environment.num_steps + 1))
    return played


def _draw(environment: Environment, *, follow: bool) -> np.ndarray:
    try:
        if follow:
            _follow(environment.gym_env.unwrapped)
        frame = environment.gym_env.render()
    except Exception as error:
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        modes = environment.gym_env.metadata.get("render_modes") or ()
        if "rgb_array" not in modes:
            words += f"; videos need the render mode 'rgb_array', and it has {', '.join(modes) or 'none'}"
        raise RenderingError(f"{environment.env_id} cannot be drawn: {words}") from error
    if not isinstance(frame, np.ndarray):
        raise RenderingError(f"{environment.env_id} draws no frames (render returned {type(frame).__name__})")
    return frame


def _follow(env: Any) -> None:
    """Point the free camera at a moving MuJoCo robot; a model with a camera "track" needs none."""
    renderer, model = getattr(env, "mujoco_renderer", None), getattr(env, "model", None)
    if renderer is None or model is None or renderer.camera_id != -1:
        return
    moving = [joint for joint in range(model.njnt) if model.jnt_type[joint] == FREE_JOINT]
    if moving:
        viewer = renderer._get_viewer(render_mode="rgb_array")
        viewer.cam.lookat[:] = env.data.xpos[model.jnt_bodyid[moving[0]]]


@contextmanager
def _writer(path: Path, fps: float) -> Iterator[Callable[[np.ndarray], None]]:
    import imageio

    if path.suffix.lower() == ".gif":
        options = {"duration": 1000.0 / min(fps, GIF_FPS), "loop": 0}  # milliseconds per frame, for ever
    else:
        options = {"fps": fps, "macro_block_size": 2, "codec": "libx264"}  # x264 needs even sides
    with warnings.catch_warnings(), imageio.get_writer(path, **options) as writer:
        # JAX warns of any fork while it is loaded; this one only starts ffmpeg
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        yield writer.append_data  # type: ignore[attr-defined]


def _has_screen() -> bool:
    """Tell whether a window can be opened; only on Linux is that in doubt."""
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in SCREENS)


@contextmanager
def _headless_backend() -> Iterator[None]:
    """Set MUJOCO_GL to an installed library inside the context, if there is no screen and it is not set."""
    if _has_screen() or os.environ.get("MUJOCO_GL"):
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
