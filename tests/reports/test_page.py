"""The page's text and the files beside it; test_browser.py looks at it in a browser."""

import csv
import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from synthetic_runs import run_config, write_run, write_runs

from trpl.errors import RecordError
from trpl.reports.markup import cell, embedded_json, tag
from trpl.reports.page import write_report


def rows_of(file):
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    methods, tasks = ("frobenius", "kl", "ppo", "kl-e"), ("Hopper-v4", "HalfCheetah-v4")
    write_runs(root / "runs", methods=methods, tasks=tasks, num_epochs=60)
    return write_report([root / "runs"], root / "out", title="Synthetic runs")


def test_files_beside_the_page(report):
    names = {file.name for file in report.parent.iterdir()}
    figures = {"returns", "kl", "entropy", "audit-mean", "audit-cov", "wall-clock", "profiles"}
    assert names >= {f"{name}.{kind}" for name in figures for kind in ("png", "svg")}
    tables = {"table1", "runs", "comparisons", "aggregates", "profiles", "audit", "hyperparameters", "curves"}
    assert names >= {f"{name}.csv" for name in tables}
    linked = set(re.findall(r'href="([^"#]+)"', report.read_text()))
    assert linked == names - {"index.html"}


def test_one_bound_on_the_whole_kl_has_its_curves(tmp_path):
    """Of discrete policies, kl-joint, PAPI and TRPO the page had a row of the audit and nothing over training."""
    folder = write_run(tmp_path / "runs", run_config("kl", "CartPole-v1", 0, 3))
    metrics = folder / "metrics.jsonl"
    metrics.write_text(re.sub(r'"mean_bound": 0.03, "cov_bound": 0.001', '"bound": 0.03', metrics.read_text()))
    page = write_report([folder], tmp_path / "out", figures=False)
    data = data_of(page.read_text())
    recorded = {line["measure"] for line in data["lines"]}
    shown = [entry["label"] for entry in data["audit"] if entry["name"] in recorded]
    assert shown == ["whole KL: network, mean over states", "whole KL: network, worst state"]


def test_a_single_evaluation_has_no_spread(tmp_path):
    folder = write_run(tmp_path / "runs", run_config("kl", "Hopper-v4", 0, 30), eval_every=20)
    page = write_report([folder], tmp_path / "out", figures=False).read_text()
    assert page.count('<span class="pooled">1 seed</span>') == 2
    assert "±nan" not in page


def test_table_has_ours_and_the_papers(report):
    rows = {(row["task"], row["method"]): row for row in rows_of(report.parent / "table1.csv")}
    runs = [
        row for row in rows_of(report.parent / "runs.csv") if (row["task"], row["method"]) == ("HalfCheetah-v4", "KL")
    ]
    row = rows["HalfCheetah-v4", "KL"]
    finals = [float(run["final"]) for run in runs]
    assert float(row["final"]) == pytest.approx(sum(finals) / 3, rel=1e-6)
    half_width = 4.302653 * np.std(finals, ddof=1) / np.sqrt(3)  # Student's
    assert float(row["final_low"]) == pytest.approx(float(row["final"]) - half_width, rel=1e-5)
    assert float(row["final_high"]) == pytest.approx(float(row["final"]) + half_width, rel=1e-5)
    assert (row["paper_final"], row["paper_total_steps"]) == ("", "3000320")  # another budget: not set side by side
    page = report.read_text()
    assert f'<strong class="value">{float(row["final"]):.0f}</strong>' in page
    assert "paper 4255 ± 17" not in page


def test_the_papers_numbers_stand_beside_runs_of_its_budget(tmp_path):
    write_runs(tmp_path / "runs", methods=("kl",), seeds=range(2), num_epochs=1465)
    page = write_report([tmp_path / "runs"], tmp_path / "out", figures=False).read_text()
    row = next(r for r in rows_of(tmp_path / "out" / "table1.csv") if r["task"] == "HalfCheetah-v4")
    assert (row["paper_final"], row["paper_final_half_width"], row["paper_total_steps"]) == ("4255", "17", "3000320")
    assert "paper 4255 ± 17" in page


def test_means_shown_as_the_same_number_are_both_the_best(tmp_path):
    root = write_runs(tmp_path / "runs", num_epochs=40)
    for method, reached in (("kl", 500.0), ("ppo", 499.98)):
        for file in root.glob(f"*/{method}/*/evaluations.jsonl"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            file.write_text("".join(json.dumps(line | {"returns": [reached] * 5}) + "\n" for line in lines))
    page = write_report([root], tmp_path / "out", figures=False).read_text()
    assert page.count('<strong class="value">500</strong>') == 4  # both columns of both methods


def test_returns_below_ten_have_decimals(tmp_path):
    root = write_runs(tmp_path / "runs", num_epochs=40)
    for method, reached in (("kl", 0.74), ("ppo", 0.71)):
        for file in root.glob(f"*/{method}/*/evaluations.jsonl"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            file.write_text("".join(json.dumps(line | {"returns": [reached] * 5}) + "\n" for line in lines))
    page = write_report([root], tmp_path / "out", figures=False).read_text()
    assert page.count('<strong class="value">0.74</strong>') == 2  # both columns; 1 would be shared with ppo
    assert page.count('<span class="value">0.71</span>') == 2
    assert "[0.74, 0.74]" in page
    assert re.search(r">-?0\.03</td>", page)  # the difference between the two
    assert ">0.71</td>" in page  # a run


def test_runs_that_were_to_stop_are_not_called_unfinished(tmp_path):
    for seed in range(2):
        config = run_config("kl", "Hopper-v4", seed, 200, stop_after=60 * 2048)
        write_run(tmp_path / "runs" / str(seed), config, done=0.3)
    page = write_report([tmp_path / "runs"], tmp_path / "out", figures=False).read_text()
    assert "Stopped as planned (--stop-after), so without a final number: KL on Hopper-v4." in page
    assert "stopped before" in page
    assert not re.search("not finished|no run has ended|last evaluations", page)


def test_comparing_w2_with_frobenius_says_how_often_they_differ(tmp_path):
    """Their mean parts are equal: where the covariance bound does not bind they are one algorithm."""
    root = write_runs(tmp_path / "runs", methods=("w2", "frobenius"), num_epochs=40)
    page = write_report([root], tmp_path / "out", figures=False).read_text()
    most = max(100 * float(row["share_binding"]) for row in rows_of(tmp_path / "out" / "audit.csv"))
    assert f"here in at most {most:.1f} % of " in page
    assert "Binds (% of states)" in page
    other = write_runs(tmp_path / "others", methods=("kl", "w2"), num_epochs=40)
    assert "project means alike" not in write_report([other], tmp_path / "out", figures=False).read_text()


def test_page_asks_for_nothing_from_elsewhere(report):
    page = report.read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=\"?(https?:)?//", page)
    assert "@import" not in page


def test_the_same_runs_give_the_same_page(report, tmp_path):
    again = write_report([report.parents[1] / "runs"], tmp_path / "again", title="Synthetic runs")
    for file in report.parent.iterdir():
        assert (again.parent / file.name).read_bytes() == file.read_bytes(), file.name


def test_everything_from_a_run_is_escaped(tmp_path):
    nasty = "</script><script>alert(1)</script>&\u2028"
    for seed in range(2):
        config = run_config(nasty, nasty, seed, 30, source=nasty, mean_bound=None)
        folder = write_run(tmp_path / "runs" / f"<script>{seed}", config)
        about = json.loads((folder / "config.json").read_text())
        about |= {"command": nasty, "commit": nasty, "created": nasty, "versions": {nasty: nasty}}
        (folder / "config.json").write_text(json.dumps(about))
    page = write_report([tmp_path / "runs"], tmp_path / "out", title=nasty, figures=False).read_text()
    assert page.count("<script") == 2  # the data and the page's own
    assert page.count("</script>") == 2
    assert data_of(page)["methods"][0]["name"] == nasty
    assert page.count("&lt;script&gt;alert(1)") > 5


def test_names_are_text_in_the_figures_too(tmp_path):
    """Markup in SVG is escaped, and a dollar does not begin a formula, which would not even parse here."""
    for method, task in (("<script>$\\frac</script>", "$a_"), ("kl", "$a_")):
        for seed in range(2):
            write_run(tmp_path / "runs" / f"{len(method)}-{seed}", run_config(method, task, seed, 30))
    page = write_report([tmp_path / "runs"], tmp_path / "out")
    for file in page.parent.glob("*.svg"):
        text = file.read_text()
        assert "<script" not in text.lower()
        ElementTree.fromstring(text)
    assert (page.parent / "returns.svg").exists()


def test_a_name_is_no_formula_of_a_spreadsheet_either(tmp_path):
    for seed in range(2):
        write_run(tmp_path / "runs" / str(seed), run_config("=HYPERLINK(1)", "-1+1", seed, 30, discount=-0.5))
    page = write_report([tmp_path / "runs"], tmp_path / "out", figures=False)
    row = rows_of(page.parent / "table1.csv")[0]
    assert (row["task"], row["method"]) == ("'-1+1", "'=HYPERLINK(1)")
    settings = {row["setting"]: row["value"] for row in rows_of(page.parent / "hyperparameters.csv")}
    assert settings["discount"] == "-0.5"


def test_notes_say_what_was_passed_over_and_thinned(tmp_path):
    write_runs(tmp_path / "runs", methods=("kl",), seeds=range(2), num_epochs=400)
    half = write_run(tmp_path / "runs" / "half", run_config("kl", "HalfCheetah-v4", 5, 400), done=0.5)
    page = write_report([tmp_path / "runs"], tmp_path / "out", figures=False).read_text()
    assert "thinned for display to 240 of up to 400 epochs" in page
    assert f"{half}: stopped at {200 * 2048} of {400 * 2048} steps" in page
    assert max(len(line["mean"]) for line in data_of(page)["lines"]) == 240


def test_runs_of_another_budget_are_read_at_the_papers_steps_too(tmp_path):
    write_runs(tmp_path / "runs", methods=("kl",), num_epochs=489)
    page = write_report([tmp_path / "runs"], tmp_path / "out", figures=False).read_text()
    assert "At the steps of the paper" in page
    row = rows_of(tmp_path / "out" / "table1.csv")[0]
    assert float(row["same_steps"]) > float(row["early"])


def test_an_unfinished_single_run_gives_a_page(tmp_path):
    write_run(tmp_path / "runs" / "one", run_config("ppo", "trpl/Reacher5Sparse-v0", 0, 50), done=0.1, timed=False)
    page = write_report([tmp_path / "runs"], tmp_path / "out").read_text()
    assert "no run has ended" in page
    assert "None of these runs has a bound" in page
    assert rows_of(tmp_path / "out" / "table1.csv")[0]["final"] == ""


@pytest.mark.parametrize(
    ("num_epochs", "total", "words"),
    [(30, 60, "not finished"), (10, 10, "10 of the 20 epochs needed"), (22, 22, "22 of the 24 epochs needed")],
)
def test_an_empty_cell_says_why_and_what_there_is(tmp_path, num_epochs, total, words):
    config = run_config("kl", "Hopper-v4", 0, num_epochs=total)
    write_run(tmp_path / "run", config, done=num_epochs / total)
    page = write_report([tmp_path / "run"], tmp_path / "out", figures=False).read_text()
    assert words in page
    if num_epochs < 20:
        assert "last evaluations" in page
        assert "20,480 environment steps in all" in page
        assert "Scores over tasks need" in page
        assert "Comparisons need" in page


def test_unlike_runs_are_refused_and_told_apart_on_request(tmp_path):
    for seed, weight in enumerate((1.0, 8.0)):
        config = run_config("kl", "Hopper-v4", seed, 30, regression_weight=weight)
        write_run(tmp_path / "runs" / str(seed), config)
    with pytest.raises(RecordError, match=r"regression_weight is 1\.0 and 8\.0"):
        write_report([tmp_path / "runs"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    page = write_report([tmp_path / "runs"], tmp_path / "out", by=("regression_weight",), figures=False)
    assert "KL (regression_weight=8.0)" in page.read_text()


def test_a_run_resumed_with_other_versions_shows_them_all(tmp_path):
    """But not those of a stretch that was killed before it had saved anything."""
    for seed in range(2):
        folder = write_run(tmp_path / "runs" / str(seed), run_config("kl", "Hopper-v4", seed, 30))
        about = json.loads((folder / "config.json").read_text())
        parts = [(0, "a", "1.0"), (5, "a", "1.0"), (9, "b", "1.5"), (9, "b", "2.0"), (12, "b", "2.0")]
        about["stretches"] = [
            {"after_epoch": after, "total_steps": 1, "commit": commit, "versions": {"numpy": number, "python": "3.11"}}
            for after, commit, number in parts[: 2 if seed == 0 else 5]
        ]
        (folder / "config.json").write_text(json.dumps(about))
    page = write_report([tmp_path / "runs"], tmp_path / "out", figures=False).read_text()
    rows = re.findall(r"<td><code>([^<]*)</code></td><td>(numpy[^<]*)</td>", page)
    assert sorted(rows) == [("a", "numpy 1.0, python 3.11"), ("a → b", "numpy 1.0 → 2.0, python 3.11")]


def test_markup_escapes_text_attributes_and_json():
    assert tag("p", "a<b", [1, None], title='"x"') == '<p title="&quot;x&quot;">a&lt;b1</p>'
    assert tag("td", hidden=True, id=None) == "<td hidden></td>"
    assert embedded_json({"a": "</script><!--&"}) == '{"a":"\\u003c/script\\u003e\\u003c!--\\u0026"}'
    assert cell(float("nan")) == '<td class="number missing">–</td>'
    assert cell(1234567) == '<td class="number" data-value="1234567">1\u202f234\u202f567</td>'
    with pytest.raises(ValueError):
        embedded_json(float("nan"))
