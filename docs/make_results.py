"""The results page's tables, figures and reports, from the records in results/.

    python docs/make_results.py [FOLDER ...]

Tables (Table 1, other tasks, what is in) go to docs/generated, the report of each folder of records (`trpl report`)
to docs/reports/NAME (of the folders that are given, or of all), and the paper's figures (`trpl figure`) to
docs/reports/figures.
"""

import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from table1 import RESULTS, ROOT, other, state, table1

KEPT = ("index.html", "returns.png", "kl.png", "entropy.png", "table1.csv", "runs.csv")
TITLES = {
    "table1": "Table 1 of the paper, full budget",
    "early": "The 20 % column, as released and exact",
    "humanoid": "Humanoid",
    "reacher": "The five-link sparse reacher, fixed targets",
    "alpha": "The weight of the regression penalty, and full regression",
    "late": "What keeps the network near its projection late in training",
    "discrete": "Discrete actions",
    "episodic": "The episodic five-link reacher",
    "first": "An earlier set: a million steps",
}
VARIANTS = {
    "table1": ("as_released",),
    "early": ("as_released",),
    "late": ("regression", "regression_weight", "policy_epochs"),
    "reacher": ("contextual",),
    "alpha": ("regression", "regression_weight"),
}
APART = "first"  # the folder whose budget and commit are others: a table of its own
FIGURES = {  # name: folder of records, what the paper calls it, what it shows
    "interpolation": (None, "Figure 1", "Covariances between the old and the predicted policy, and their entropies"),
    "kl-change": ("table1", "Figure 2, left", "Mean KL between new and old policy per epoch, by task and method"),
    "penalty-ablation": ("alpha", "Figure 2, centre", "Distance of the network's mean per epoch, by penalty weight"),
    "reacher": ("reacher", "Figure 2, right", "Return on the reacher, without and with a covariance per state"),
    "curves": ("table1", "appendix, learning curves", "Return over training, by task and method"),
    "entropy-curves": (
        "table1", "appendix, learning curves with entropy control", "Return over training with entropy control"
    ),
}  # fmt: skip
GENERATED, REPORTS = ROOT / "docs" / "generated", ROOT / "docs" / "reports"


def main() -> None:
    for name, text in (
        ("state", state()),
        ("table1", table1()),
        ("discrete", other("discrete")),
        ("episodic", other("episodic")),
        ("figures", figures()),
    ):
        (GENERATED / f"{name}.md").write_text(text, encoding="utf-8")
    with_records = {path.relative_to(RESULTS).parts[0] for path in RESULTS.rglob("config.json")}
    every = sorted(with_records - {"reacher-first", "bounds", "switches"})  # other pages show those
    for folder in sys.argv[1:] or every:
        report(folder)
    (GENERATED / "results.md").write_text(section(APART), encoding="utf-8")


def trpl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trpl.cli", *words], cwd=ROOT, text=True, stderr=subprocess.PIPE, check=False
    )


def report(folder: str) -> None:
    """`trpl report` of a folder of records."""
    place = REPORTS / folder
    place.mkdir(parents=True, exist_ok=True)
    by = [word for setting in VARIANTS.get(folder, ()) for word in ("--by", setting)]
    with tempfile.TemporaryDirectory() as made:
        trpl("report", *sources(folder), "--out", made, "--title", TITLES.get(folder, folder), *by).check_returncode()
        for name in KEPT:
            if Path(made, name).exists():
                shutil.copy(Path(made, name), place / name)


def sources(folder: str) -> list[str]:
    """What a report is made of: its own records, and beside Table 1 the 20 % column as released.

    Exact runs that were stopped there are in the report of that column: a group has either whole runs or stopped ones.
    """
    released = sorted(RESULTS.glob("early/*/*/released")) if folder == "table1" else []
    return [str(path.relative_to(ROOT)) for path in (RESULTS / folder, *released)]


def figures() -> str:
    """`trpl figure` for each of the paper's figures; a line for one whose records are not in."""
    lines = []
    for name, (folder, words, shown) in FIGURES.items():
        command = f"trpl figure {name}" + (f" results/{folder}" if folder else "")
        if folder and not (RESULTS / folder).is_dir():
            lines.append(f"*{words}: `{command}`; there are no such runs in `results/{folder}` yet.*\n")
            continue
        made = trpl(*command.split()[1:], "--out", str(REPORTS / "figures"))
        if made.returncode:
            lines.append(f"*{words}: `{command}`; there are no such runs in `results/{folder}` yet.*\n")
            continue
        (REPORTS / "figures" / f"{name}.svg").unlink()
        lines.append(f"![{shown}](reports/figures/{name}.png)\n\n*{words}: `{command}`*\n")
    return "\n".join(lines)


def section(folder: str) -> str:
    """The table of a report, with its command and commit."""
    place = REPORTS / folder
    command = f"trpl sweep results/{folder}.toml --out runs/{folder} --results results/{folder}"
    commits = ", ".join(sorted({commit[:8] for commit in column(place / "runs.csv", "commit")}))
    link = f"[report](reports/{folder}/index.html)"
    return f"{table(place / 'table1.csv')}\n\n*`{command}`, commit {commits}; {link}*\n"


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
