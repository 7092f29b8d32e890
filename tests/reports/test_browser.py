"""The page in a real browser: it loads in silence, methods can be hidden, tables sort, it prints."""

import json
import re
import zlib

import chromium
import pytest
from synthetic_runs import run_config, write_run, write_runs

from trpl.reports.page import write_report

pytestmark = pytest.mark.skipif(chromium.find() is None, reason=chromium.HOW_TO_INSTALL)

METHODS = ("kl", "w2", "ppo")
TASKS = ("Hopper-v4", "HalfCheetah-v4")
NASTY = "<script>window.broken = true</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    write_runs(root / "runs", methods=METHODS, tasks=TASKS, num_epochs=60)
    write_run(root / "runs" / "nasty", run_config(NASTY, "Hopper-v4", 0, 60, mean_bound=None))
    return write_report([root / "runs"], root / "out", figures=False)


@pytest.fixture
def page(browser, report):
    browser.look()
    browser.open(report)
    return browser


def test_loads_without_complaint_and_without_network(page):
    assert page.problems() == []
    assert [url.split(":")[0] for url in page.requests()] == ["file"]
    assert page.run("window.broken") is None
    assert page.run("document.querySelectorAll('#returns svg[role=img]').length") == len(TASKS)
    for chart in ("returns", "clock", "kl", "entropy", "audit-charts", "profiles"):
        assert page.run(f"document.querySelectorAll('#{chart} path.line').length") > 0, chart


def test_ticks_of_a_narrow_range_are_told_apart(browser, tmp_path):
    """From −119.6 to −117.7: in three digits two of the labels would be −119."""
    folder = write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, 20))
    file = folder / "evaluations.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(x | {"returns": [-119.6 + 0.1 * n]}) + "\n" for n, x in enumerate(lines)))
    browser.open(write_report([folder], tmp_path / "out", figures=False))
    ends = "[...document.querySelectorAll('#returns svg text[text-anchor=end]')].map(t => t.textContent)"
    labels = browser.run(f"{ends}.join(' ')").split()
    assert len(labels) > 2
    assert len(labels) == len(set(labels))


def test_a_run_of_one_epoch_is_a_point(browser, tmp_path):
    write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, 1))
    browser.open(write_report([tmp_path / "run"], tmp_path / "out", figures=False))
    for chart in ("returns", "kl", "entropy"):
        assert browser.run(f"document.querySelectorAll('#{chart} circle.dot').length") == 1, chart


def test_a_narrow_range_of_a_logarithmic_axis_has_ticks(browser, tmp_path):
    """From 0.041 to 0.046, between the 0.02 and the 0.05 that a wide axis has."""
    folder = write_run(tmp_path / "run", run_config("kl", "Hopper-v4", 0, 6))
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(x | {"kl": 0.041 + 0.001 * n}) + "\n" for n, x in enumerate(lines)))
    browser.open(write_report([folder], tmp_path / "out", figures=False))
    assert browser.run("document.querySelectorAll('#kl svg text[text-anchor=end]').length") >= 3


def test_a_method_can_be_hidden_and_shown_again(page):
    shown = (
        "[...new Set([...document.querySelectorAll('#returns path.line')].map(p => p.dataset.method))].sort().join(' ')"
    )
    press = "[...document.querySelectorAll('#methods button')].find(b => b.textContent === 'KL').click()"
    state = "[...document.querySelectorAll('#methods button')].find(b => b.textContent === 'KL').ariaPressed"
    assert page.run(shown) == f"{NASTY} KL PPO W2"
    page.run(press)
    assert page.run(shown) == f"{NASTY} PPO W2"
    assert page.run(state) == "false"
    assert page.run("document.querySelectorAll('#kl path.line[data-method=KL]').length") == 0
    page.run(press)
    assert page.run(shown) == f"{NASTY} KL PPO W2"


def test_table_sorts_falling_rising_and_back(page):
    names = "[...document.querySelectorAll('#table1 tbody tr')].map(r => r.cells[0].textContent)"
    values = "[...document.querySelectorAll('#table1 tbody tr')].map(r => parseFloat(r.cells[4].dataset.value))"
    click = "document.querySelectorAll('#table1 th[aria-sort]')[4].firstElementChild.click()"
    original = page.run(names)
    page.run(click)
    falling = [value for value in page.run(values) if value is not None]
    assert falling == sorted(falling, reverse=True)
    assert len(falling) == 3
    assert page.run(names)[-1] == NASTY  # no number there: last
    page.run(click)
    rising = [value for value in page.run(values) if value is not None]
    assert rising == falling[::-1]
    assert page.run(names)[-1] == NASTY
    assert page.run("document.querySelectorAll('#table1 th[aria-sort]')[4].ariaSort") == "ascending"
    page.run(click)
    assert page.run(names) == original
    page.run("document.querySelectorAll('#table1 th[aria-sort]')[0].firstElementChild.click()")
    assert page.run(names) == sorted(original, reverse=True)


def test_pointing_shows_values(page):
    page.run("document.querySelector('#returns svg').scrollIntoView()")
    box = "document.querySelector('#returns svg').getBoundingClientRect()"
    left, top, width, height = (page.run(f"{box}.{side}") for side in ("left", "top", "width", "height"))
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + 0.6 * width, y=top + 0.5 * height)
    text = page.run("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText")
    assert re.search(r"KL\s+\d{3,4}\s+\[\d+, \d+\]", text)
    assert "environment steps" in text
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert page.run("document.getElementById('tip').hidden") is True


def test_values_can_be_read_by_keyboard(page):
    page.run("document.querySelector('#kl svg').focus()")
    for key in ("Home", "ArrowRight"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    assert page.run("document.querySelector('#tip strong').textContent") == "4,096 environment steps"


def test_audit_measure_can_be_chosen(page):
    before = page.run("document.querySelector('#audit-charts path.line').getAttribute('d')")
    page.run("document.getElementById('measure').selectedIndex = 1")
    page.run("document.getElementById('measure').dispatchEvent(new Event('change'))")
    assert page.run("document.querySelector('#audit-charts path.line').getAttribute('d')") != before
    assert page.run("document.querySelectorAll('#audit-charts .bound').length") == len(TASKS)


@pytest.mark.parametrize("width", [1280, 390])
def test_page_does_not_scroll_sideways(page, width):
    page.look(width=width)
    assert page.run("document.documentElement.scrollWidth") <= width


def test_dark_and_light(page):
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.run(background) == "rgb(255, 255, 255)"
    page.look(dark=True)
    assert page.run(background) == "rgb(21, 23, 27)"


def test_prints(page):
    page.look(dark=True)
    document = page.pdf()
    assert document.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", document)) >= 3
    assert page.run("document.querySelectorAll('details[open]').length") == 0  # folded again
    assert page.problems() == []
    assert len(zlib.compress(document)) > 10_000
