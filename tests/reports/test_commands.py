"""`trpl report` and `trpl figure` as a user types them."""

import pytest
from synthetic_runs import run_config, write_run, write_runs

from trpl.cli import main


def test_report_says_where_the_page_is(tmp_path, capsys):
    root = write_runs(tmp_path / "runs", num_epochs=30, zipped=True)
    assert main(["report", str(root), "--out", str(tmp_path / "out"), "--title", "Mine", "--no-figures"]) == 0
    page = tmp_path / "out" / "index.html"
    assert capsys.readouterr().out.strip() == str(page)
    assert "<h1>Mine</h1>" in page.read_text()
    assert not list(page.parent.glob("*.png"))


def test_unlike_runs_end_in_one_line(tmp_path, capsys):
    """The advice has what every run needs, not only the first two."""
    unlike = ({}, {"regression_weight": 1.0}, {"mean_bound": 0.1})
    for seed, settings in enumerate(unlike):
        write_run(tmp_path / str(seed), run_config("kl", "Hopper-v4", seed, 30, **settings))
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trpl: runs of kl on Hopper-v4 cannot be averaged")
    assert error.endswith("tell them apart with --by mean_bound --by regression_weight.\n")
    assert error.count("\n") == 1
    options = ["--by", "mean_bound", "--by", "regression_weight", "--no-figures", "--out", str(tmp_path / "out")]
    assert main(["report", str(tmp_path), *options]) == 0


@pytest.mark.parametrize("name", ["interpolation", "curves"])
def test_figure_names_its_files(tmp_path, capsys, name):
    root = write_runs(tmp_path / "runs", num_epochs=5)
    assert main(["figure", name, str(root), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"{name}.{kind}") for kind in ("png", "svg")]


def test_unknown_figure(capsys):
    assert main(["figure", "table"]) == 2
    assert "penalty-ablation" in capsys.readouterr().err
