"""The tables of docs/benchmarks/mixture.md, from docs/benchmarks/data: ``python -m bench.claims.mixture.page``.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; a test makes the tables again and compares.
``--collect OUT`` takes the data from what `minutes` left there first.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from bench.claims.mixture.gates import GATES, WHOLE, shown
from bench.claims.mixture.scales import FAMILIES
from bench.claims.page import DATA, written

PAGE = DATA.parent / "mixture.md"
CHECKPOINTS = DATA / "mixture_checkpoints.json"


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", type=Path)
    options = parser.parse_args()
    if options.collect:
        CHECKPOINTS.write_text(json.dumps(collected(options.collect), indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text()))


def collected(out: Path) -> list[dict[str, Any]]:
    """Gates of every checkpoint of each base, in the order of its steps."""
    return [json.loads(path.read_text()) for path in sorted(out.glob("mixture-*/trial-*.json"))]


def page(text: str) -> str:
    """The page with its tables made again."""
    return written(text, {"checkpoints": checkpoints})


def checkpoints() -> str:
    """Every gate of each cooled checkpoint of the mixture, and pass@1 of each family's usual problems.

    The loss, in nats a token, is the mean over the last 100 steps before cooling.
    """
    rows = json.loads(CHECKPOINTS.read_text())
    head = ["steps", "seconds", "loss", *(f"{gate.name}, {gate.tier}" for gate in GATES)]
    head += [f"pass@1, {family}" for family in FAMILIES]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    wanted = ["", "", "", *(gate.wanted for gate in GATES), *[""] * len(FAMILIES)]
    lines.append("| " + " | ".join(["wanted", *wanted[1:]]) + " |")
    for row in sorted(rows, key=lambda row: row["steps"]):
        about = row["pretraining"]
        cells = [f"{row['steps']:,}", str(about["seconds"] + about["cooling_seconds"]), f"{about['loss']:.2f}"]
        cells += [_cell(row, gate.name, gate.tier, WHOLE) for gate in GATES]
        cells += [_cell(row, "pass@1", "usual", family) for family in FAMILIES]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any], name: str, tier: str, scope: str) -> str:
    own = next(r for r in row["gates"] if (r["gate"], r["tier"], r["scope"]) == (name, tier, scope))
    value = shown(next(gate for gate in GATES if gate.name == name), own["value"])
    return f"**{value}**" if own["is_met"] and scope == WHOLE else value


if __name__ == "__main__":
    main()
