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
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import polars as pl

from bench.claims.bootstrap import Cells, estimate, paired
from bench.claims.collect import collect
from bench.claims.factorial_page import Diverged, above, below
from bench.claims.mixture import studies
from bench.claims.mixture.gates import GATES, WHOLE, shown
from bench.claims.mixture.measuring import TIERS as TIERS_OF_SETS
from bench.claims.mixture.scales import FAMILIES
from bench.claims.page import DATA, written
from bench.claims.results import collapsed
from bench.claims.verdicts import BASES, NOT_RUN, Asked, asked_table
from oapl_core.evaluation.pass_at_k import pass_at_k

PAGE = DATA.parent / "mixture.md"
CHECKPOINTS, GATED = DATA / "mixture_checkpoints.json", DATA / "mixture_gates.json"
WIDE, EVALUATED = DATA / "mixture_widths.parquet", DATA / "mixture_evaluations.parquet"
TIERS = {640: "first", 320: "easier"}
"""Tiers of a checkpoint, by the tokens that its answers may have."""
KS = (1, 4, 16, 64, 256)
COMPARED = (("oapl", "grpo"), ("positives", "oapl"), ("positives", "topr"))
NAMES = {
    "oapl": "OAPL",
    "positives": "OAPL, correct answers",
    "both": "`both`",
    "grpo": "GRPO",
    "topr": "TOPR",
    "rft": "RFT",
}


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", type=Path)
    options = parser.parse_args()
    if options.collect:
        keep(CHECKPOINTS, "trial", options.collect)
        keep(GATED, "gates", options.collect)
        if list(options.collect.glob("mixture-*/*-lag*.json")):  # else time ended before an arm did
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
    return written(text, made | {"arms": arms, "families": families, "widths": wide, "questions": questions})


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown of cells."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def checkpoints() -> str:
    """Every gate of each cooled checkpoint of the mixture, and pass@1 of each family's usual problems.

    The loss, in nats a token, is the mean over the last 100 steps before cooling.
    """
    head = ["base", "tiers", "steps", "seconds", "loss", *(f"{gate.name}, {gate.tier}" for gate in GATES)]
    head += [f"pass@1, {family}" for family in FAMILIES]
    rows = [["wanted", "", "", "", "", *(gate.wanted for gate in GATES), *[""] * len(FAMILIES)]]
    for row in sorted(
        json.loads(CHECKPOINTS.read_text()), key=lambda row: (-row["max_tokens"], row["seed"], row["steps"])
    ):
        about = row["pretraining"]
        cells = [str(row["seed"]), TIERS[row["max_tokens"]], f"{row['steps']:,}"]
        cells += [str(about["seconds"] + about["cooling_seconds"]), f"{about['loss']:.2f}"]
        cells += [_cell(row, gate.name, gate.tier, WHOLE) for gate in GATES]
        rows.append(cells + [_cell(row, "pass@1", "usual", family) for family in FAMILIES])
    return table(head, rows)


def _cell(row: dict[str, Any], name: str, tier: str, scope: str) -> str:
    own = next(r for r in row["gates"] if (r["gate"], r["tier"], r["scope"]) == (name, tier, scope))
    value = shown(next(gate for gate in GATES if gate.name == name), own["value"])
    return f"**{value}**" if own["is_met"] and scope == WHOLE else value


def gates() -> str:
    """Gates of the bases whose arms were trained, a column each; in bold what is met."""
    found = json.loads(GATED.read_text())
    head = ["gate", "tier", "wanted", *(f"base {number}" for number in range(len(found)))]
    rows = [
        [gate.name, gate.tier, gate.wanted, *(_cell(own, gate.name, gate.tier, WHOLE) for own in found)]
        for gate in GATES
    ]
    scopes = [(tier, family) for tier in TIERS_OF_SETS for family in FAMILIES]
    rows += [["pass@1", *scope, *(_cell(own, "pass@1", *scope) for own in found)] for scope in scopes]
    return table(head, rows)


Row = Mapping[str, Any]


@cache
def evaluated() -> Mapping[str, Mapping[str, Mapping[int, Row]]]:
    """Evaluations by arm, base and step."""
    found: dict[str, dict[str, dict[int, Row]]] = {}
    for row in pl.read_parquet(EVALUATED).sort("arm", "base", "step").iter_rows(named=True):
        found.setdefault(row["arm"], {}).setdefault(row["base"], {})[row["step"]] = row
    return found


def rates() -> str:
    """Correct validation answers after the steps that choose a rate, the most of a method in bold."""
    known = sorted({float(arm.partition("-rate")[2]) for arm in evaluated() if "-rate" in arm})
    rows = []
    for method, name in NAMES.items():
        own = [evaluated().get(f"{method}-rate{rate:g}", {}).values() for rate in known]
        right = [by_step[max(by_step)]["right_share"] for one in own for by_step in one]
        if right:
            assert len(right) == len(known), "every rate was tried on one base"
            rows.append([name, *(f"**{100 * x:.1f}**" if x == max(right) else f"{100 * x:.1f}" for x in right)])
    return table(["correct, %", *(f"{rate:g}" for rate in known)], rows)


def _by_arm(row_of: Callable[[str], list[str]]) -> list[list[str]]:
    """A row for each method and lag that some base has."""
    kinds = [(method, lag) for lag in sorted(studies.LAGS, reverse=True) for method in NAMES]
    there = [(method, lag) for method, lag in kinds if f"{method}-lag{lag}" in evaluated()]
    return [[_named(method, lag), str(lag), *row_of(f"{method}-lag{lag}")] for method, lag in there]


def _named(method: str, lag: int) -> str:
    """A method's name; means are over the bases on which it did not diverge."""
    arm = f"{method}-lag{lag}"
    left = f" (diverged on {len(unfinished(arm))} of {len(evaluated()[arm])} bases)"
    return NAMES[method] + (left if unfinished(arm) else "")


def arms() -> str:
    """Correct held-out answers on the way, and what the last ones are like: means over bases that have them."""
    steps = sorted({step for arm in evaluated() if "-lag" in arm for own in evaluated()[arm].values() for step in own})

    def row_of(arm: str) -> list[str]:
        every = evaluated()[arm]
        own = [by_step for base, by_step in every.items() if base not in unfinished(arm)]
        by_base = ", ".join(
            "diverged" if base in unfinished(arm) else f"{100 * by_step[steps[-1]]['right_share']:.1f}"
            for base, by_step in every.items()
        )
        if not own:
            return [*[""] * len(steps), by_base, "", f"{len(every)} of {len(every)}", "", "", ""]
        ends = [by_step[steps[-1]] for by_step in own]
        shares = [f"{100 * statistics.fmean(by_step[step]['right_share'] for by_step in own):.1f}" for step in steps]
        fell = sum(collapsed([by_step[step]["right_share"] for step in sorted(by_step)]) for by_step in own)
        fell += len(unfinished(arm))
        tokens, cut, nats = (statistics.fmean(end[name] for end in ends) for name in ("tokens", "cut_share", "entropy"))
        return [
            *shares,
            by_base,
            _error(ends),
            f"{fell} of {len(every)}",
            f"{tokens:.0f}",
            f"{100 * cut:.0f}",
            f"{nats:.3f}",
        ]

    head = ["method", "L", *(f"step {step}" for step in steps), "the last of each base", "standard error", "collapsed"]
    return table([*head, "tokens", "cut, %", "entropy"], _by_arm(row_of))


@cache
def unfinished(arm: str) -> list[str]:
    """Bases on which an arm of a lag has no last evaluation, as it diverged."""
    last = max(max(by_step) for name, own in evaluated().items() if "-lag" in name for by_step in own.values())
    return [base for base, by_step in evaluated().get(arm, {}).items() if "-lag" in arm and max(by_step) < last]


def _error(ends: Sequence[Row]) -> str:
    """Standard error, over problems, of the mean over bases."""
    of_each = [
        statistics.fmean(own) for own in zip(*([n / end["n"] for n in end["right"]] for end in ends), strict=True)
    ]
    return f"{100 * statistics.stdev(of_each) / math.sqrt(len(of_each)):.1f}"


def families() -> str:
    """Correct held-out answers to each family and tier, of the bases and of the last weights: means over bases."""
    columns = [f"{family}, {tier}" for tier in TIERS_OF_SETS for family in FAMILIES]

    def row_of(rows: Sequence[Row]) -> list[str]:
        # a set has its families and tiers in turn (`sets.problems`)
        own = [[sum(row["right"][at :: len(columns)]) / row["n"] for row in rows] for at in range(len(columns))]
        problems = len(rows[0]["right"]) / len(columns)
        return [f"{100 * statistics.fmean(shares) / problems:.1f}" for shares in own]

    first = next(own for arm, own in evaluated().items() if arm.endswith(f"lag{max(studies.LAGS)}"))
    base = ["base", "", *row_of([by_step[0] for by_step in first.values()])]

    def of_arm(arm: str) -> list[str]:
        ends = [by_step[max(by_step)] for base, by_step in evaluated()[arm].items() if base not in unfinished(arm)]
        return row_of(ends) if ends else ["diverged", *[""] * (len(columns) - 1)]

    return table(["method", "L", *columns], [base, *_by_arm(of_arm)])


@cache
def asked_often() -> Mapping[str, Mapping[str, Sequence[Row]]]:
    """Rows of the problems that were asked 256 times, by arm and base, in the order of the problems."""
    frame = pl.read_parquet(WIDE).with_columns(arm=pl.col("arm").str.replace(r"-seed\d+$", "")).sort("problem")
    found: dict[str, dict[str, list[Row]]] = {}
    for row in frame.iter_rows(named=True):
        found.setdefault(row["arm"], {}).setdefault(row["base"], []).append(row)
    return found


def wide() -> str:
    """pass@k of the last weights: means over bases."""

    def row_of(arm: str) -> list[str]:
        if arm not in asked_often():
            return ["diverged", *[""] * (len(head) - 3)]
        own = asked_often()[arm].values()
        shares = [statistics.fmean(x for cell in often(arm, k).values() for x in cell) for k in KS]
        sharp = statistics.fmean(row["right_sharp"] / row["n_sharp"] for rows in own for row in rows)
        different = [
            statistics.fmean(sum(row["different"] for row in rows if f"-{part}" in row["problem"]) for rows in own)
            for part in ("", *FAMILIES)  # the first one is all of them
        ]
        return [*(f"{100 * share:.1f}" for share in (*shares, sharp)), *(f"{many:.0f}" for many in different)]

    head = [
        "method",
        "L",
        *(f"pass@{k}" for k in KS),
        "pass@1, T = 0.6",
        "different",
        *(f"different, {one}" for one in FAMILIES),
    ]
    return table(head, [["base", "", *row_of("base")], *_by_arm(row_of)])


def often(arm: str, k: int) -> Cells:
    """pass@k of each problem that was asked 256 times, by base."""
    own = asked_often().get(arm, {})
    return {(base, 0): [pass_at_k(row["n"], row["right"], k) for row in rows] for base, rows in own.items()}


def cells(arm: str, at: Literal["first", "last"] = "last") -> Cells:
    """Share of correct answers to each held-out problem, by base.

    Raises:
        Diverged: a base has no last answers.
    """
    if at == "last" and unfinished(arm):
        raise Diverged(unfinished(arm))
    found = {}
    for base, by_step in evaluated().get(arm, {}).items():
        row = by_step[min(by_step) if at == "first" else max(by_step)]
        found[base, 0] = [right / row["n"] for right in row["right"]]
    return found


def questions() -> str:
    """Every question of the criteria that two arms or more of three bases can answer."""
    long, short = max(studies.LAGS), min(studies.LAGS)
    asked = [
        _asked("1", f"{name}: L = {short} less L = {long}", partial(_lag, method)) for method, name in NAMES.items()
    ]
    asked.append(_asked("1", "GRPO's difference less OAPL's", lambda: paired(_lag("grpo"), _lag("oapl"))))
    for lag in sorted(studies.LAGS, reverse=True):
        where = f"L = {lag}"
        for method, name in NAMES.items():
            arm = f"{method}-lag{lag}"
            asked.append(_asked("2", f"{name}, {where}: the end less its base", partial(_end_less_base, arm)))
            asked += [
                _asked("3", f"{name}, {where}: pass@{k} less its base's", partial(_often_less_base, arm, k))
                for k in (KS[0], KS[-1])
            ]
        for one, other in COMPARED:
            arms_of_pair = (f"{method}-lag{lag}" for method in (one, other))
            asked.append(_asked("4", f"{NAMES[one]} less {NAMES[other]}, {where}", partial(_pair, *arms_of_pair)))
    found = [one for one in asked if one]
    is_decidable = any(one.verdict != NOT_RUN for one in found if one.found)
    return asked_table(found) if is_decidable else "**No arm was run on three bases yet.**"


def _lag(method: str) -> Cells:
    return paired(*(cells(f"{method}-lag{lag}") for lag in (min(studies.LAGS), max(studies.LAGS))))


def _end_less_base(arm: str) -> Cells:
    return paired(cells(arm), cells(arm, "first"))


def _often_less_base(arm: str, k: int) -> Cells:
    if unfinished(arm):
        raise Diverged(unfinished(arm))
    return paired(often(arm, k), often("base", k))


def _pair(one: str, other: str) -> Cells:
    return paired(cells(one), cells(other))


def met_gates() -> set[str]:
    """Bases that meet every gate."""
    return {f"mixture-{row['scale']}-{row['model']}" for row in json.loads(GATED.read_text()) if row["is_open"]}


def _asked(number: str, question: str, difference_of: Callable[[], Cells]) -> Asked | None:
    try:
        difference = difference_of()
    except Diverged as diverged:
        return Asked(number, question, str(diverged), instead="none")
    if not difference:
        return None
    found = estimate(difference)
    if {base for base, _ in difference} - met_gates():
        question = f"trial: {question}"
    said = "above 0" if above(found) else "below 0" if below(found) else "not decided"
    return Asked(number, question, said if len(found.by_start) >= BASES else NOT_RUN, found)


if __name__ == "__main__":
    main()
