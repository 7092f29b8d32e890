"""The page of results and the records it is made from."""

import gzip
import json
import re
import sys

import pytest
from blocks import ROOT

DOCS = ROOT / "docs"
PAGE, GENERATED, RESULTS = ROOT / "docs" / "results.md", ROOT / "docs" / "generated", ROOT / "results"


@pytest.fixture
def made(monkeypatch):
    """The module of this name in docs/."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    for name in ("table1", "make_claims"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def load(name):
        return __import__(name)

    return load


@pytest.mark.parametrize("name", ["state", "table1"])
def test_tables_are_those_of_the_records(made, name):
    text = getattr(made("table1"), name)()
    assert (GENERATED / f"{name}.md").read_text() == text, "run python docs/make_results.py"


@pytest.mark.parametrize("name", ["claims", "kept", "late", "switches", "evaluation"])
def test_claims_are_decided_by_the_records(made, name):
    text = made("make_claims").TEXTS[name]()
    assert (GENERATED / f"{name}.md").read_text(encoding="utf-8") == text, "run python docs/make_claims.py"


def test_the_readme_shows_the_tables_numbers(made):
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Results so far")[2]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    found = made("table1").entries()
    for method, *shown in rows:
        finals = [found[method.split("`")[1], f"{task}-v4"].final for task in head[1:]]
        assert shown == [f"{float(final.estimate[0]):.0f}" for final in finals], method
    assert len(rows) > 1


def test_the_audit_of_runs_that_learn_is_that_of_the_records(made):
    text = "\n".join(made("make_bounds").healthy()) + "\n"
    assert (GENERATED / "healthy.md").read_text(encoding="utf-8") == text, "run python docs/make_bounds.py"


def test_every_claim_stands_on_the_page(made):
    letters = [claim.letter for claim in made("make_claims").claims()]
    assert letters == list("abcdefghij")


def folders(made):
    names = {entry.records for entry in made("table1").sets()}
    return [RESULTS / name for name in sorted(names) if (RESULTS / name).is_dir()]


def test_no_table_mixes_commits_of_other_bits(made):
    """One commit per folder, or commits that were shown to give the same bits."""
    for folder in folders(made):
        commits = {json.loads(file.read_text())["commit"][:8] for file in folder.rglob("config.json")}
        assert len(commits) == 1 or any(commits <= same for same in made("table1").SAME_BITS), f"{folder}: {commits}"


def test_records_are_whole(made):
    """Each has its files, and as many epochs as its budget, or its stop, asks for."""
    for config in (file for folder in folders(made) for file in folder.rglob("config.json")):
        settings = json.loads(config.read_text())["config"]
        wanted = min(settings["total_steps"], settings.get("stop_after") or settings["total_steps"])
        lines = gzip.decompress((config.parent / "metrics.jsonl.gz").read_bytes()).splitlines()
        assert json.loads(lines[-1])["steps"] >= wanted, config.parent
        assert len(lines) == -(-wanted // settings["rollout_size"]), config.parent


def test_records_and_pages_name_no_path_of_a_machine():
    paths = [*RESULTS.rglob("config.json"), *(DOCS / "reports").rglob("*.html"), *(DOCS / "reports").rglob("*.csv")]
    named = [
        str(path)
        for path in paths
        if re.search(r"--out[ =]/|[ >,\"]/(?:home|root|tmp|work|mnt|Users)/", path.read_text())
    ]
    assert not named


def test_the_page_includes_what_is_generated_and_writes_no_return_by_hand():
    page = PAGE.read_text()
    for name in ("state", "table1", "results", "claims", "kept", "late", "figures", "reacher"):
        assert f'--8<-- "docs/generated/{name}.md"' in page
        assert (GENERATED / f"{name}.md").exists()
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", page)
    assert not re.findall(r"\d{4}(?! steps)|−\d+\.\d", text), "a number of a run belongs into docs/generated"


def test_the_commands_of_the_plans_say_where_the_records_are(made):
    for entry in made("table1").sets():
        assert entry.in_ <= entry.planned
        assert entry.command in (RESULTS / f"{entry.name}.toml").read_text(), entry.name
