"""A policy as plain PyTorch: a state dict (weights only) and a short script that needs only `torch`."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trpl.messages import needs

with needs("torch"):
    import torch

from trpl.errors import ExportError
from trpl.integrations.export import Deployable, mode_layers
from trpl.policies.heads import BernoulliHead, BetaHead, CategoricalHead, GaussianHead, Head, ProductHead

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
    """Return the tensors by the names of the script's module."""
    state = {name: torch.from_numpy(np.array(value)) for name, value in _buffers(policy).items()}
    for layer, index in zip(policy.layers, _positions(policy), strict=True):
        state[f"network.{index}.weight"] = torch.from_numpy(np.ascontiguousarray(layer.weight.T))
        state[f"network.{index}.bias"] = torch.from_numpy(np.array(layer.bias))
    return state


def script(policy: Deployable, *, suffix: str) -> str:
    """Return the source of a module for this policy's architecture."""
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
    if policy.head is not None:
        act += head_lines(policy.head)
    else:
        act.append("return x" if policy.low is None else "return torch.minimum(torch.maximum(x, self.low), self.high)")
    return SCRIPT.format(
        obs_size=policy.obs_size,
        action_size=policy.action_size,
        build=NEW_LINE.join(build),
        act=NEW_LINE.join(act),
        suffix=suffix,
    )


def head_lines(head: Head) -> list[str]:
    """Return the lines that convert the network's outputs to the environment's action."""
    parts = head.parts if isinstance(head, ProductHead) else (head,)
    lines, start = [], 0
    for number, part in enumerate(parts):
        stop = start + sum(ending.size for ending in mode_layers(part))
        lines.append(f"x{number} = x[..., {start}:{stop}]")
        lines += [line.replace("OUT", f"x{number}") for line in _part_lines(part)]
        start = stop
    if not isinstance(head, ProductHead):
        return [*lines, "return x0"]
    names = [f"x{number}" for number in range(len(parts))]
    if head.names is not None:
        return [*lines, f"return {{{', '.join(f'{n!r}: {x}' for n, x in zip(head.names, names, strict=True))}}}"]
    return [*lines, f"return ({', '.join(names)},)"]


def _part_lines(head: Head) -> list[str]:
    if isinstance(head, CategoricalHead):
        ends = np.cumsum(head.sizes).tolist()
        best = [
            f"OUT[..., {end - n}:{end}].argmax(-1) + {s}"
            for n, s, end in zip(head.sizes, head.starts, ends, strict=True)
        ]
        if head.shape is None:
            return [f"OUT = {best[0]}"]
        return [f"OUT = torch.stack([{', '.join(best)}], -1)", f"OUT = OUT.reshape(*OUT.shape[:-1], *{head.shape})"]
    if isinstance(head, BernoulliHead):
        return ["OUT = (OUT > 0).to(torch.int8)", f"OUT = OUT.reshape(*OUT.shape[:-1], *{head.shape})"]
    assert isinstance(head, BetaHead | GaussianHead)
    lines, actions, size = [], head.actions, head.action_size
    if isinstance(head, BetaHead):
        lines.append("OUT = nn.functional.softplus(OUT) + 1e-30")
        lines.append(f"OUT = OUT[..., :{size}] / (OUT[..., :{size}] + OUT[..., {size}:])")
    if actions is None:
        return lines
    if actions.squash:
        lines.append("OUT = OUT.tanh()")
    lines.append(f"OUT = torch.tensor({actions.offset.tolist()}) + torch.tensor({actions.gain.tolist()}) * OUT")
    if actions.low is not None and actions.high is not None:
        low, high = (
            f"torch.tensor({[_number(x) for x in limit]})".replace("'", "") for limit in (actions.low, actions.high)
        )
        lines.append(f"OUT = torch.minimum(torch.maximum(OUT, {low}), {high})")
    return lines


def _number(x: float) -> str:
    return repr(float(x)) if np.isfinite(x) else f'float("{float(x)}")'


def load(path: str | Path) -> Callable[[np.ndarray], Any]:
    """Run the script beside the weights in `path`, and return its policy as a function of NumPy observations."""
    policy = runpy.run_path(str(Path(path).with_suffix(".py")))["load"]()

    @torch.no_grad()
    def act(observations: np.ndarray) -> Any:
        return policy(torch.from_numpy(observations))

    return act


def _buffers(policy: Deployable) -> dict[str, np.ndarray]:
    return {name: value for name in ("shift", "scale", "low", "high") if (value := getattr(policy, name)) is not None}


def _positions(policy: Deployable) -> list[int]:
    """Find the positions of the linear layers in the script's `nn.Sequential`."""
    positions, index = [], 0
    for layer in policy.layers:
        positions.append(index)
        index += 1 + (layer.activation in MODULES)
    return positions
