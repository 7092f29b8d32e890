"""Bad files, briefly: `python stress/files.py` does the same at length. And what no file of the package may contain."""

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FORBIDDEN = {
    "pickle": r"\bc?[pP]ickle\b(?!d)",
    "dill, joblib, marshal, shelve": r"\b(import|from)\s+(dill|joblib|marshal|shelve|cloudpickle)\b",
    "eval": r"(?<![\w.])eval\(",
    "exec": r"(?<![\w.])exec\(",
    "compile of text": r"(?<![\w.])compile\(",
    "torch.load without weights_only": r"torch\.load\((?![^)]*weights_only=True)",
    "yaml.load": r"\byaml\.(unsafe_)?load\(",
    "np.load with pickles": r"allow_pickle\s*=\s*True",
    "np.load that does not say so": r"np\.load\((?![^)]*allow_pickle=False)",
    "a shell": r"shell\s*=\s*True|os\.(system|popen)\(",
    "extractall": r"\.extractall\(",
}


@pytest.mark.slow
def test_bad_files_get_a_message_or_are_read(stressed):
    figures = stressed("files.py", "--cases", "2000")
    assert len(figures["doors"]) == 13
    assert {name: found for name, found in figures["doors"].items() if "failure" in found} == {}
    assert all(
        found.get("read") for name, found in figures["doors"].items() if found["cases"] > 50
    )  # some are harmless


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_way_to_run_what_a_file_says(what):
    found = []
    for file in SOURCE.rglob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            spoken = re.sub(r'""".*?"""|#.*', "", line)
            if re.search(FORBIDDEN[what], spoken) and not _in_docstring(file, number):
                found.append(f"{file}:{number}: {line.strip()}")
    assert found == []


def _in_docstring(file: Path, number: int) -> bool:
    import ast

    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            if node.lineno <= number <= node.end_lineno:
                return True
    return False


def test_the_search_finds_what_it_looks_for():
    """Each pattern against a line it must catch, and lines it must not."""
    caught = {
        "pickle": "import pickle", "dill, joblib, marshal, shelve": "from joblib import load", "eval": "x = eval(text)",
        "exec": "exec(code)", "compile of text": "compile(text, name, mode)",
        "torch.load without weights_only": "torch.load(path, weights_only=False)", "yaml.load": "yaml.load(text)",
        "np.load with pickles": "np.load(path, allow_pickle=True)", "np.load that does not say so": "np.load(path)",
        "a shell": "subprocess.run(words, shell=True)", "extractall": "archive.extractall(folder)",
    }  # fmt: skip
    assert caught.keys() == FORBIDDEN.keys()
    for what, line in caught.items():
        assert re.search(FORBIDDEN[what], line), what
    for line in (
        "model.eval()",
        "torch.load(path, weights_only=True)",
        "re.compile(x)",
        "np.load(p, allow_pickle=False)",
    ):
        assert not any(re.search(pattern, line) for pattern in FORBIDDEN.values()), line
