"""Public names say what they take, return and raise, and the examples in their docstrings are true.

Public is what stands in an `__all__`, what an API page shows, and what one room of the trainer takes from another.
"""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
from blocks import ROOT

SOURCE = ROOT / "src" / "trpl"
DOORS = (
    *("api", "entropy_schedule", "losses", "messages", "methods", "options"),
    *("presets", "reports", "runs", "settings", "sweeps", "tuning"),
)
"""Rooms whose names count as public where another room imports them."""
INSIDE = ("engines",)
"""Rooms for the maths alone: a line for each operation."""
EXAMPLES = [
    *("trpl.DiagGaussian", "trpl.FullGaussian", "trpl.Categorical", "trpl.kl", "trpl.kl_parts", "trpl.entropy"),
    *("trpl.log_prob", "trpl.wasserstein_parts", "trpl.frobenius_parts", "trpl.train", "trpl.load"),
    *(f"trpl.{framework}.{name}Projection" for framework in ("torch", "jax") for name in ("KL", "JointKL")),
    *("trpl.torch.WassersteinProjection", "trpl.torch.FrobeniusProjection"),
    *("trpl.presets.preset", "trpl.policies.load_policy", "trpl.entropy_schedule.exponential"),
]
"""The twenty a user meets first."""


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


TREES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def room(module: str) -> str:
    return [*module.split("."), ""][1]


def listed() -> set[tuple[str, str]]:
    found = set()
    for module, tree in TREES.items():
        for node in tree.body if room(module) not in INSIDE else ():
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                found |= {(module, name) for name in ast.literal_eval(node.value)}
    return found


def shown() -> set[tuple[str, str]]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    names = re.findall(r"^::: (trpl[\w.]*)\.(\w+)$", text, re.MULTILINE)
    return {(module, name) for module, name in names if f"{module}.{name}" not in TREES}


def lent() -> set[tuple[str, str]]:
    imports = (
        (module, node)
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("trpl.")
    )
    return {
        (node.module, alias.name)
        for module, node in imports
        for alias in node.names
        if room(node.module) in DOORS
        and room(node.module) != room(module)
        and f"{node.module}.{alias.name}" not in TREES
    }


def definition(module: str, name: str) -> tuple[str, ast.AST] | None:
    """Where a name is defined, following imports; None for values."""
    for node in TREES.get(module, ast.Module([], [])).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
    for node in ast.walk(TREES.get(module, ast.Module([], []))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if name in (alias.asname, alias.name) and node.module != module:
                    return definition(node.module, alias.name)
    return None


def functions() -> dict[str, tuple[ast.FunctionDef, bool]]:
    """Public functions and methods by their full names, and whether a method."""
    found = {}
    for place in listed() | shown() | lent():
        at = definition(*place)
        if at is None:
            continue
        module, node = at
        if isinstance(node, ast.FunctionDef):
            found[f"{module}.{node.name}"] = node, False
            continue
        bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
        if "Protocol" in bases:  # says what others do, in a line each
            assert all(ast.get_docstring(item) for item in node.body if isinstance(item, ast.FunctionDef)), node.name
            continue
        implements = bases - {"NamedTuple", "Generic"}
        for item in node.body:
            if not isinstance(item, ast.FunctionDef) or item.name.startswith("_"):
                continue
            marks = {ast.unparse(mark) for mark in item.decorator_list}
            if marks & {"property", "cached_property", "override"} or (implements and ast.get_docstring(item) is None):
                continue
            found[f"{module}.{node.name}.{item.name}"] = item, "staticmethod" not in marks
    return found


FUNCTIONS = functions()


def test_there_are_many():
    assert len(FUNCTIONS) > 150
    assert {"trpl.api.train", "trpl.reports.page.write_report", "trpl.sweeps.sweep.sweep"} <= set(FUNCTIONS)


def raises(node: ast.AST) -> bool:
    """Whether something is raised here, not counting functions inside."""
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        return False
    return (isinstance(node, ast.Raise) and node.exc is not None) or any(map(raises, ast.iter_child_nodes(node)))


def lacking(name: str) -> list[str]:
    node, is_method = FUNCTIONS[name]
    doc = ast.get_docstring(node) or ""
    if "See `" in doc:  # the protocol that it implements has the words
        return []
    given = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)][is_method:]
    given += [argument.arg for argument in node.args.kwonlyargs]
    given += [f"\\*{a.arg}" for a in (node.args.vararg,) if a] + [f"\\*\\*{a.arg}" for a in (node.args.kwarg,) if a]
    found = [f"Args: {word}" for word in given if not re.search(rf"^    {word}(, [\w*]+)*: ", doc, re.MULTILINE)]
    returned = "None" if node.returns is None else ast.unparse(node.returns)
    if returned not in ("None", "NoReturn") and not re.search(r"^(Returns|Yields):$", doc, re.MULTILINE):
        found.append("Returns")
    if any(map(raises, node.body)) and not re.search(r"^Raises:$", doc, re.MULTILINE):
        found.append("Raises")
    return found


def test_public_functions_document_what_they_take_return_and_raise():
    missing = {name: found for name in FUNCTIONS if (found := lacking(name))}
    assert not missing, "\n".join(f"{name}: {', '.join(found)}" for name, found in sorted(missing.items()))


def test_public_classes_document_what_they_are_made_of():
    missing = {}
    for place in listed() | shown() | lent():
        at = definition(*place)
        if at is None or not isinstance(at[1], ast.ClassDef):
            continue
        module, node = at
        doc, lines = ast.get_docstring(node), node.body
        if doc is None:
            missing[f"{module}.{node.name}"] = "no docstring"
        record = any(ast.unparse(mark).startswith("dataclass") for mark in node.decorator_list)
        if not (record or any(ast.unparse(base) == "NamedTuple" for base in node.bases)):
            continue
        for item, following in zip(lines, [*lines[1:], None], strict=True):
            if not isinstance(item, ast.AnnAssign) or "ClassVar" in ast.unparse(item.annotation):
                continue
            name = ast.unparse(item.target)
            explained = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            made_by = ast.unparse(item.value).partition("(")[0] if item.value is not None else ""
            helped = made_by.endswith("setting")
            if not (explained or helped or re.search(rf"^    {name}(, \w+)*: |`{name}\b", doc or "", re.MULTILINE)):
                missing.setdefault(f"{module}.{node.name}", []).append(name)
    assert not missing, "\n".join(f"{name}: {found}" for name, found in sorted(missing.items()))


def found_at(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_first_names_have_an_example_that_runs(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    value = found_at(name)
    doc = inspect.getdoc(value)
    assert "Examples:" in doc, f"{name} has no example"
    names = {"__name__": name, **vars(inspect.getmodule(value))}
    examples = doctest.DocTestParser().get_doctest(doc, names, name, None, None)
    assert examples.examples or name in ("trpl.train", "trpl.load", "trpl.policies.load_policy")
    failed = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=failed.append)
    assert not failed, "".join(failed)
