"""Hooks of the site's build (mkdocs.yml)."""

import re
from pathlib import Path

OPTIONAL = {"Reliability": "reliability.md"}
CODE = re.compile(r"(```.*?```|`[^`]*`|\]\([^)]*\))", re.DOTALL)
SUBSCRIPT = re.compile(r"(?<=\w|\u0303|\u0304)_(old|ii|[a-zθ])(?![a-z])")
TILDE = re.compile("Σ\u0303")  # most fonts draw the tilde into the letter
SUPERSCRIPT = re.compile(r"\^(−?½|\([^)]*\))")


def on_config(config):
    """Pages that need not be there are in the navigation when they are."""
    at = next(i for i, entry in enumerate(config["nav"]) if "When it fails" in entry)
    for title, page in OPTIONAL.items():
        if (Path(config["docs_dir"]) / page).exists():
            config["nav"].insert(at, {title: page})
    return config


def on_page_markdown(markdown, page, **_):
    """Formulas are plain text (Σ_q^½); on the page of the maths their indices are set as indices."""
    if page.file.src_uri != "maths.md":
        return markdown
    parts = CODE.split(markdown)
    return "".join(part if i % 2 else _with_indices(part) for i, part in enumerate(parts))


def _with_indices(text):
    text = TILDE.sub('<span class="tilde">Σ</span>', text)
    text = SUBSCRIPT.sub(r"<sub>\1</sub>", text)
    return SUPERSCRIPT.sub(lambda match: f"<sup>{match[1].strip('()')}</sup>", text)
