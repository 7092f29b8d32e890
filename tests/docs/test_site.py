"""The built site: strict, offline, with every public name in it."""

import importlib
import re
from html.parser import HTMLParser

import pytest

API = (("trpl", "trpl.html"), ("trpl.torch", "torch.html"), ("trpl.jax", "jax.html"))


@pytest.mark.parametrize(("module", "page"), API)
def test_every_public_name_has_its_place(site, module, page):
    text = (site / "api" / page).read_text(encoding="utf-8")
    for name in importlib.import_module(module).__all__:
        assert f'id="{module}.{name}"' in text, f"{module}.{name} is missing from docs/api"


ELSEWHERE = (
    ("trpl.torch.head", ("Head", "Scores", "choose_kept", "score_kept"), "torch.html"),
    ("trpl.torch.tokens", ("project_tokens", "ProjectedTokens", "trust_region_loss", "TokenLoss"), "torch.html"),
    ("trpl.jax.tokens", ("choose_kept", "score_kept"), "jax.html"),
    ("trpl.integrations.trl", ("TrustRegionGRPOConfig", "TrustRegionGRPOTrainer"), "rest.html"),
)


@pytest.mark.parametrize(("module", "names", "page"), ELSEWHERE)
def test_names_of_deeper_modules_have_their_place(site, module, names, page):
    text = (site / "api" / page).read_text(encoding="utf-8")
    for name in names:
        assert re.search(rf'id="{module}(\.\w+)?\.{name}"', text), f"{module}.{name} is missing from docs/api"


class Sources(HTMLParser):
    """Addresses that a browser fetches by itself."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(attributes.get("src") or "")
        if tag == "link" and attributes.get("rel") in ("stylesheet", "preconnect", "preload", "icon", "shortcut icon"):
            self.found.append(attributes.get("href") or "")


def test_nothing_comes_from_the_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        sources = Sources()
        sources.feed(page.read_text(encoding="utf-8"))
        far = [address for address in sources.found if re.match(r"(https?:)?//", address)]
        assert not far, f"{page.name} loads {far}"


def test_no_formula_is_left_as_source(site):
    """Formulas are plain text: nothing on the pages waits for a renderer."""
    for page in site.glob("*.html"):
        assert not re.search(r"\\\(|\\\[|\\frac|\$\$", page.read_text(encoding="utf-8")), page.name
