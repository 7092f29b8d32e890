"""Exported policies act as the policies do."""

import importlib.util
import re
import subprocess
import sys

import gymnasium as gym
import numpy as np
import onnx
import pytest
import torch
from gymnasium import spaces
from host_worlds import Cameras, Target
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from torch import nn

from trpl.cli import main
from trpl.errors import CheckpointError, ExportError, MissingExtraError
from trpl.integrations import export as exporting
from trpl.integrations import torch_script
from trpl.integrations.export import Deployable, Layer, export, load_npz
from trpl.integrations.onnx import OPSET, load, session, to_model
from trpl.integrations.sb3 import TRPL
from trpl.policies import load_policy
from trpl.policies.storage import write_checkpoint

FORMATS = ["policy.onnx", "policy.pt", "policy.npz"]


@pytest.fixture
def run(tmp_path):
    """A run folder with a policy of random weights; one observation hardly varies about a large value."""
    rng = np.random.default_rng(0)
    sizes, names = [5, 64, 64, 3], ["layer0", "layer1", "mean"]
    arrays = {"std/raw": np.zeros(3, np.float32)}
    for name, *shape in zip(names, sizes[:-1], sizes[1:], strict=True):
        arrays[f"{name}/weight"] = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        arrays[f"{name}/bias"] = rng.standard_normal(shape[1]).astype(np.float32)
    arrays["observation/shift"] = np.array([0.0, 1.0, -3.0, 250.123, 0.3])
    arrays["observation/scale"] = np.array([1.0, 0.1, 20.0, 1e-4, 2.0])
    folder = tmp_path / "run"
    folder.mkdir()
    write_checkpoint(folder, epoch=1, parts={"policy": arrays}, meta={"observation_clip": 5.0})
    return folder


def observations(policy, count=10_000):
    noise = np.random.default_rng(1).standard_normal((count, policy.obs_size)) * 4
    return (policy.shift + policy.scale * noise).astype(np.float32)


def act(path):
    """The exported file's own way to act."""
    if path.suffix == ".onnx":
        return load(path)
    if path.suffix == ".npz":
        return load_npz(path)
    spec = importlib.util.spec_from_file_location("exported_policy", path.with_suffix(".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    policy = module.load()
    return lambda x: policy(torch.from_numpy(x)).detach().numpy()


@pytest.mark.parametrize("name", FORMATS)
def test_a_run_in_every_format(run, tmp_path, name):
    path = export(run, tmp_path / name)
    policy = load_policy(run)
    seen = observations(policy)
    assert np.abs(act(path)(seen) - policy(seen)).max() <= 1e-5


@pytest.mark.parametrize("algorithm", [TRPL, PPO, A2C])
@pytest.mark.parametrize("name", FORMATS)
def test_a_stable_baselines_model_with_its_normaliser(algorithm, name, tmp_path):
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    model = algorithm("MlpPolicy", env, n_steps=32, seed=0, device="cpu")
    env.obs_rms.mean, env.obs_rms.var = np.array([0.1, -0.2, 3.0]), np.array([0.5, 0.4, 9.0])
    with torch.no_grad():
        model.policy.action_net.weight.mul_(500.0)  # so that actions reach the bounds
    path = export(model, tmp_path / name, vec_normalize=env)
    seen = np.random.default_rng(0).standard_normal((10_000, 3)).astype(np.float32) * 5
    wanted, _ = model.predict(env.normalize_obs(seen), deterministic=True)
    assert np.abs(wanted).max() == 2.0
    assert np.abs(act(path)(seen) - wanted).max() <= 1e-5
    own = export(model, tmp_path / f"own-{name}")
    assert np.abs(act(own)(seen) - wanted).max() <= 1e-5  # the model knows its own
    other = export(model, tmp_path / f"plain-{name}", vec_normalize=False)
    assert not np.allclose(act(other)(seen), wanted, atol=1e-3)  # the normaliser matters


class Answers(gym.Env):
    """Actions of a space on observations that are vectors."""

    observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, True, False, {}


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([3, 2, 4]), spaces.MultiBinary(3)], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_a_discrete_stable_baselines_model(space, name, tmp_path):
    model = (TRPL if name == "policy.onnx" else PPO)("MlpPolicy", Answers(space), n_steps=64, seed=0, device="cpu")
    with torch.no_grad():
        model.policy.action_net.weight.mul_(100.0)  # so that every class is somewhere the most likely
    seen = np.random.default_rng(0).standard_normal((5_000, 3)).astype(np.float32) * 3
    wanted, _ = model.predict(seen, deterministic=True)
    found = act(export(model, tmp_path / name))(seen)
    assert np.asarray(found).dtype == space.dtype
    assert np.asarray(found).shape == (5_000, *space.shape)
    assert np.mean(found != wanted) <= 1e-3
    assert len(np.unique(wanted.reshape(5_000, -1), axis=0)) > 3


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ELU])
@pytest.mark.parametrize("name", FORMATS)
def test_other_activations(activation, name, tmp_path):
    model = TRPL("MlpPolicy", Target(), policy_kwargs={"activation_fn": activation, "net_arch": [8]}, device="cpu")
    with torch.no_grad():
        model.policy.action_net.weight.mul_(50.0)
    seen = np.random.default_rng(0).standard_normal((100, 2)).astype(np.float32)
    wanted, _ = model.predict(seen, deterministic=True)
    assert np.abs(act(export(model, tmp_path / name))(seen) - wanted).max() <= 1e-5


def test_the_script_runs_alone(run, tmp_path):
    path = export(run, tmp_path / "policy.pt")
    command = [sys.executable, "-I", str(path.with_suffix(".py"))]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    wanted = load_policy(run)(np.zeros((1, 5), np.float32))
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", output)]
    assert numbers == pytest.approx(wanted[0], abs=1e-3)


def test_the_graph_says_what_it_is(run, tmp_path):
    model = onnx.load(export(run, tmp_path / "policy.onnx"))
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", OPSET)]
    assert model.graph.input[0].name == "observation"
    assert model.graph.output[0].name == "action"
    assert "normaliser is inside" in model.graph.doc_string
    one, many = (np.zeros((n, 5), np.float32) for n in (1, 7))
    runs = session(tmp_path / "policy.onnx")
    assert [runs.run(None, {"observation": x})[0].shape for x in (one, many)] == [(1, 3), (7, 3)]


def test_on_the_command_line(run, tmp_path, capsys):
    assert main(["export", str(run), str(tmp_path / "policy.onnx")]) == 0
    assert "10000 observations" in capsys.readouterr().out
    assert load(tmp_path / "policy.onnx")(np.zeros((1, 5), np.float32)).shape == (1, 3)
    assert main(["export", str(run), str(tmp_path / "policy"), "--format", "npz"]) == 0
    assert load_npz(tmp_path / "policy").obs_size == 5
    assert main(["export", str(run), str(tmp_path / "policy.bin")]) == 2
    assert "name the format" in capsys.readouterr().err


def test_a_format_may_be_named(run, tmp_path):
    export(run, tmp_path / "weights.bin", format="npz")
    assert load_npz(tmp_path / "weights.bin").action_size == 3
    with pytest.raises(ExportError, match="name the format"):
        export(run, tmp_path / "policy.bin")
    with pytest.raises(ExportError, match=r"ending"):
        export(run, tmp_path / "policy.py", format="torch")


def test_a_file_that_acts_otherwise_is_refused(run, tmp_path, monkeypatch):
    exact = exporting.from_checkpoint

    def wrong(folder):
        policy = exact(folder)
        return policy._replace(scale=policy.scale * 1.01)

    monkeypatch.setattr(exporting, "from_checkpoint", wrong)
    for name in ("policy.onnx", "policy.npz"):
        with pytest.raises(ExportError, match="actions differ"):
            export(run, tmp_path / name)
        assert not (tmp_path / name).exists()


def test_a_script_that_acts_otherwise_is_refused(run, tmp_path, monkeypatch):
    exact = torch_script.script
    monkeypatch.setattr(torch_script, "script", lambda *x, **y: exact(*x, **y).replace("nn.Tanh()", "nn.ReLU()"))
    with pytest.raises(ExportError, match="actions differ"):
        export(run, tmp_path / "policy.pt")


def test_a_file_that_cannot_be_compared_is_removed(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"^this needs .*'onnxruntime': pip install \"trpl\[onnx\]\"$"):
        export(run, tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()


def test_double_precision_is_kept_until_observations_are_normalised(run, tmp_path):
    """One observation is 250.123 and varies by 1e-4, which single precision would round away."""
    policy = load_npz(export(run, tmp_path / "policy.npz"))
    x = policy.shift + policy.scale * np.random.default_rng(1).standard_normal((50, policy.obs_size))
    assert policy(x) == pytest.approx(load_policy(run)(x), abs=1e-5)


def test_what_cannot_be_exported_is_refused(tmp_path, run):
    with pytest.raises(ExportError, match="DQN"):
        export(DQN("MlpPolicy", "CartPole-v1", device="cpu"), tmp_path / "policy.onnx")
    with pytest.raises(ExportError, match="features extractor"):
        export(TRPL("MultiInputPolicy", Cameras(), device="cpu"), tmp_path / "policy.onnx")
    model = TRPL("MlpPolicy", Target(), policy_kwargs={"activation_fn": nn.SiLU}, device="cpu")
    with pytest.raises(ExportError, match="SiLU"):
        export(model, tmp_path / "policy.onnx")
    with pytest.raises(ExportError, match="of its own"):
        export(run, tmp_path / "policy.onnx", vec_normalize=object())
    with pytest.raises(CheckpointError):
        export(tmp_path / "nothing", tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()


class Classes(Target):
    """The same with observations that are classes."""

    observation_space = spaces.MultiDiscrete([3, 2])


def test_observations_that_a_wrapper_changes_are_refused(tmp_path):
    with pytest.raises(ExportError, match="only policies on vectors"):
        export(TRPL("MlpPolicy", Classes(), device="cpu"), tmp_path / "policy.npz")
    stacked = VecFrameStack(VecNormalize(DummyVecEnv([Target])), 2)
    with pytest.raises(ExportError, match=r"VecNormalize is for .* \(\d,\), the policy for \(\d,\): .*VecFrameStack"):
        export(TRPL("MlpPolicy", stacked, device="cpu"), tmp_path / "policy.npz")


def test_numbers_one_can_check_on_paper():
    layer = Layer(np.array([[2.0], [0.0]], np.float32), np.array([1.0], np.float32), "identity")
    policy = Deployable((layer,), shift=np.array([1.0, 0.0]), scale=np.array([4.0, 1.0]), clip=0.5)
    assert policy(np.array([[2.0, 9.0], [101.0, 9.0]])).tolist() == [[1.5], [2.0]]  # 2 · ¼ + 1, and 2 · clip + 1
    kinds = [node.op_type for node in to_model(policy).graph.node]
    assert kinds == ["Cast", "Sub", "Div", "Cast", "Clip", "Gemm"]


def test_a_model_without_an_environment_cannot_know_its_normaliser(tmp_path):
    model = TRPL("MlpPolicy", Target(), n_steps=32, device="cpu")
    model.save(tmp_path / "model.zip")
    alone = TRPL.load(tmp_path / "model.zip", device="cpu")
    with pytest.raises(ExportError, match="it is unknown whether its observations were normalised"):
        export(alone, tmp_path / "policy.npz")
    assert load_npz(export(alone, tmp_path / "policy.npz", vec_normalize=False)).shift is None
    with pytest.raises(
        ExportError, match=r"not 'normaliser.pkl'; VecNormalize.load\(FILE, environment\) reads a saved one"
    ):
        export(alone, tmp_path / "policy.npz", vec_normalize="normaliser.pkl")


def test_arguments_of_other_algorithms_are_answered():
    with pytest.raises(TypeError, match="TRPL takes no 'clip_range': the trust region takes its place: mean_bound"):
        TRPL("MlpPolicy", Target(), clip_range=0.2)
    with pytest.raises(TypeError, match="TRPL takes no 'mean_bond'; did you mean 'mean_bound'"):
        TRPL("MlpPolicy", Target(), mean_bond=0.2)
