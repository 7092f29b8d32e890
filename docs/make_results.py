"""The results page's report and table, from the records in results/.

    python docs/make_results.py

Runs `trpl report` on the records of each plan in results/ (results/first.toml has its records in results/first), puts
the page and its pictures into docs/reports, and the table of returns into docs/generated/results.md, which the page on
results includes.
"""

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ("index.html", "returns.png", "kl.png", "entropy.png", "table1.csv", "runs.csv")


def main() -> None:
    sections = []
    for plan in sorted((ROOT / "results").glob("*.toml")):
        records = plan.with_suffix("")
        if not records.is_dir():
            continue
        words = ["report", str(records.relative_to(ROOT)), "--out"]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "trpl.cli", *words, folder], cwd=ROOT, check=True)
            place = ROOT / "docs" / "reports" / plan.stem
            place.mkdir(parents=True, exist_ok=True)
            for name in KEPT:
                shutil.copy(Path(folder, name), place / name)
        command = f"trpl sweep results/{plan.name} --out runs/{plan.stem} --results results/{plan.stem}"
        commits = ", ".join(sorted({commit[:8] for commit in column(place / "runs.csv", "commit")}))
        report = f"[report](reports/{plan.stem}/index.html)"
        sections.append(f"{table(place / 'table1.csv')}\n\n*`{command}`, commit {commits}; {report}*\n")
    out = ROOT / "docs" / "generated" / "results.md"
    out.write_text("\n".join(sections), encoding="utf-8")


def table(file: Path) -> str:
    """Both numbers of a run with Student's interval over seeds, and the paper's where its budget is the same."""
    lines = ["| task | method | steps | seeds | after 20 % | paper | last 20 epochs | 95 % over seeds | paper |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    with file.open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            interval = f"{number(row['final_low'])} … {number(row['final_high'])}" if row["final_low"] else "–"
            cells = [row["task"], row["method"], f"{int(row['total_steps']) / 1e6:g} M", row["final_seeds"]]
            cells += [number(row["early"]), number(row["paper_early"])]
            cells += [number(row["final"]), interval, number(row["paper_final"])]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def column(file: Path, name: str) -> list[str]:
    with file.open(encoding="utf-8") as rows:
        return [row[name] for row in csv.DictReader(rows)]


def number(text: str) -> str:
    return f"{float(text):.0f}" if text else "–"


if __name__ == "__main__":
    main()
