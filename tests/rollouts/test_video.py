import os
import subprocess

import imageio_ffmpeg
import numpy as np
import pytest

from trpl.rollouts import video


def nothing(observation):
    return np.zeros(5, np.float32)


def decode(file):
    """The frames, read back by ffmpeg itself (imageio's own reader leaves files open)."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", file, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, 480, 480, 3)


def record_or_skip(*args, **kwargs):
    try:
        return video.record(*args, **kwargs)
    except video.RenderingError as error:
        pytest.skip(f"no OpenGL on this machine: {error}")


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_video_holds_every_frame(tmp_path, suffix):
    file = tmp_path / "new" / f"reacher{suffix}"
    before = os.environ.get("MUJOCO_GL")
    recording = record_or_skip(nothing, "trpl/Reacher5Sparse-v0", file, episodes=2, max_steps=4)
    assert os.environ.get("MUJOCO_GL") == before
    assert recording.num_frames == 10
    np.testing.assert_array_equal(recording.returns, [0.0, 0.0])
    frames = decode(file)
    assert len(frames) == 10
    assert np.abs(frames[0].astype(int) - frames[5]).max() > 60  # another episode, another target


def test_seeds_decide_what_is_seen(tmp_path):
    first, again, other = (
        record_or_skip(nothing, "trpl/Reacher5Sparse-v0", tmp_path / f"{n}.gif", seed=seed, max_steps=1).path
        for n, seed in enumerate((0, 0, 1))
    )
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "a.mp4").mkdir()
    with pytest.raises(IsADirectoryError, match=r"a\.mp4"):
        record_or_skip(nothing, "trpl/Reacher5Sparse-v0", tmp_path / "a.mp4", max_steps=1)


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.mp4 or \.gif, not as '\.avi'"):
        video.record(nothing, "trpl/Reacher5Sparse-v0", tmp_path / "a.avi")


def test_without_opengl_the_message_says_what_to_install(tmp_path, monkeypatch):
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(video.sys, "platform", "linux")
    monkeypatch.setattr(video, "find_library", lambda name: None)
    with pytest.raises(video.RenderingError, match="apt install libegl1"):
        video.record(nothing, "trpl/Reacher5Sparse-v0", tmp_path / "a.mp4")


def test_a_choice_already_made_is_kept(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with video._headless_backend():
        assert os.environ["MUJOCO_GL"] == "osmesa"


def test_environments_that_draw_nothing_are_named(tmp_path):
    words = (
        "test/Drift-v0 cannot be drawn: NotImplementedError; videos need the render mode 'rgb_array', and it has none"
    )
    with pytest.raises(video.RenderingError, match=f"^{words}$"):
        video.record(nothing, "test/Drift-v0", tmp_path / "a.mp4")


def test_an_environment_without_a_choice_of_camera_or_size_says_so(tmp_path):
    for options, words in (({"size": (8, 8)}, "size"), ({"size": (8, 8), "camera": "track"}, "camera and no size")):
        with pytest.raises(video.RenderingError, match=f"^Pendulum-v1 takes no {words}: leave it to the environment$"):
            video.record(lambda _: np.zeros(1), "Pendulum-v1", tmp_path / "pendulum.gif", **options)


def test_an_unknown_camera_is_refused_before_anything_is_written(tmp_path):
    """Gymnasium would draw with the free camera, without a word."""
    with pytest.raises(video.RenderingError, match=r"^Hopper-v4 has no camera 'side'; it has track$"):
        video.record(nothing, "Hopper-v4", tmp_path / "new" / "hopper.gif", camera="side")
    assert not (tmp_path / "new").exists()


def test_a_window_takes_camera_and_size_too(monkeypatch):
    def made(task, *, seed, render_mode, camera, size):
        raise video.RenderingError(f"{render_mode} {camera} {size}")

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(video, "_environment", made)
    with pytest.raises(video.RenderingError, match=r"^human track \(8, 8\)$"):
        video.show(nothing, "Hopper-v4", camera="track", size=(8, 8))
