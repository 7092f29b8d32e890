"""Hooks of the site's build (mkdocs.yml)."""

import re

WITH_FORMULAS = ("maths.md", "families.md", "language.md")
CODE = re.compile(r"(```.*?```|`[^`]*`|\]\([^)]*\))", re.DOTALL)
SUBSCRIPT = re.compile(r"(?<=\w|\u0303|\u0304)_(old|ii|[a-zθ])(?![a-z])")
TILDE = re.compile("Σ\u0303")  # most fonts draw the tilde into the letter
SUPERSCRIPT = re.compile(r"\^(−?½|\([^)]*\))")


def on_page_markdown(markdown, page, **_):
    """Formulas are plain text (Σ_q^½); on pages that have some, their indices are set as indices."""
    if page.file.src_uri not in WITH_FORMULAS:
        return markdown
    parts = CODE.split(markdown)
    return "".join(part if i % 2 else _with_indices(part) for i, part in enumerate(parts))


def _with_indices(text):
    text = TILDE.sub('<span class="tilde">Σ</span>', text)
    text = SUBSCRIPT.sub(r"<sub>\1</sub>", text)
    return SUPERSCRIPT.sub(lambda match: f"<sup>{match[1].strip('()')}</sup>", text)
