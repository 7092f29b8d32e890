"""Tables of the documentation from what `make bench` measured.

    python docs/make_tables.py [BENCH_FOLDER] [OUT_FILE]

Reads bench/*.json and writes docs/generated/bench.md, which the page on speed includes. A file holds rows (a list of
flat objects), or an object with rows under "table", or an object of plain values.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TITLES = {
    "layers": "Layers: forward and backward, one thread",
    "families": "Categorical layers beside log_softmax, forward and backward, one thread",
    "cliffs": "Growth: the steepest step of each sweep; a cliff is more than 2",
    "training": "Training, one core, one thread",
    "sweep": "Sweeps: eight short runs on two cores",
    "report_speed": "Reports: 500 runs of 1465 epochs",
    "integrations": "Integrations, one thread",
}
HEADINGS = {
    "met": "bar met",
    "eigvalsh_milliseconds": "eigvalsh, ms",
    "milliseconds": "ms",
    "copying_milliseconds": "copying, ms",
}
MISSING = """!!! note "Not measured yet"

    No measurement is recorded here. `make bench` makes `bench/*.json`, and `python docs/make_tables.py` this section
    from them.
"""


def main(bench: Path, out: Path) -> None:
    sections = [section(file) for file in sorted(bench.glob("*.json"), key=order)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(filter(None, sections)) or MISSING, encoding="utf-8")


def order(file: Path) -> tuple[int, str]:
    known = list(TITLES)
    return known.index(file.stem) if file.stem in known else len(known), file.stem


def section(file: Path) -> str:
    """Heading, table, and the command that made it; empty where the file holds no rows."""
    rows = rows_of(json.loads(file.read_text(encoding="utf-8")))
    if not rows:
        return ""
    words = " speed latency" if file.stem == "integrations" else ""
    command = f"`python benchmarks/{file.stem}.py{words} --out bench/{file.name}`"
    return f"### {TITLES.get(file.stem, file.stem.capitalize())}\n\n{table(rows)}\n\n*{command}*\n"


def rows_of(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, dict) and isinstance(content.get("table"), list):
        content = content["table"]
    elif isinstance(content, dict):
        content = [
            {"what": name, "value": value} for name, value in content.items() if not isinstance(value, dict | list)
        ]
    return [row for row in content if isinstance(row, dict)] if isinstance(content, list) else []


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown; numbers to the right, columns in the order in which they first appear."""
    columns = list(
        dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, dict | list))
    )
    numeric = {name for name in columns if all(is_number(row.get(name)) for row in rows)}
    lines = [
        [HEADINGS.get(name, name.replace("_", " ")) for name in columns],
        ["---:" if name in numeric else "---" for name in columns],
        *([shown(row.get(name)) for name in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def is_plain(value: Any) -> bool:
    return not isinstance(value, dict | list)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    main(*(given + [ROOT / "bench", ROOT / "docs" / "generated" / "bench.md"][len(given) :]))
