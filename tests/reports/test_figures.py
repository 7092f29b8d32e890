import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from synthetic_runs import run_config, write_run, write_runs

from trpl.errors import RecordError
from trpl.gaussians import entropy
from trpl.reports import figures
from trpl.reports.curve import curve_figure
from trpl.reports.figures import FIGURES, FROM_RUNS, write_figure
from trpl.reports.groups import group_runs
from trpl.reports.interpolation import MULTIPLIERS, OLD, PREDICTED, REGIONS, interpolated
from trpl.reports.look import RC_PARAMS, lone_points, styles
from trpl.reports.reading import read_runs

REACHER = "trpl/Reacher5Sparse-v0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Synthetic runs for every figure."""
    root = tmp_path_factory.mktemp("runs")
    write_runs(root / "tasks", methods=("kl", "ppo", "papi", "kl-e"), tasks=("Hopper-v4", "Ant-v4"), num_epochs=30)
    for seed in range(2):
        for weight in (0.5, 8.0, 0.0):
            settings = {"regression_weight": weight, "regression": "penalty" if weight else "full"}
            write_run(root / "ablation" / f"{weight}-{seed}", run_config("w2", "Ant-v4", seed, 30, **settings))
        for contextual in (False, True):
            config = run_config("kl", REACHER, seed, 30, contextual=contextual)
            write_run(root / "reacher" / f"{contextual}-{seed}", config)
    folders = {"penalty-ablation": "ablation", "reacher": "reacher"}
    return {name: root / folders.get(name, "tasks") for name in FIGURES}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_written_twice_the_same(runs, tmp_path, name):
    given = [] if name == "interpolation" else [runs[name]]
    png, svg = write_figure(name, given, tmp_path / "first")
    assert png.read_bytes().startswith(b"\x89PNG")
    ElementTree.parse(svg)
    for file in write_figure(name, given, tmp_path / "second"):
        assert file.read_bytes() == (tmp_path / "first" / file.name).read_bytes()


def drawn(name, folder):
    with mpl.rc_context():
        figure = FROM_RUNS[name](read_runs([folder])[0])
    axes = [axes for axes in figure.axes if axes.axison]
    return axes, {text.get_text() for text in figure.legends[0].get_texts()}


def test_curves_are_without_and_entropy_curves_with_entropy_control(runs):
    axes, labels = drawn("curves", runs["curves"])
    assert labels == {"KL", "PAPI", "PPO"}
    assert [a.get_title() for a in axes] == ["Hopper-v4 (3 seeds)", "Ant-v4 (3 seeds)"]
    assert all(len(a.collections) == 3 for a in axes)  # a shaded interval for each line
    _, labels = drawn("entropy-curves", runs["entropy-curves"])
    assert labels == {"KL-E", "PAPI", "PPO"}


@pytest.mark.parametrize(("epochs", "label", "last"), [(30, "steps", 61_440), (60, "(millions)", 0.12288)])
def test_few_steps_are_counted_one_by_one(tmp_path, epochs, label, last):
    write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, epochs))
    (axes,), _ = drawn("curves", tmp_path)
    assert axes.get_xlabel().endswith(label)
    assert axes.lines[0].get_xdata()[-1] == pytest.approx(last)


@pytest.mark.parametrize(("epochs", "unit"), [(30, "seconds"), (120, "minutes"), (8000, "hours")])
def test_short_times_are_not_counted_in_hours(tmp_path, epochs, unit):
    """At 2,000 steps per second: hours of half a minute had ticks like 0.0005, which overlapped."""
    write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, epochs))
    panels = figures.task_panels(group_runs(read_runs([tmp_path])[0]), figures.RETURN)
    (axes,) = figures.draw(panels, x="seconds").axes
    assert axes.get_xlabel() == f"wall-clock time ({unit})"
    seconds = epochs * 2048 / 2000
    scale = {"seconds": 1, "minutes": 60, "hours": 3600}[unit]
    assert axes.lines[0].get_xdata()[-1] == pytest.approx(seconds / scale)


@pytest.mark.parametrize("name", ["curves", "entropy-curves", "reacher"])
def test_runs_without_evaluations_have_no_returns_to_draw(tmp_path, name):
    """They were a ZeroDivisionError, or an empty panel."""
    write_run(tmp_path / "run", run_config("kl-e" if name == "entropy-curves" else "kl", REACHER, 0, 5), eval_every=9)
    with pytest.raises(RecordError, match="no return to draw: no method has an evaluation"):
        drawn(name, tmp_path)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_learning_curve_shows_all_its_points(tmp_path, epochs):
    write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, epochs))
    top, bottom = curve_figure(tmp_path / "run").axes
    lines = [*top.get_lines(), *bottom.get_lines()]
    assert len(lines) == 3
    assert {line.get_marker() for line in lines} == ({"o"} if epochs == 1 else {"None"})  # no line goes through one
    kl = bottom.get_lines()[0].get_ydata()
    assert bottom.get_ylim() == (0, pytest.approx(1.1 * max(kl)))


@pytest.mark.parametrize("name", ["curves", "kl-change"])
def test_a_run_of_one_epoch_is_a_point(tmp_path, name):
    write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, 1))
    (axes,), _ = drawn(name, tmp_path)
    (line,) = axes.get_lines()
    assert (line.get_marker(), line.get_markevery()) == ("o", [0])


def test_points_beside_others_have_no_marker():
    assert lone_points([1.0, 2.0, np.nan, 3.0, np.nan, 4.0, 5.0])["markevery"] == [3]
    assert lone_points([1.0, 2.0, np.nan]) == {}


def test_a_legend_of_long_names_stays_within_its_figure(tmp_path):
    """Variants that --by tells apart: half of their legend was cut off at both sides."""
    for method in ("kl", "ppo", "ppo-m", "w2"):
        for task in ("Hopper-v4", "Ant-v4", "Walker2d-v4"):
            for contextual in (False, True):
                config = run_config(method, task, 0, 3, contextual=contextual)
                write_run(tmp_path / f"{method}-{task}-{contextual}", config)
    with mpl.rc_context(RC_PARAMS):
        figure = FROM_RUNS["curves"](read_runs([tmp_path])[0], by=["contextual"])
        FigureCanvasAgg(figure).draw()
        legend = figure.legends[0].get_window_extent()
    assert len(figure.legends[0].get_texts()) == 8
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.width


def test_a_legend_of_one_panel_stays_within_its_figure(tmp_path):
    """One name of three settings was wider than a figure of one task."""
    for epochs in (20, 40):
        write_run(tmp_path / str(epochs), run_config("kl", "Hopper-v4", 0, 3, policy_epochs=epochs))
    with mpl.rc_context(RC_PARAMS):
        by = ["regression", "regression_weight", "policy_epochs"]
        figure = FROM_RUNS["kl-change"](read_runs([tmp_path])[0], by=by)
        FigureCanvasAgg(figure).draw()
        legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.width


def test_variants_of_a_method_do_not_look_like_another_method(tmp_path):
    """KL-E has KL's colour and a dash of its own, which a variant of KL took too."""
    configs = [run_config(method, "Ant-v4", 0, 3, warm_start=start) for method in ("kl", "kl-e") for start in ("", "x")]
    for number, config in enumerate(configs[:3]):
        write_run(tmp_path / str(number), config)
    found = styles(group_runs(read_runs([tmp_path])[0], by=("warm_start",)))
    assert len(found) == len(set(found.values())) == 3


def test_the_legend_has_the_order_of_the_methods_also_if_the_first_task_lacks_some(tmp_path):
    """It began with the first task's lines and put the others' after them: KL-E before FROB-E."""
    for task, methods in (("Hopper-v4", ["kl-e", "ppo"]), ("Ant-v4", ["frobenius-e", "kl-e", "ppo"])):
        write_runs(tmp_path, methods=methods, tasks=(task,), num_epochs=5)
    with mpl.rc_context():
        figure = FROM_RUNS["entropy-curves"](read_runs([tmp_path])[0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["PPO", "FROB-E", "KL-E"]


def test_ablation_shows_each_weight_and_the_bound(runs):
    (axes,), labels = drawn("penalty-ablation", runs["penalty-ablation"])
    assert labels == {"α = 0.5", "α = 8", "full regression", "bound"}
    assert any(np.allclose(line.get_ydata(), 0.03) for line in axes.lines)


def test_reacher_is_dashed_with_context_and_says_which_target(runs):
    (axes,), labels = drawn("reacher", runs["reacher"])
    assert labels == {"KL", "KL, contextual"}
    assert "fixed targets" in axes.get_title()
    assert {line.is_dashed() for line in axes.lines} == {True, False}


@pytest.mark.parametrize(
    ("name", "needs"),
    [("reacher", "Reacher5Sparse"), ("entropy-curves", "kl-e"), ("penalty-ablation", "regression_weight")],
)
def test_missing_runs_are_named(runs, tmp_path, name, needs):
    folder = runs["curves"] / "Hopper-v4" / "ppo"
    with pytest.raises(RecordError, match=f"figure '{name}' needs .*{needs}.*; given are ppo on Hopper-v4"):
        write_figure(name, [folder], tmp_path)


def test_the_ablation_needs_a_bound_on_the_mean(tmp_path):
    """Discrete policies have one bound on the whole KL: their figure had a bound in its legend and none drawn."""
    folder = write_run(tmp_path / "run", run_config("kl", "CartPole-v1", 0, 3))
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text().replace('"mean_bound": 0.03', '"mean_bound": null, "bound": 0.03'))
    with pytest.raises(RecordError, match="a mean_bound and different regression_weight; given are kl on CartPole-v1"):
        write_figure("penalty-ablation", [folder], tmp_path)


def test_variants_are_told_apart_on_request(tmp_path):
    for number, bound in enumerate((0.01, 0.03)):
        config = run_config("kl", "Hopper-v4", 0, num_epochs=40) | {"mean_bound": bound}
        write_run(tmp_path / f"run-{number}", config)
    with pytest.raises(RecordError, match="mean_bound"):
        figures.write_figure("curves", [tmp_path], tmp_path / "out")
    assert figures.write_figure("curves", [tmp_path], tmp_path / "out", by=["mean_bound"])
    with pytest.raises(ValueError, match="--by is for kl-change, curves"):
        figures.write_figure("reacher", [tmp_path], tmp_path / "out", by=["mean_bound"])


def test_unknown_figure_is_answered_with_those_there_are(tmp_path):
    with pytest.raises(ValueError, match="no figure 'x'; choose from interpolation"):
        write_figure("x", [], tmp_path)


def test_runs_a_figure_does_not_show_may_differ(runs, tmp_path):
    write_figure("reacher", [runs["reacher"], runs["penalty-ablation"]], tmp_path)


def test_interpolations_are_those_of_the_paper():
    """Covariances, square roots and precisions are interpolated: (new + η old)/(1 + η)."""
    old, new, eta = OLD.std**2, PREDICTED.std**2, np.geomspace(1e-4, 1e4, 17)[:, None]

    def between(transform, back):
        return back((transform(new) + eta * transform(old)) / (1 + eta))

    expected = {
        "frobenius": between(lambda v: v, lambda v: v),
        "w2": between(np.sqrt, np.square),
        "kl": between(np.reciprocal, np.reciprocal),
    }
    for name, region in REGIONS.items():
        np.testing.assert_allclose(interpolated(region, eta[:, 0]).std ** 2, expected[name], rtol=1e-9)


def test_entropy_rises_for_frobenius_and_w2_and_falls_for_kl():
    start = entropy(OLD)
    assert entropy(PREDICTED) == pytest.approx(start)
    for name, sign in (("frobenius", 1), ("w2", 1), ("kl", -1)):
        assert (sign * (entropy(interpolated(REGIONS[name], MULTIPLIERS)) - start) > 0.1).all()


def test_methods_look_different(runs):
    groups = figures.group_runs(read_runs([runs["curves"]])[0])
    found = styles(groups)
    assert len(set(found.values())) == len(found) == 4
    assert found["KL"].colour == found["KL-E"].colour
