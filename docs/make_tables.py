"""Tables of the documentation from what `make bench` measured.

    python docs/make_tables.py [BENCH_FOLDER] [OUT_FILE]

Reads bench/*.json and writes docs/generated/bench.md, which the page on speed includes. A file holds rows (a list of
flat objects), or an object with rows under "table", or an object of plain values. The layers' rows, one for each case,
host and dtype, become two tables with a row for each case, and a picture beside what the layers replace
(docs/images/layers.svg).
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

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
HEADINGS = {"met": "bar met", "milliseconds": "ms"}
HOSTS = {"eager": "eager PyTorch", "compiled": "compiled, ÷ eager", "jax": "JAX, jitted"}
PEER_EIGVALSH = 4.7  # milliseconds of `eigvalsh` where the replaced layers were timed: 4.4–5
SLOWER = 1.05  # the bar of compiled code, in multiples of eager
PICTURE = "![Time of each layer beside what it replaces, in multiples of eigvalsh](images/layers.svg)"
MISSING = """!!! note "Not measured yet"

    No measurement is recorded here. `make bench` makes `bench/*.json`, and `python docs/make_tables.py` this section
    from them.
"""


def main(bench: Path, out: Path) -> None:
    sections = [section(file) for file in sorted(bench.glob("*.json"), key=order)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(filter(None, sections)) or MISSING, encoding="utf-8")
    if (bench / "layers.json").exists():
        picture(rows_in(bench / "layers.json"), out.parent.parent / "images" / "layers.svg")


def order(file: Path) -> tuple[int, str]:
    known = list(TITLES)
    return known.index(file.stem) if file.stem in known else len(known), file.stem


def section(file: Path) -> str:
    """Heading, table, and the command that made it; empty where the file holds no rows."""
    rows = rows_in(file)
    if not rows:
        return ""
    words = " speed latency" if file.stem == "integrations" else ""
    command = f"`python benchmarks/{file.stem}.py{words} --out bench/{file.name}`"
    shown_rows = layers(rows) if file.stem == "layers" else table(rows)
    return f"### {TITLES.get(file.stem, file.stem.capitalize())}\n\n{shown_rows}\n\n*{command}*\n"


def layers(rows: list[dict[str, Any]]) -> str:
    """A table for each dtype: a row for each case, a column for each host, and ✗ where a bar is missed."""
    tables = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        cases: dict[str, dict[str, dict[str, Any]]] = {}
        for row in rows:
            if row["dtype"] == dtype:
                cases.setdefault(row["case"], {})[row["host"]] = row
        heads = [f"{dtype}: ms (× `eigvalsh`)", *HOSTS.values(), "bar", "bound held", "replaced, ms"]
        lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
        for case, hosts in cases.items():
            first = next(iter(hosts.values()))
            cells = [host_cell(hosts.get(name)) for name in HOSTS]
            lines.append([case, *cells, bars(hosts), held(hosts.values()), first.get("peer_milliseconds") or "–"])
        tables.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join([PICTURE, *tables])


def host_cell(row: dict[str, Any] | None) -> str:
    """Milliseconds, and in brackets the multiple of `eigvalsh`; of compiled code that of eager."""
    if row is None:
        return "–"
    missed = " ✗" if row.get("met") is False else ""
    factor = SLOWER * row["value"] / row["bar"] if row["host"] == "compiled" and row.get("bar") else None
    if factor is None and row["unit"] == "ms":
        return f"{row['milliseconds']:.3g}{missed}"
    return f"{row['milliseconds']:.3g} ({row['value'] if factor is None else factor:.3g}){missed}"


def bars(hosts: dict[str, dict[str, Any]]) -> str:
    """The bar of eager code, and that of JAX where it is another."""
    found = [hosts[name] for name in ("eager", "jax") if hosts.get(name, {}).get("bar")]
    words = dict.fromkeys(f"{row['bar']:g}{' ms' if row['unit'] == 'ms' else ''}" for row in found)
    return " / ".join(words) or "–"


def held(rows: Any) -> str:
    """The largest relative distance from the bound, of all hosts."""
    found = {row["bound_held"] for row in rows}
    return found.pop() if len(found) == 1 else max(found, key=lambda text: (text == "MOVED", number(text)))


def number(text: str) -> float:
    """The mean of the numbers in a text: of a range, its middle; 0 where there is none."""
    found = [float(part) for part in re.findall(r"\d+\.?\d*(?:e-?\d+)?", text)]
    return sum(found) / len(found) if found else 0.0


def picture(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw float64 cases beside what the layers replace, in multiples of `eigvalsh` on the machine of each."""
    wanted = [row for row in rows if row["dtype"] == "float64" and row.get("peer_milliseconds")]
    cases = list(dict.fromkeys(row["case"] for row in wanted))[::-1]
    peers = {row["case"]: number(row["peer_milliseconds"].split(" (")[0]) / PEER_EIGVALSH for row in wanted}
    figure, axes = plt.subplots(figsize=(7.5, 0.36 * len(cases) + 0.8))
    axes.plot(
        [peers[case] for case in cases], range(len(cases)), "s", color="#9a9a9a", label="replaced: C++ or PyTorch"
    )
    for host, marker, colour in (("eager", "o", "#c44e20"), ("jax", "D", "#1f6fb4")):
        times = {r["case"]: r["milliseconds"] / r["eigvalsh_milliseconds"] for r in wanted if r["host"] == host}
        axes.plot([times.get(case) for case in cases], range(len(cases)), marker, color=colour, label=HOSTS[host])
    axes.set(xscale="log", xlabel="time, forward and backward, in multiples of eigvalsh (512 × 17) on the same machine")
    axes.set_yticks(range(len(cases)), cases)
    axes.grid(axis="both", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.35, 1.0), ncol=3, frameon=False)
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def rows_in(file: Path) -> list[dict[str, Any]]:
    return rows_of(json.loads(file.read_text(encoding="utf-8")))


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
