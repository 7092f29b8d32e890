"""The front door: names, docstrings, and what importing it does not import."""

import inspect
import subprocess
import sys

import pytest

import trpl
import trpl.jax
import trpl.torch


@pytest.mark.parametrize("module", [trpl, trpl.torch, trpl.jax], ids=lambda m: m.__name__)
def test_public_names_exist_and_say_what_they_are(module):
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__) <= 25
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name
            for method, member in inspect.getmembers(value, inspect.isfunction):
                if (
                    not method.startswith("_")
                    and member.__module__.startswith("trpl")
                    and method not in ("extra_repr",)
                ):
                    assert member.__doc__, f"{name}.{method}"


def test_both_frameworks_have_the_same_layers():
    assert trpl.torch.__all__ == trpl.jax.__all__


def test_the_package_itself_needs_no_framework():
    code = "import trpl, sys; assert not {'torch', 'jax'} & set(sys.modules), 'a framework was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_each_framework_without_the_other():
    for mine, other in (("torch", "jax"), ("jax", "torch")):
        code = f"import trpl.{mine}, sys; assert '{other}' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)
