"""Shared by all tests: helper modules of this folder are importable, and PyTorch keeps to one thread.

`jax_enable_x64` is never changed for the whole session: tests that want float64 in JAX use the fixture `x64`.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).parent)
)  # for generators, reference and frameworks, whatever pytest's import mode


@pytest.fixture
def x64():
    """JAX with float64 for one test."""
    jax = pytest.importorskip("jax")
    if hasattr(jax, "enable_x64"):
        enabled = jax.enable_x64(True)
    else:  # before JAX 0.8
        from jax.experimental import enable_x64

        enabled = enable_x64()
    with enabled:
        yield


@pytest.fixture
def cuda():
    """A CUDA device, or a skip that says why."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return torch.device("cuda")
