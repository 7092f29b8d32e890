"""A policy as plain PyTorch: a state dict (weights only) and a script of a few lines that needs nothing but `torch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trpl.messages import needs

with needs("torch"):
    import torch

from trpl.errors import ExportError
from trpl.integrations.export import Deployable

MODULES = {"tanh": "nn.Tanh()", "relu": "nn.ReLU()", "elu": "nn.ELU()"}
SCRIPT = '''"""A trained policy, noise-free: `action = load()(observation)`.

Observations are raw, [..., {obs_size}]; actions are [..., {action_size}].
"""

from pathlib import Path

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        {build}

    def forward(self, x):
        {act}


def load(path=Path(__file__).with_suffix("{suffix}")):
    policy = Policy()
    policy.load_state_dict(torch.load(path, weights_only=True))
    return policy.eval()


if __name__ == "__main__":
    with torch.no_grad():
        print(load()(torch.zeros(1, {obs_size})))
'''
NEW_LINE = "\n        "


def write(policy: Deployable, path: str | Path) -> None:
    """Write weights to `path` and the script beside it, under the same name."""
    path = Path(path)
    if path.suffix == ".py":
        raise ExportError(f"{path.name} is the name of the script: give the weights another ending, .pt for example")
    torch.save(state_dict(policy), path)
    path.with_suffix(".py").write_text(script(policy, suffix=path.suffix))


def state_dict(policy: Deployable) -> dict[str, torch.Tensor]:
    """Return tensors under the names of the script's module."""
    state = {name: torch.from_numpy(np.array(value)) for name, value in _buffers(policy).items()}
    for layer, index in zip(policy.layers, _positions(policy), strict=True):
        state[f"network.{index}.weight"] = torch.from_numpy(np.ascontiguousarray(layer.weight.T))
        state[f"network.{index}.bias"] = torch.from_numpy(np.array(layer.bias))
    return state


def script(policy: Deployable, *, suffix: str) -> str:
    """Return the source of a module with this policy's shape."""
    modules = []
    for weight, _, activation in policy.layers:
        modules.append(f"nn.Linear({weight.shape[0]}, {weight.shape[1]})")
        if activation in MODULES:
            modules.append(MODULES[activation])
    build = [
        f'self.register_buffer("{name}", torch.zeros({len(value)}, dtype=torch.{value.dtype}))'
        for name, value in _buffers(policy).items()
    ]
    build.append(f"self.network = nn.Sequential({', '.join(modules)})")
    act = []
    if policy.shift is not None:
        act.append("x = ((x - self.shift) / self.scale).float()  # in float64, as in training")
    if policy.clip is not None:
        act.append(f"x = x.clamp({-float(policy.clip)!r}, {float(policy.clip)!r})")
    act.append("x = self.network(x)")
    act.append("return x" if policy.low is None else "return torch.minimum(torch.maximum(x, self.low), self.high)")
    return SCRIPT.format(
        obs_size=policy.obs_size,
        action_size=policy.action_size,
        build=NEW_LINE.join(build),
        act=NEW_LINE.join(act),
        suffix=suffix,
    )


def load(policy: Deployable, path: str | Path) -> Any:
    """Return the weights in `path`, read back, as a function of NumPy observations."""
    state = torch.load(path, weights_only=True)
    layers = tuple(
        layer._replace(weight=state[f"network.{i}.weight"].numpy().T, bias=state[f"network.{i}.bias"].numpy())
        for layer, i in zip(policy.layers, _positions(policy), strict=True)
    )
    return policy._replace(layers=layers, **{name: state[name].numpy() for name in _buffers(policy)})


def _buffers(policy: Deployable) -> dict[str, np.ndarray]:
    return {name: value for name in ("shift", "scale", "low", "high") if (value := getattr(policy, name)) is not None}


def _positions(policy: Deployable) -> list[int]:
    """Find where the linear layers stand in the script's `nn.Sequential`."""
    positions, index = [], 0
    for layer in policy.layers:
        positions.append(index)
        index += 1 + (layer.activation in MODULES)
    return positions
