"""The tables of docs/benchmarks/claims_beds.md, from docs/benchmarks/data: ``python -m bench.claims.bed_page``.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; all else is written by hand. A test makes the
tables again and compares.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.claims.bootstrap import Cells, Estimate, difference, estimate, paired
from bench.claims.mismatch import ENGINES
from bench.claims.page import DATA, by_base, written
from bench.claims.quantised import DOSES
from bench.claims.results import Results, Row, at_accuracy, collapsed, share
from bench.claims.verdicts import BASES, Asked, asked_table, table, verdict
from oapl_core.evaluation.pass_at_k import pass_at_k

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
PAGE, MISMATCHES = DOCS / "claims_beds.md", DOCS / "data" / "doses_mismatches.json"
DIVERSITY = DOCS / "data" / "countdown_diversity.json"
KS = (1, 4, 16, 64, 256)
PAIR = {"oapl-lag50": "OAPL, L = 50", "grpo-off1": "GRPO, off by one"}
CHAINS = {
    "grpo-offline": "GRPO, one policy's rollouts",
    "grpo-off1": "GRPO, off by one",
    "oapl-offline": "OAPL, one policy's rollouts",
    "oapl-off1": "OAPL, off by one",
}
LENGTHS = (10, 24)
DOSED = ("exact", *reversed(DOSES))


def main() -> None:
    """Write them."""
    PAGE.write_text(page(PAGE.read_text()))
    draw()


def page(text: str) -> str:
    """The page with its tables made again."""
    return written(text, TABLES)


def draw() -> None:
    """claims_chains.png: curves of bed 3 by length. claims_countdown.png: pass@k of bed 2."""
    from oapl_extras.compare.panels import Line, Panel, draw_panels

    panels = []
    for length in LENGTHS:
        lines = []
        for style, (arm, name) in enumerate(CHAINS.items(), 1):
            curves = [[share(row) for row in rows] for rows in of_bed(arm, f"chains-{length}").values()]
            by_step = list(zip(*curves, strict=True))
            ends = [min(own) for own in by_step], [max(own) for own in by_step]
            lines.append(Line(name, (0, 20, 40, 60), [statistics.fmean(own) for own in by_step], *ends, style=style))
        panels.append(Panel(f"{length} steps, lowest to highest base", "optimiser steps", "pass@1, %", lines))
    draw_panels(DOCS / "claims_chains.png", panels)
    lines = []
    for style, (model, name) in enumerate({"base": "base", **PAIR}.items(), 1):
        found = [of_countdown(diverse(model, passed(k))) for k in KS]
        means, lows, highs = [x.mean for x in found], [x.low for x in found], [x.high for x in found]
        lines.append(Line(name, KS, means, lows, highs, style=style))
    draw_panels(DOCS / "claims_countdown.png", [Panel("", "k", "pass@k, %", lines, is_log2=True)])


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


def diversity() -> dict[str, dict[str, dict[str, Any]]]:
    """By base and model."""
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(DIVERSITY.read_text())["bases"]
    return found


def of_countdown(cells: Cells, less: Cells | None = None) -> Estimate:
    """The mean over problems, or of a difference: problems on one set of numbers are alike, so sets are drawn."""
    cells = cells if less is None else paired(cells, less)
    problems = len(next(iter(cells.values())))
    return estimate(cells, alike=json.loads(DIVERSITY.read_text())["numbers"][:problems])


def diverse(model: str, of: Callable[[Mapping[str, Any]], list[float]]) -> Cells:
    """A number of each problem, by base; models are named without their seed."""
    found = {base: {name.removesuffix("-seed0"): row for name, row in own.items()} for base, own in diversity().items()}
    return {(base, 0): of(own[model]) for base, own in found.items()}


def passed(k: int) -> Callable[[Mapping[str, Any]], list[float]]:
    """pass@k of each problem."""
    return lambda row: [pass_at_k(row["n"], right, k) for right in row["right"]]


def distinct(row: Mapping[str, Any]) -> list[float]:
    """Different correct expressions of each problem."""
    return [float(one) for one in row["distinct"]]


def diversity_table() -> str:
    """pass@k and different correct answers, base, OAPL and GRPO, with paired differences."""
    names = {"base": "base", **PAIR}
    pairs = [("oapl-lag50", "grpo-off1"), ("oapl-lag50", "base"), ("grpo-off1", "base")]
    rows = []
    for k in KS:
        cells = {name: diverse(name, passed(k)) for name in names}
        means = [f"{100 * of_countdown(own).mean:.1f}" for own in cells.values()]
        rows.append([f"pass@{k}, %", *means, *(of_countdown(cells[a], cells[b]).shown(sign="+") for a, b in pairs)])
    cells = {name: diverse(name, distinct) for name in names}
    found = [of_countdown(cells[a], cells[b]) for a, b in pairs]
    means = [f"{of_countdown(own).mean:.1f}" for own in cells.values()]
    rows.append(["different correct of 256", *means, *(one.shown(sign="+", scale=1.0) for one in found)])
    head = ["", *names.values(), "OAPL less GRPO", "OAPL less base", "GRPO less base"]
    return table(head, rows)


def of_bed(arm: str, bed: str) -> dict[str, list[Row]]:
    """Evaluations by base, of `countdown` or of `chains-LENGTH`."""
    curves = Results(DATA, bed.partition("-")[0]).curves(arm)
    return {base: rows for (base, _), rows in curves.items() if base.startswith(f"{bed}-seed")}


def _shares(row: Row) -> list[float]:
    """Share of correct answers to each problem."""
    return [right / row["n"] for right in row["right"]]


def countdown_table() -> str:
    """Accuracy and entropy of the paper's pair."""
    rows = []
    for arm, name in PAIR.items():
        for number, step in enumerate((0, 50, 100)):
            own = [one[number] for one in of_bed(arm, "countdown").values()]
            each = ", ".join(f"{100 * share(row):.1f}" for row in own)
            cells = {(base, 0): _shares(one[number]) for base, one in of_bed(arm, "countdown").items()}
            entropy = ", ".join(f"{row['entropy_ended']:.3f}" for row in own)
            rows.append([f"{name}, step {step}", of_countdown(cells).shown(), each, entropy])
    return table(["", "pass@1, %", "each base", "entropy, each base"], rows)


def entropies() -> dict[str, tuple[float, float]]:
    """Claim 2a, by base: the entropy of OAPL and of GRPO where both have the accuracy that the lower one ends with."""
    found = {}
    curves = {arm: of_bed(arm, "countdown") for arm in PAIR}
    for base in sorted(set.intersection(*(set(own) for own in curves.values()))):
        last = {arm: share(own[base][-1]) for arm, own in curves.items()}
        lower = min(last, key=last.__getitem__)
        at = {arm: at_accuracy(own[base], last[lower], "entropy_ended") for arm, own in curves.items()}
        at[lower] = float(curves[lower][base][-1]["entropy_ended"])
        ours, theirs = at["oapl-lag50"], at["grpo-off1"]
        assert ours is not None and theirs is not None
        found[base] = (ours, theirs)
    return found


def entropy_table() -> str:
    """Claim 2a."""
    rows = [
        [base[-1], f"{ours:.3f}", f"{theirs:.3f}", f"{ours - theirs:+.3f}"]
        for base, (ours, theirs) in entropies().items()
    ]
    return table(["base", "OAPL", "GRPO", "OAPL less GRPO"], rows)


def has_collapsed(rows: Sequence[Row]) -> bool:
    """Claim 3."""
    return collapsed([share(row) for row in rows])


def chains_table() -> str:
    """Curves of every arm on every base, and which fell."""
    rows = []
    for length in LENGTHS:
        for arm, name in CHAINS.items():
            for base, own in of_bed(arm, f"chains-{length}").items():
                curve = " ".join(f"{100 * share(row):.0f}" for row in own)
                rows.append([f"{length}", name, base[-1], curve, "collapses" if has_collapsed(own) else ""])
    return table(["steps of a chain", "", "base", "pass@1 after 0, 20, 40, 60 steps, %", "by the criterion"], rows)


def falls(length: int) -> dict[str, dict[str, int]]:
    """Claim 3 at a length of chains: by method and base how many of its two arms fell."""
    return {
        method: {
            base: sum(
                has_collapsed(of_bed(f"{method}-{kind}", f"chains-{length}")[base]) for kind in ("offline", "off1")
            )
            for base in of_bed(f"{method}-offline", f"chains-{length}")
        }
        for method in ("grpo", "oapl")
    }


def chains_asked(length: int) -> Asked:
    """Claim 3 at a length of chains, with the sign test of whether GRPO fell more often on every base."""
    fell = falls(length)
    grpo, oapl = (sum(fell[method].values()) for method in ("grpo", "oapl"))
    offline = sum(map(has_collapsed, of_bed("grpo-offline", f"chains-{length}").values()))
    said = "yes" if offline == BASES and grpo == BASES and oapl == 0 else "undecided"
    said = "no" if grpo == 0 or oapl >= grpo else said
    more = all(fell["grpo"][base] > fell["oapl"][base] for base in fell["grpo"])
    question = f"GRPO collapses with lag, OAPL does not: chains of {length} steps"
    return Asked("3", question, said, signs=BASES if more else 0)


def doses_table() -> str:
    """Claim 4: pass@1 by dose, with the engine's log-probs and with the trainer's."""
    results, rows = Results(DATA), []
    for method, name in (("oapl", "OAPL"), ("grpo", "GRPO")):
        exact = results.cells(f"{method}-exact", 60)
        rows.append([name, "none", estimate(exact).shown(), "", "", "", ""])
        for dose in DOSED[1:]:
            told, silent = results.cells(f"{method}-{dose}-rescored", 60), results.cells(f"{method}-{dose}", 60)
            less, harm = difference(silent, told), difference(silent, exact)
            row = [
                name,
                dose,
                estimate(silent).shown(),
                estimate(told).shown(),
                less.shown(sign="+"),
                by_base(less, "+"),
            ]
            rows.append([*row, harm.shown(sign="+")])
    head = [
        "",
        "dose",
        "engine's log-probs, %",
        "trainer's, %",
        "engine's less trainer's",
        "each base",
        "engine's less no dose",
    ]
    return table(head, rows)


def sides(found: Sequence[Estimate]) -> str:
    """Yes if every interval is above 0, no if one is below."""
    if any(one.high < 0 for one in found):
        return "no"
    return "yes" if all(one.low > 0 for one in found) else "undecided"


def summary_table() -> str:
    """Every claim by its criterion."""
    cells = {name: {k: diverse(name, passed(k)) for k in (1, 2, *KS[1:])} for name in ("base", *PAIR)}
    over_base = {k: of_countdown(cells["oapl-lag50"][k], cells["base"][k]) for k in (1, 2, *KS[1:])}
    above = [ours > theirs for ours, theirs in entropies().values()]
    kept = "yes" if all(above) else "undecided" if any(above) else "no"
    more = of_countdown(diverse("oapl-lag50", distinct), diverse("grpo-off1", distinct))
    below = of_countdown(diverse("oapl-lag50", distinct), diverse("base", distinct))
    scales = "no" if any(x.high < 0 for x in over_base.values()) else "yes" if over_base[1].low > 0 else "undecided"
    worst = min(over_base.values(), key=lambda one: one.high)
    agreeing = len(above) if len({*above}) == 1 else 0
    sharpened = "yes" if below.high < 0 else "no" if below.low > 0 else "undecided"
    rows = [
        Asked("2a", "OAPL keeps more entropy than GRPO at equal accuracy", kept, signs=agreeing),
        Asked("2b", "OAPL keeps more different correct answers than GRPO, of 256", sides([more]), percent(more)),
        Asked("2b", "OAPL is sharpened against its base: the same", sharpened, percent(below)),
        Asked("2c", "pass@k of OAPL is above the base's for every k to 256: the worst k", scales, worst),
        *map(chains_asked, LENGTHS),
    ]
    results = Results(DATA)
    for method, name in (("oapl", "OAPL"), ("grpo", "GRPO")):
        for dose in DOSED[1:]:
            told, silent = results.cells(f"{method}-{dose}-rescored", 60), results.cells(f"{method}-{dose}", 60)
            less, harm = difference(silent, told), difference(silent, results.cells(f"{method}-exact", 60))
            question = f"{name}, {dose}: the engine's log-probs against the trainer's"
            rows.append(Asked("4", question, verdict(less, "better", "worse", "undecided"), less))
            said = verdict(harm, "better", "harmed", "undecided")
            rows.append(Asked("4", f"{name}, {dose}: against no dose", said, harm))
    return asked_table(rows)


def percent(found: Estimate) -> Estimate:
    """A number of answers as hundredths, so that a table of percent shows it as it is."""
    by_base, by_start = ({key: x / 100 for key, x in own.items()} for own in (found.by_base, found.by_start))
    return Estimate(found.mean / 100, found.low / 100, found.high / 100, by_base, by_start, found.resampled / 100)


TABLES: dict[str, Callable[[], str]] = {
    "summary": summary_table,
    "mismatches": mismatch_table,
    "countdown": countdown_table,
    "entropies": entropy_table,
    "diversity": diversity_table,
    "chains": chains_table,
    "doses": doses_table,
}

if __name__ == "__main__":
    main()
