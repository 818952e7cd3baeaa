"""The tables of docs/benchmarks/claims_beds.md, from docs/benchmarks/data: ``python -m bench.claims.bed_page``.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; all else is written by hand. A test makes the
tables again and compares.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.claims.mismatch import ENGINES
from bench.claims.page import written
from oapl_core.evaluation.pass_at_k import pass_at_k

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
PAGE, MISMATCHES = DOCS / "claims_beds.md", DOCS / "data" / "doses_mismatches.json"
DIVERSITY, KS = DOCS / "data" / "countdown_diversity.json", (1, 4)


def main() -> None:
    """Write them."""
    PAGE.write_text(page(PAGE.read_text()))


def page(text: str) -> str:
    """The page with its tables made again."""
    return written(text, TABLES)


def mismatch_table() -> str:
    """Nats, by dose: means over bases."""
    bases: dict[str, list[dict[str, Any]]] = {}
    for name, row in json.loads(MISMATCHES.read_text()).items():
        bases.setdefault(name.split()[1], []).append(row)
    head = "engine | nats per token | by base | KL per token (k3) | nats per answer | largest of a token | pi/b above 2"
    lines = [f"| {head} |", "|---" * 7 + "|"]
    for dose in [dose for own in ENGINES.values() for dose in own]:
        rows = bases[dose]
        means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        each = ", ".join(f"{row['nats_per_token']:.1e}" for row in rows)
        cells = [dose, f"{means['nats_per_token']:.1e}", each, f"{means['k3_per_token']:.1e}"]
        cells += [f"{means['nats_per_answer']:.1e}", f"{max(row['largest'] for row in rows):.1e}"]
        lines.append(f"| {' | '.join(cells)} | {100 * means['ratio_above_2']:.2f} % |")
    return "\n".join(lines)


def diversity_table() -> str:
    """Of each Countdown model pass@k, and different correct answers."""
    lines = [
        f"| model | {' | '.join(f'pass@{k}' for k in KS)} | different correct of {KS[-1]} | nats per token | tokens |"
    ]
    lines.append("|---" * (len(KS) + 4) + "|")
    for name, row in json.loads(DIVERSITY.read_text()).items():
        shares = [sum(pass_at_k(row["n"], c, k) for c in row["right"]) / len(row["right"]) for k in KS]
        cells = [name, *(f"{100 * share:.1f} %" for share in shares)]
        cells += [f"{sum(row['distinct']) / len(row['distinct']):.1f}", f"{row['entropy']:.3f}", f"{row['tokens']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {"mismatches": mismatch_table, "diversity": diversity_table}

if __name__ == "__main__":
    main()
