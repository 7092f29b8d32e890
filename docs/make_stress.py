"""The reliability page's table of numbers from what `stress/numerics.py` wrote.

    python docs/make_stress.py FILE.json ...

Writes docs/generated/numerics.md: a line for each projection, kind of covariance and dtype. Where files speak of
the same line, the last one counts.
"""

import json
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parent / "generated" / "numerics.md"
HEAD = (
    *("projection", "dtype", "samples", "projected", "largest violation ÷ ε", "silent NaN", "gradient NaN", "refused"),
    "missed",
)


def main(files: list[str]) -> None:
    found = {}
    for file in files:
        for projection, dtypes in json.loads(Path(file).read_text(encoding="utf-8"))["results"].items():
            found |= {(projection, dtype): tally for dtype, tally in dtypes.items()}
    lines = [f"| {' | '.join(HEAD)} |", "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    for (projection, dtype), tally in sorted(found.items()):
        cells = [projection, dtype, f"{tally['samples']:,}", f"{tally['projected']:,}", f"{tally['violation']:.1e}"]
        cells += [str(tally[name]) for name in ("silent", "bad_gradients", "refused")]
        lines.append(f"| {' | '.join([*cells, '; '.join(tally['misses']) or '–'])} |")
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
