"""Policies that are no plain Gaussians as files: what comes out is what the environment takes."""

import importlib.util

import numpy as np
import pytest
from gymnasium import spaces

from trpl.errors import ExportError
from trpl.integrations import export as exporting
from trpl.integrations.export import export, load_npz
from trpl.policies import load_policy
from trpl.policies.storage import write_checkpoint
from trpl.rollouts import Task
from trpl.rollouts.spaces import head_of

BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
CASES = {
    "Discrete": (spaces.Discrete(5, start=3), "gaussian"),
    "MultiDiscrete": (spaces.MultiDiscrete([[2, 3], [4, 5]]), "gaussian"),
    "MultiBinary": (spaces.MultiBinary(4), "gaussian"),
    "Beta": (BOX, "beta"),
    "squashed": (BOX, "squashed"),
    "wide": (spaces.Box(0.0, 1000.0, (2,)), "gaussian"),  # rounding is that of 1000, also where the action is near 0
    "Tuple": (spaces.Tuple((BOX, spaces.Discrete(3), spaces.MultiBinary(2))), "gaussian"),
    "Dict": (spaces.Dict(aim=BOX, gear=spaces.MultiDiscrete([2, 6])), "beta"),
}


def checkpoint(tmp_path, case):
    space, policy = CASES[case]
    head, rng = head_of(space, Task("mine", units="box", clip=True, policy=policy)), np.random.default_rng(0)
    sizes = {"layer0": (3, 8), **{ending.name: (8, ending.size) for ending in head.layers}}
    arrays = {f"{name}/weight": rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    arrays |= {f"{name}/bias": rng.normal(size=size[1]).astype(np.float32) for name, size in sizes.items()}
    arrays |= {f"{name}/raw": np.zeros(size, np.float32) for name, size in head.shared.items()}
    arrays |= {"observation/shift": np.ones(3), "observation/scale": np.full(3, 2.0)}
    if head.gaussian:
        arrays |= head.actions.arrays()
    meta = {"observation_clip": 5.0, **({} if head.gaussian else {"head": head.to_json()})}
    return write_checkpoint(tmp_path, epoch=1, parts={"policy": arrays}, meta=meta)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ending", ["onnx", "pt", "npz"])
def test_files_give_what_the_environment_takes(case, ending, tmp_path):
    folder, space = checkpoint(tmp_path, case), CASES[case][0]
    assert space.contains(load_policy(folder)(np.zeros(3)))
    export(folder, tmp_path / f"policy.{ending}")  # compared with the policy on 10,000 observations
    if ending == "npz":
        assert space.contains(load_npz(tmp_path / "policy.npz")(np.zeros(3)))
    if ending == "pt":
        import torch

        spec = importlib.util.spec_from_file_location("written_policy", tmp_path / "policy.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with torch.no_grad():
            found = module.load()(torch.zeros(4, 3))
        wanted = load_policy(folder)(np.zeros((4, 3)))
        for one, other in zip(exporting._vectors(found), exporting._vectors(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_hybrid_actions_are_named_outputs(tmp_path):
    import onnx

    export(checkpoint(tmp_path, "Dict"), tmp_path / "policy.onnx")
    outputs = onnx.load(str(tmp_path / "policy.onnx")).graph.output
    assert [output.name for output in outputs] == ["action.aim", "action.gear"]
    assert [output.type.tensor_type.elem_type for output in outputs] == [onnx.TensorProto.FLOAT, onnx.TensorProto.INT64]


def test_another_policy_is_noticed(tmp_path):
    source = exporting.read(checkpoint(tmp_path, "Discrete"))
    other = source.policy._replace(
        layers=(*source.policy.layers[:-1], source.policy.layers[-1]._replace(bias=np.ones(5)))
    )
    with pytest.raises(ExportError, match="does not act as the policy does"):
        exporting.check(other, source, name="mine")
