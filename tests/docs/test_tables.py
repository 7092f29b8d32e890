"""Tables: those made from benchmark files, and those written by hand."""

import json
import sys

import pytest
from blocks import ROOT

from trpl.presets import named_sweeps


@pytest.fixture
def make_tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.delitem(sys.modules, "make_tables", raising=False)
    import make_tables

    return make_tables


def test_rows_become_a_table_with_its_command(make_tables, tmp_path):
    rows = [{"what": "kl|w2", "value": 1234.5, "met": True}, {"what": "ppo", "value": 0.0312, "met": None}]
    (tmp_path / "training.json").write_text(json.dumps({"table": rows, "rates": {"kl": 1.0}}))
    case = {"case": "full", "dtype": "float64", "unit": "ratio", "eigvalsh_milliseconds": 5.0, "bound_held": "4e-14"}
    eager = case | {"host": "eager", "milliseconds": 7.0, "value": 1.4, "bar": 2.0, "met": True}
    compiled = case | {"host": "compiled", "milliseconds": 8.4, "value": 1.68, "bar": 1.47, "met": False}
    peer = {"bound_held": "2e-10", "peer_milliseconds": "40–44"}
    layers = [eager | {"peer_milliseconds": "40–44"}, compiled | peer]
    (tmp_path / "layers.json").write_text(json.dumps(layers))
    make_tables.main(tmp_path, tmp_path / "out" / "bench.md")
    text = (tmp_path / "out" / "bench.md").read_text()
    assert text.index("### Layers") < text.index("### Training")
    assert "| what | value | bar met |\n| --- | ---: | --- |\n| kl\\|w2 | 1,234 | yes |\n| ppo | 0.0312 | – |" in text
    assert "`python benchmarks/training.py --out bench/training.json`" in text
    assert "| full | 7 (1.4) | 8.4 (1.2) ✗ | – | 2 | 2e-10 | 40–44 |" in text  # compiled against eager: 8.4 / 7
    assert (tmp_path / "images" / "layers.svg").exists()


def test_plain_values_become_rows(make_tables):
    assert make_tables.rows_of({"seconds": 2.0, "runs": [1, 2]}) == [{"what": "seconds", "value": 2.0}]


def test_without_measurements_the_page_says_how_to_make_them(make_tables, tmp_path):
    make_tables.main(tmp_path, tmp_path / "bench.md")
    assert "make bench" in (tmp_path / "bench.md").read_text()


def test_the_page_on_reproduction_counts_the_runs_right():
    page = (ROOT / "docs" / "reproduce.md").read_text()
    for name, sweep in named_sweeps().items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert int(row.split("|")[3]) == len(sweep.configs)


def test_the_page_on_reproduction_names_integrators_and_masses():
    """They differ between versions of MuJoCo; the page says what the installed one computes with."""
    import mujoco

    from trpl.rollouts import make_environment

    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    section = page.partition("## Simulator")[2].partition("\n## ")[0]
    if mujoco.__version__ not in section:
        pytest.skip(f"the page is of another version than MuJoCo {mujoco.__version__}")
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in section.splitlines() if "×" in line]
    for task, integrator, steps, mass in rows:
        env = make_environment(task).unwrapped
        option = env.model.opt
        assert mujoco.mjtIntegrator(option.integrator).name == f"mjINT_{integrator.upper()}", task
        assert steps == f"{env.frame_skip} × {option.timestep:g} s", task
        assert mass == f"{env.model.body_mass.sum():.2f}", task
    assert len(rows) == 6


def test_the_table_of_families_is_that_of_the_registry(monkeypatch):
    """Made by `python docs/make_families.py`, which tries what each family takes."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import make_families

    assert (ROOT / "docs" / "generated" / "families.md").read_text(encoding="utf-8") == make_families.table()


def test_the_hosts_pages_have_the_tables_of_their_results(monkeypatch):
    """Made by `python docs/make_hosts.py`; no return is written by hand."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import make_hosts

    for file in make_hosts.RESULTS.glob("*.json"):
        made = (make_hosts.OUT / f"{file.stem}.md").read_text(encoding="utf-8")
        assert made == make_hosts.table(json.loads(file.read_text(encoding="utf-8"))), file.stem
        page = (ROOT / "docs" / f"{file.stem}.md").read_text(encoding="utf-8")
        assert f'--8<-- "docs/generated/{file.stem}.md"' in page
