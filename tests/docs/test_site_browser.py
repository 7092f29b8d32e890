"""The site from the disk in a real browser: silent, without network, searchable, no wider than the window."""

import importlib.util
import time

import pytest
from blocks import ROOT

spec = importlib.util.spec_from_file_location("chromium", ROOT / "tests" / "reports" / "chromium.py")
chromium = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chromium)
pytestmark = pytest.mark.skipif(chromium.find() is None, reason=chromium.HOW_TO_INSTALL)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.parametrize("page", ["index", "choosing", "maths", "api/torch"])
def test_pages_load_in_silence_and_fit(browser, site, page):
    for width, dark in ((1280, False), (390, True)):
        browser.look(width=width, dark=dark)
        browser.open(site / f"{page}.html")
        assert browser.problems() == []
        assert {url.split(":")[0] for url in browser.requests()} <= {"file", "data", "about"}
        assert browser.run("document.documentElement.scrollWidth") <= width


def test_search_answers_from_the_disk(browser, site):
    browser.look()
    browser.open(site / "index.html")
    box = "document.querySelector('.md-search__input')"
    browser.run(f"{box}.focus(), {box}.value = 'wasserstein'")
    found, deadline = 0, time.monotonic() + 30
    while not found and time.monotonic() < deadline:  # the index loads in its own time
        browser.run(f"{box}.dispatchEvent(new KeyboardEvent('keyup', {{ key: 'n', bubbles: true }}))")
        time.sleep(0.2)
        found = browser.run("document.querySelectorAll('.md-search-result__item').length")
    assert found >= 3
