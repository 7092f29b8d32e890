"""Shared by all tests: helper modules of this folder are importable, and XLA compiles each program once a session.

`jax_enable_x64` is never changed for the whole session: tests that want float64 in JAX use the fixture `x64`.
Where PyTorch is not installed, the files and tests that import it are skipped.
"""

import os
import shutil
import sys
import tempfile
import traceback
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).parent)
)  # for generators, reference and frameworks, whatever pytest's import mode

COMPILED = "JAX_COMPILATION_CACHE_DIR"


def pytest_configure(config):
    """Workers and the processes that tests start find what another one has compiled; JAX is not imported yet."""
    if COMPILED not in os.environ:
        config.compiled = os.environ[COMPILED] = tempfile.mkdtemp(prefix="trpl-compiled-")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


def pytest_unconfigure(config):
    if hasattr(config, "compiled"):
        shutil.rmtree(config.compiled, ignore_errors=True)


def skip_without_torch(error: BaseException | None) -> None:
    """Skip what needs PyTorch if it is not installed: a test imports it, or a part of trpl says that it is missing.

    Any other import of it by trpl is an error: trpl works without.
    """
    if find_spec("torch") is None and isinstance(error, ImportError) and (error.name or "").split(".")[0] == "torch":
        importer = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if type(error).__name__ == "MissingExtraError" or importer.is_relative_to(Path(__file__).parent):
            pytest.skip("PyTorch is not installed", allow_module_level=True)


class Module(pytest.Module):
    """A file of tests."""

    def collect(self):
        try:
            return super().collect()
        except self.CollectError as error:
            skip_without_torch(error.__cause__)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    return Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except ImportError as error:
        skip_without_torch(error)
        raise


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


@pytest.fixture(scope="module")
def compiled_in_haste():
    """XLA without its dear passes: two thirds of the time goes into compiling what runs for milliseconds."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()


@pytest.fixture
def cuda():
    """A CUDA device, or a skip that says why."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    return torch.device("cuda")
