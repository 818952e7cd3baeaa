"""The tables of docs/benchmarks/mixture.md, from docs/benchmarks/data: ``python -m bench.claims.mixture.page``.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; a test makes the tables again and compares.
``--collect OUT`` takes the data from what `minutes` left there first: mixture_checkpoints.json, mixture_gates.json,
mixture_evaluations.parquet, mixture_steps.parquet and mixture_arms.json (`bench.claims.collect`), and
mixture_widths.parquet, a row for each arm and problem that it was asked 256 times.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from bench.claims.collect import collect
from bench.claims.mixture import gates as measuring
from bench.claims.mixture import studies
from bench.claims.mixture.gates import GATES, WHOLE, shown
from bench.claims.mixture.measuring import TIERS as TIERS_OF_SETS
from bench.claims.mixture.scales import FAMILIES
from bench.claims.page import DATA, written
from oapl_core.evaluation.pass_at_k import pass_at_k

PAGE = DATA.parent / "mixture.md"
CHECKPOINTS, GATED = DATA / "mixture_checkpoints.json", DATA / "mixture_gates.json"
WIDE, EVALUATED = DATA / "mixture_widths.parquet", DATA / "mixture_evaluations.parquet"
TIERS = {640: "first", 320: "easier"}
"""Tiers of a checkpoint, by the tokens that its answers may have."""
KS = (1, 4, 16, 64, 256)
NAMES = {"oapl": "OAPL", "positives": "OAPL, correct answers", "grpo": "GRPO", "topr": "TOPR", "rft": "RFT"}


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", type=Path)
    options = parser.parse_args()
    if options.collect:
        keep(CHECKPOINTS, "trial", options.collect)
        keep(GATED, "gates", options.collect)
        collect(options.collect, DATA, "mixture")
        widths(options.collect).write_parquet(WIDE, compression="zstd", compression_level=19)
    PAGE.write_text(page(PAGE.read_text()))


def keep(path: Path, kind: str, out: Path) -> None:
    """Add gates of trials or of bases to a file; those of the same weights are replaced."""
    known = json.loads(path.read_text()) if path.exists() else []
    new = collected(out, kind)
    own = {(row["policy_hash"], row["max_tokens"]) for row in new}
    rows = [row for row in known if (row["policy_hash"], row["max_tokens"]) not in own] + new
    path.write_text(json.dumps(rows, indent=1) + "\n")


def collected(out: Path, kind: str = "trial") -> list[dict[str, Any]]:
    """Gates of every checkpoint of each base, in the order of its steps; or of each base."""
    return [json.loads(path.read_text()) for path in sorted(out.glob(f"mixture-*/{kind}-*.json"))]


def widths(out: Path) -> pl.DataFrame:
    """Answers of each arm's last weights, and of the bases, to some problems."""
    rows = []
    for path in sorted(out.glob("mixture-*/*.measured.json")):
        found = json.loads(path.read_text())
        about = {"base": path.parent.name, "arm": path.stem.removesuffix(".measured"), "n": found["n"]}
        rows += [about | problem for problem in found["problems"]]
    return pl.DataFrame(rows).sort("base", "arm", "problem")


def page(text: str) -> str:
    """The page with its tables made again."""
    made = {"checkpoints": checkpoints, "gates": gates, "rates": rates}
    return written(text, made | {"arms": arms, "families": families, "widths": wide})


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown of cells."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def checkpoints() -> str:
    """Every gate of each cooled checkpoint of the mixture, and pass@1 of each family's usual problems.

    The loss, in nats a token, is the mean over the last 100 steps before cooling.
    """
    head = ["tiers", "steps", "seconds", "loss", *(f"{gate.name}, {gate.tier}" for gate in GATES)]
    head += [f"pass@1, {family}" for family in FAMILIES]
    rows = [["wanted", "", "", "", *(gate.wanted for gate in GATES), *[""] * len(FAMILIES)]]
    for row in sorted(json.loads(CHECKPOINTS.read_text()), key=lambda row: (-row["max_tokens"], row["steps"])):
        about = row["pretraining"]
        cells = [TIERS[row["max_tokens"]], f"{row['steps']:,}"]
        cells += [str(about["seconds"] + about["cooling_seconds"]), f"{about['loss']:.2f}"]
        cells += [_cell(row, gate.name, gate.tier, WHOLE) for gate in GATES]
        rows.append(cells + [_cell(row, "pass@1", "usual", family) for family in FAMILIES])
    return table(head, rows)


def _cell(row: dict[str, Any], name: str, tier: str, scope: str) -> str:
    own = next(r for r in row["gates"] if (r["gate"], r["tier"], r["scope"]) == (name, tier, scope))
    value = shown(next(gate for gate in GATES if gate.name == name), own["value"])
    return f"**{value}**" if own["is_met"] and scope == WHOLE else value


def gates() -> str:
    """Gates of the base whose arms were trained, of all its problems."""
    (own,) = json.loads(GATED.read_text())
    return measuring.table(own)


@cache
def evaluated() -> Mapping[str, Mapping[int, Mapping[str, Any]]]:
    """Evaluations by arm and step."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in pl.read_parquet(EVALUATED).iter_rows(named=True):
        found.setdefault(row["arm"], {})[row["step"]] = row
    return found


def rates() -> str:
    """Correct validation answers after the steps that choose a rate, the most of a method in bold."""
    known = sorted({float(arm.partition("-rate")[2]) for arm in evaluated() if "-rate" in arm})
    rows = []
    for method, name in NAMES.items():
        right = [evaluated()[f"{method}-rate{rate:g}"][studies.TUNING_STEPS]["right_share"] for rate in known]
        cells = [f"**{100 * one:.1f}**" if one == max(right) else f"{100 * one:.1f}" for one in right]
        rows.append([name, *cells])
    return table(["correct, %", *(f"{rate:g}" for rate in known)], rows)


def _by_arm(row_of: Callable[[str], list[str]]) -> list[list[str]]:
    lags = sorted(studies.LAGS, reverse=True)
    return [[name, str(lag), *row_of(f"{method}-lag{lag}")] for lag in lags for method, name in NAMES.items()]


def arms() -> str:
    """Correct held-out answers on the way, and what the last ones are like."""
    last = max(evaluated()["oapl-lag400"])

    def row_of(arm: str) -> list[str]:
        own = evaluated()[arm]
        end, best = own[last], max(row["right_share"] for row in own.values())
        is_collapsed = best - end["right_share"] > 0.1 or end["right_share"] < own[0]["right_share"]
        shares = [f"{100 * own[step]['right_share']:.1f}" for step in sorted(own)]
        of_each = [right / end["n"] for right in end["right"]]
        error = statistics.stdev(of_each) / math.sqrt(len(of_each))
        after = [f"{100 * error:.1f}", f"{end['tokens']:.0f}", f"{100 * end['cut_share']:.0f}", f"{end['entropy']:.3f}"]
        return [*shares, "yes" if is_collapsed else "no", *after]

    steps = [f"step {step}" for step in sorted(evaluated()["oapl-lag400"])]
    return table(["method", "L", *steps, "collapsed", "standard error", "tokens", "cut, %", "entropy"], _by_arm(row_of))


def families() -> str:
    """Correct held-out answers to each family and tier, of the base and of the last weights."""
    columns = [f"{family}, {tier}" for tier in TIERS_OF_SETS for family in FAMILIES]

    def row_of(row: Mapping[str, Any]) -> list[str]:
        # a set has its families and tiers in turn (`sets.problems`)
        own = [row["right"][place :: len(columns)] for place in range(len(columns))]
        return [f"{100 * sum(right) / len(right) / row['n']:.1f}" for right in own]

    last = max(evaluated()["oapl-lag400"])
    base = ["base", "", *row_of(evaluated()["oapl-lag400"][0])]
    return table(["method", "L", *columns], [base, *_by_arm(lambda arm: row_of(evaluated()[arm][last]))])


def wide() -> str:
    """pass@k of the last weights."""
    frame = pl.read_parquet(WIDE).with_columns(arm=pl.col("arm").str.replace(r"-seed\d+$", ""))

    def row_of(arm: str) -> list[str]:
        own = frame.filter(pl.col("arm") == arm)
        rows = list(zip(own["n"], own["right"], strict=True))
        shares = [sum(pass_at_k(n, right, k) for n, right in rows) / len(rows) for k in KS]
        sharp = sum(own["right_sharp"].to_list()) / sum(own["n_sharp"].to_list())
        return [*(f"{100 * share:.1f}" for share in (*shares, sharp)), str(own["different"].sum())]

    head = ["method", "L", *(f"pass@{k}" for k in KS), "pass@1, T = 0.6", "different correct answers"]
    return table(head, [["base", "", *row_of("base")], *_by_arm(row_of)])


if __name__ == "__main__":
    main()
