"""The types of the maths are true: shapes at run time, and no array, policy or setting is `Any`."""

import ast
import subprocess
import sys
import typing
from pathlib import Path

import trpl.families
import trpl.types

SOURCE = Path(trpl.__file__).parent
ARRAYS = (
    *("x", "y", "w", "mean", "std", "chol", "scale", "cov", "logits", "mask", "arrays", "tensors", "cotangents"),
    *("actions", "observations", "advantages", "returns", "log_prob", "log_ratio", "features"),
)
POLICIES = ("p", "q", "old", "predicted", "projected", "policy", "gaussian", "new")
SETTINGS = ("config", "setting", "settings", "bound", "mean_bound", "cov_bound", "min_entropy", "entropy")


FOREIGN = {
    "algorithms/minibatches.py: policy",  # a number of passes, or their orders
    "api.py: settings",  # of any method, checked by name
    "compat/trust_region_projections.py: policy",  # the authors' class
    "compat/projection_utils.py: policy",
    "engines/choice.py: arrays",  # asks what it is given
    "engines/choice.py: x",
    "integrations/brax.py: settings",
    "integrations/distributions.py: old",  # distributions of any library, known by what they offer
    "integrations/distributions.py: p",
    "integrations/distributions.py: predicted",
    "integrations/distributions.py: projected",
    "integrations/export.py: actions",
    "integrations/export.py: x",
    "integrations/rsl_rl/algorithm.py: observations",
    "integrations/rsl_rl/algorithm.py: settings",
    "integrations/sb3/algorithm.py: observations",
    "integrations/skrl.py: policy",
    "integrations/skrl.py: settings",
    "runs/records.py: returns",  # JSON
    "torch/distributions.py: p",
}
"""Objects of other libraries without types, values of JSON and of the command line, and checks of what is given."""


def test_shapes_at_run_time():
    """Every function of the maths checks the shapes of its arguments and results while all projections run."""
    script = Path(__file__).with_name("typed.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > 100


def test_users_pay_nothing():
    """Without `jaxtyping` the aliases are the array itself, and neither it nor `beartype` is loaded."""
    code = "import sys, trpl, trpl.types as t; print(t.Vector is t.Array, 'jaxtyping' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def named_any(path: Path):
    """Yield the names that a module annotates as `Any`, or as a sequence or union of it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.arg) and node.annotation is not None:
            name, annotation = node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, annotation = node.target.id, node.annotation
        else:
            continue
        of_json = ast.unparse(annotation).startswith(("Callable", "dict", "Mapping"))
        if not of_json and any(isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(annotation)):
            yield name


def test_no_array_policy_or_setting_is_any():
    assert typing.Any not in (trpl.types.Array, trpl.types.Vector, trpl.types.Mask, trpl.families.Policy)
    every = [(path.relative_to(SOURCE), name) for path in SOURCE.rglob("*.py") for name in named_any(path)]
    found = {f"{path}: {name}" for path, name in every if name in ARRAYS + POLICIES + SETTINGS}
    assert found == FOREIGN, "give it a type, or take it from the list"
