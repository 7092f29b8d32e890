"""The array engines: NumPy, PyTorch and JAX, eager or traced, behind one protocol.

Only this folder asks what kind of array it has, once per call; every function of the maths takes the engine as its
first argument `e`. The substitution of NumPy for PyTorch is decided here too (`suits_numpy`). A framework is imported
when one of its arrays arrives, so NumPy, PyTorch and JAX are each optional.
"""

from trpl.engines.choice import (
    as_float,
    constants,
    engine_of,
    framework_of,
    is_fake,
    is_floating,
    is_number,
    is_symbolic_number,
    jax_is_concrete,
    suits_numpy,
    to_numpy,
    to_torch,
    values_of,
)
from trpl.engines.for_jax import JaxEngine, device_axes, jax_engine, varying
from trpl.engines.for_numpy import MIN_SIZE_FOR_TORCH, NUMPY, NumpyEngine
from trpl.engines.for_torch import TorchEngine, torch_engine
from trpl.engines.protocol import Engine, mT

__all__ = [
    "MIN_SIZE_FOR_TORCH",
    "NUMPY",
    "Engine",
    "JaxEngine",
    "NumpyEngine",
    "TorchEngine",
    "as_float",
    "constants",
    "device_axes",
    "engine_of",
    "framework_of",
    "is_fake",
    "is_floating",
    "is_number",
    "is_symbolic_number",
    "jax_engine",
    "jax_is_concrete",
    "mT",
    "suits_numpy",
    "to_numpy",
    "to_torch",
    "torch_engine",
    "values_of",
    "varying",
]
