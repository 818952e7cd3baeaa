"""Tables and figures of docs/benchmarks/claims.md, from docs/benchmarks/data: ``python -m bench.claims.page``.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; everything else is written by hand. A test makes
the tables again and compares. ``--tables`` leaves the figures alone.
"""

import argparse
import re
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench.claims.bootstrap import Cells, Estimate, difference, estimate, initialisation
from bench.claims.results import Results, at_accuracy, cpu_s, sampled_by, share
from bench.claims.studies import PASS, RATE, STUDIES, rates_of
from bench.claims.verdicts import BASES, NOT_RUN, Asked, asked_table, better, collapsed, sided, stable, table

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
PAGE, DATA = DOCS / "claims.md", DOCS / "data"
END, LAST = 3 * PASS, 150
ACCURACY = 0.5


def main() -> None:
    """Tables and figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    results = Results(DATA)
    PAGE.write_text(page(results, PAGE.read_text()))
    if not options.tables:
        from bench.claims.figures import draw

        draw(results, DOCS)


def page(results: Results, text: str) -> str:
    """The page with its tables made again.

    Raises:
        KeyError: a table of the page is not known.
    """
    return written(text, {name: partial(make, results) for name, make in TABLES.items()})


def written(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """A page with each table between its markers made again.

    Raises:
        KeyError: a table of the page is not known.
    """

    def made(match: re.Match[str]) -> str:
        return f"{match[1]}\n{tables[match[2]]()}\n{match[3]}"

    return re.sub(r"(<!-- table ([\w-]+) -->)\n.*?(<!-- end -->)", made, text, flags=re.DOTALL)


def by_base(found: Estimate, sign: str = "") -> str:
    """The bases by themselves, in percent: the seed of each, then its number."""
    rows = sorted(found.by_base.items())
    return ", ".join(f"{base.removeprefix('demo-seed')}: {100 * value:{sign}.1f}" for base, value in rows)


def change(results: Results, arm: str, last: int, first: int) -> Estimate | None:
    """pass@1 at one step minus that at an earlier one."""
    later, earlier = results.cells(arm, last), results.cells(arm, first)
    return difference(later, earlier) if later and earlier else None


def against(results: Results, one: str, other: str, step: int, k: int = 1, one_file: bool = False) -> Estimate | None:
    """pass@k of two arms at a step; with ``one_file`` both claim to be trained on the same rollouts.

    Raises:
        ValueError: they claim it and are not.
    """
    if one_file and not results.same_rollouts(one, other, step):
        shown = {arm: results.rollouts(arm, step) for arm in (one, other)}
        raise ValueError(f"{one} and {other} claim one file of rollouts at step {step} and have others: {shown}")
    first, second = results.cells(one, step, k), results.cells(other, step, k)
    return difference(first, second) if set(first) & set(second) else None


def _row(name: str, cells: Cells) -> list[str]:
    found = estimate(cells)
    return [name, found.shown(), by_base(found)]


def _shown(found: Estimate | None) -> list[str]:
    return [found.shown(sign="+"), by_base(found, "+")] if found else ["not run", ""]


def _collapse(results: Results) -> str:
    rows = []
    for arm, name in (("grpo-offline", "GRPO"), ("oapl-offline", "OAPL")):
        for step in results.steps_of(arm):
            own = [row for one in results.curves(arm).values() for row in one if row["step"] == step]
            means = [
                statistics.fmean(row[column] for row in own) for column in ("entropy_ended", "cut_share", "tokens")
            ]
            entropy, cut, tokens = means
            label = f"{name}, {step} steps"
            rows.append([*_row(label, results.cells(arm, step)), f"{entropy:.3f}", f"{cut:.1%}", f"{tokens:.1f}"])
        rows.append([f"{name}, 270 less 90 steps", *_shown(change(results, arm, END, PASS)), "", "", ""])
    for step in (PASS, END):
        found = against(results, "oapl-offline", "grpo-offline", step, one_file=True)
        rows.append([f"OAPL less GRPO, {step} steps", *_shown(found), "", "", ""])
    return table(["", "pass@1, %", "each base", "entropy", "cut", "tokens"], rows)


def _compared(_: Results) -> str:
    """One base, three seeds, the demo's 150 problems, a cosine of the rate: `oapl compare` of papers_baseline.toml."""
    results = Results(DATA, "papers_baseline")
    names = {
        "oapl-90-steps": "OAPL, 90 steps",
        "oapl-270-steps": "OAPL, 270 steps",
        "grpo-token-is-90-steps": "GRPO, 90 steps",
        "grpo-token-is-270-steps": "GRPO, 270 steps",
    }
    ends = {arm: results.steps_of(arm)[-1] for arm in names}
    rows = []
    for arm, name in names.items():
        own = {key: one[-1] for key, one in results.curves(arm).items()}
        seeds = ", ".join(f"{100 * share(row):.1f}" for _, row in sorted(own.items()))
        passed = [estimate(results.cells(arm, ends[arm], k)).shown() for k in (1, 16)]
        cut = statistics.fmean(row["cut_share"] for row in own.values())
        rows.append([name, passed[0], seeds, passed[1], f"{cut:.1%}"])
    for kind in ("OAPL", "GRPO"):
        short, long = (arm for arm, name in names.items() if name.startswith(kind))
        found = [difference(results.cells(long, ends[long], k), results.cells(short, ends[short], k)) for k in (1, 16)]
        shown = [one.shown(sign="+") for one in found]
        rows.append([f"{kind}, 270 less 90 steps", shown[0], "", shown[1], ""])
    return table(["one base, T = 1", "pass@1, %", "seeds", "pass@16, %", "cut"], rows)


def _pair(results: Results) -> str:
    names = {"oapl-lag50": "OAPL, L = 50", "grpo-off1": "GRPO, off by one", "grpo-lag50": "GRPO, L = 50"}
    rows = [
        _row(f"{name}, step {step}", results.cells(arm, step))
        for arm, name in names.items()
        for step in results.steps_of(arm)
        if step
    ]
    for other in ("grpo-off1", "grpo-lag50"):
        found = against(results, "oapl-lag50", other, LAST)
        rows.append([f"OAPL, L = 50, less {names[other]}, step {LAST}", *_shown(found)])
    return table(["", "pass@1, %", "each base"], rows)


LAGS = (1, 50, 100, 800)
LAGGED, MIDDLE = 200, 100
SHORTER = {(200, 100): "see below"}
"""A step and lag whose last rollouts a later policy sampled: the page says why."""
LONG_LAGS = (400, 800)
"""Steps at which L = 800 is judged: up to the first one it is L = 400."""


def _lags(results: Results) -> str:
    """pass@1 by lag, of both, at one number of steps."""
    rows = []
    for step in (MIDDLE, LAST, LAGGED, *LONG_LAGS):
        for lag in LAGS:
            oapl, grpo = f"oapl-lag{lag}", f"grpo-lag{lag}"
            if all(step in results.steps_of(arm) for arm in (oapl, grpo)):
                means = [estimate(results.cells(arm, step)).shown() for arm in (oapl, grpo)]
                shown = ", ".join([f"{lag}", *([SHORTER[step, lag]] if (step, lag) in SHORTER else [])])
                rows.append([f"{step}", shown, *means, *_shown(against(results, oapl, grpo, step))])
    return table(["step", "L", "OAPL, %", "GRPO, %", "OAPL less GRPO", "each base"], rows)


def loses_by_lag(results: Results, method: str) -> Estimate | None:
    """pass@1 at L = 100 less that at L = 1, after 200 steps."""
    return against(results, f"{method}-lag100", f"{method}-lag1", LAGGED)


PASSES = {"topr-passes": "TOPR", "rft-passes": "RFT"}
"""Three passes of what is ahead of OAPL after one."""


def _passes(results: Results) -> str:
    rows = []
    for arm, name in PASSES.items():
        rows += [_row(f"{name}, {step} steps", results.cells(arm, step)) for step in (PASS, 2 * PASS, END)]
        rows.append([f"{name}, {END} less {PASS} steps", *_shown(change(results, arm, END, PASS))])
        rows.append([f"{name} less OAPL, {END} steps", *_shown(against(results, arm, "oapl-offline", END))])
    return table(["", "pass@1, %", "each base"], rows)


def _slower(results: Results) -> str:
    rows = []
    for arm, name in (
        ("grpo-offline", "GRPO, 2.5e-4"),
        ("grpo-offline-slow", "GRPO, 1.25e-4"),
        ("oapl-offline", "OAPL, 2.5e-4"),
    ):
        rows += [
            _row(f"{name}, {step} steps", results.cells(arm, step))
            for step in (PASS, 2 * PASS, END)
            if results.cells(arm, step)
        ]
        rows.append([f"{name}, {END} less {PASS} steps", *_shown(change(results, arm, END, PASS))])
    return table(["", "pass@1, %", "each base"], rows)


def _crossing(results: Results, arm: str, column: str) -> dict[str, float | None]:
    """By base, of its first seed."""
    curves = {base: rows for (base, seed), rows in sorted(results.curves(arm).items()) if seed == 0}
    if column == "rollouts":
        steps = {base: at_accuracy(rows, ACCURACY, "step") for base, rows in curves.items()}
        settings = results.settings[arm]
        return {base: None if step is None else sampled_by(settings, step) for base, step in steps.items()}
    return {base: at_accuracy([cpu_s(row) for row in rows], ACCURACY, column) for base, rows in curves.items()}


def compared(results: Results, column: str) -> str:
    """Whether OAPL has more or less of something at the accuracy than GRPO, for every base."""
    ours, theirs = (_crossing(results, arm, column) for arm in ("oapl-lag50", "grpo-off1"))
    pairs = [(ours[base], theirs[base]) for base in ours if base in theirs]
    if len(pairs) < BASES:
        return NOT_RUN
    signs = {(a > b) - (a < b) for a, b in pairs if a is not None and b is not None}
    if len(signs) != 1 or any(None in pair for pair in pairs):
        return "not decided"
    return {1: "more", -1: "less", 0: "the same"}[signs.pop()]


def _at_accuracy(results: Results, columns: dict[str, tuple[str, str]], arms: dict[str, str]) -> str:
    rows = []
    for column, (name, form) in columns.items():
        for arm, label in arms.items():
            own = _crossing(results, arm, column)
            if column == "cpu_s" and results.devices(arm) - {"cpu"}:  # seconds of another machine
                own = {}
            found = [
                f"{base.removeprefix('demo-seed')}: {'never' if x is None else format(x, form)}"
                for base, x in own.items()
            ]
            rows.append([name, label, ", ".join(found) or ("another machine" if results.curves(arm) else "not run")])
    return table([f"at {ACCURACY:.0%} pass@1, T = 1", "", "each base"], rows)


_PAIR = {"oapl-lag50": "OAPL, L = 50", "grpo-off1": "GRPO, off by one"}


def _entropy(results: Results) -> str:
    columns = {"entropy_ended": ("entropy, answers that ended", ".3f"), "entropy": ("entropy, all answers", ".3f")}
    return _at_accuracy(results, columns, _PAIR)


def _cost(results: Results) -> str:
    columns = {"rollouts": ("rollouts", ",.0f"), "step": ("optimiser steps", ".0f"), "cpu_s": ("CPU seconds", ".0f")}
    arms = {**_PAIR, "grpo-lag50": "GRPO, L = 50", "grpo-epochs2": "GRPO, 2 epochs", "grpo-epochs4": "GRPO, 4 epochs"}
    rounds = {f"oapl-rounds{n}": f"OAPL, rounds of {n} rollouts, 4 epochs" for n in (512, 1024, 2048)}
    return _at_accuracy(results, columns, {**arms, **rounds, "oapl-offline": "OAPL, one round"})


def over_base(results: Results, arm: str, k: int) -> Estimate | None:
    """pass@k at the end less that of the base, which answers as often in the offline arm's first evaluation."""
    last, first = results.cells(arm, LAST, k), results.cells(arm, 0, k)
    return difference(last, first) if last and first else None


def _agreeing(results: Results) -> int:
    """Initialisations of the paper's pair."""
    return len({initialisation(base) for base in results.bases("oapl-lag50") & results.bases("grpo-off1")})


def _pass_at_k(results: Results) -> str:
    rows = []
    for k in (1, 2, 4):
        cells = results.cells("oapl-lag50", LAST, k)
        if cells:
            rows.append(_row(f"OAPL, L = 50, k = {k}", cells))
            rows.append(_row(f"GRPO, off by one, k = {k}", results.cells("grpo-off1", LAST, k)))
            rows.append([f"difference, k = {k}", *_shown(against(results, "oapl-lag50", "grpo-off1", LAST, k))])
    for k in (1, 2):
        if first := results.cells("oapl-lag50", 0, k):
            rows.append(_row(f"base, k = {k}", first))
            rows.append([f"OAPL less base, k = {k}", *_shown(over_base(results, "oapl-lag50", k))])
    return table(["", "pass@k, %", "each base"], rows)


def _file(results: Results, arm: str, other: str, step: int) -> str:
    """Whether an arm has the rollouts of another."""
    return "the same" if results.same_rollouts(arm, other, step) else "others"


def _against_default(results: Results, names: dict[str, str]) -> str:
    rows = []
    if default := results.cells("oapl-offline", PASS):
        rows.append([*_row("OAPL: beta1 1, beta2 0.1, groups with a correct answer", default), "", "", ""])
    for arm, name in names.items():
        cells = results.cells(arm, PASS)
        if not cells:
            rows.append([name, "not run", "", "", "", ""])
            continue
        found = against(results, arm, "oapl-offline", PASS)
        rows.append([*_row(name, cells), *_shown(found), _file(results, arm, "oapl-offline", PASS)])
    return table(["90 steps", "pass@1, %", "each base", "less OAPL", "each base", "rollouts"], rows)


def tuned(results: Results, method: str) -> tuple[float, bool] | None:
    """The rate with the most correct validation answers over all bases, and whether it is the largest or smallest."""
    found = {}
    for rate in rates_of(method):
        cells = results.cells(f"{method}-rate{rate:g}", PASS)
        if len(cells) < BASES:
            return None
        found[rate] = estimate(cells).mean
    best = max(found, key=found.__getitem__)
    return best, best in (min(rates_of(method)), max(rates_of(method)))


def tuned_arm(results: Results, method: str) -> str | None:
    """The held-out arm of a method at its own rate."""
    if (found := tuned(results, method)) is None:
        return None
    return f"{method}-offline" if found[0] == RATE else f"{method}-offline-rate{found[0]:g}"


def _tuned(results: Results) -> str:
    ours, rows = tuned_arm(results, "oapl"), []
    for method, name in TUNED.items():
        arm, found = tuned_arm(results, method), tuned(results, method)
        if arm is None or found is None or ours is None or not results.cells(arm, PASS):
            rows.append([name, "not run", "", "", "", "", ""])
            continue
        rate = f"{found[0]:g}" + (", the edge" if found[1] else "")
        validation = estimate(results.cells(f"{method}-rate{found[0]:g}", PASS)).mean
        less = [*_shown(against(results, arm, ours, PASS)), _file(results, arm, ours, PASS)]
        less = less if arm != ours else [""] * 3
        rows.append([name, rate, f"{100 * validation:.1f}", *_row("", results.cells(arm, PASS))[1:], *less])
    rows.sort(key=lambda row: -float(row[3].split()[0]) if row[3] else 1)
    head = ["90 steps", "rate", "validation, %", "pass@1, %", "each base", "less OAPL", "each base", "rollouts"]
    return table(head, rows)


def _same(results: Results) -> str:
    """Claim g on the H100's rollouts alone: OAPL and GRPO, there at L = 800, were measured ten steps later."""
    rows = []
    ours = results.cells("oapl-lag800", MIDDLE)
    for method, name in TUNED.items():
        arm, step = tuned_arm(results, method), PASS
        if method in ("oapl", "grpo"):
            arm, step = f"{method}-lag800", MIDDLE
        if arm is None or not results.cells(arm, step):
            continue
        devices = results.devices(arm) | results.devices("oapl-lag800")
        if len(devices) > 1:
            raise ValueError(f"{arm} has not the rollouts of oapl-lag800: {sorted(devices)}")
        cells = results.cells(arm, step)
        less = _shown(difference(cells, ours)) if method != "oapl" else ["", ""]
        rows.append([f"{name}, {step} steps", *_row("", cells)[1:], *less])
    rows.sort(key=lambda row: -float(row[1].split()[0]))
    return table(["", "pass@1, %", "each base", "less OAPL", "each base"], rows)


def _sharpness(results: Results) -> str:
    """pass@k and entropy of what is compared in g, on the bases that all have."""
    arms = [("oapl-offline-rate0.000125", "OAPL, 1.25e-4", PASS), ("oapl-offline", "OAPL, 2.5e-4", END)]
    arms += [
        (arm, f"{name}, 5e-4", step)
        for method, name in (("topr", "TOPR"), ("rft", "RFT"))
        for arm, step in ((f"{method}-offline-rate0.0005", PASS), (f"{method}-passes", END))
    ]
    shared = set.intersection(*(set(results.curves(arm)) for arm, _, _ in arms))
    rows = []
    for arm, name, step in arms:
        shown = [
            estimate({key: values for key, values in results.cells(arm, step, k).items() if key in shared})
            for k in (1, 2, 4)
        ]
        own = [row for key in shared for row in results.curves(arm)[key] if row["step"] == step]
        entropy = statistics.fmean(row["entropy_ended"] for row in own)
        devices = ", ".join(sorted({"CPU" if row["device"] == "cpu" else "H100" for row in own}))
        rows.append([f"{name}, {step} steps", devices, *(f"{100 * one.mean:.1f}" for one in shown), f"{entropy:.3f}"])
    return table(["", "rollouts", "pass@1, %", "pass@2, %", "pass@4, %", "entropy of ended answers"], rows)


TUNED = {
    "oapl": "OAPL",
    "shifted": "OAPL, beta-shifted mean",
    "grpo": "GRPO, token IS",
    "topr": "TOPR",
    "rft": "RFT",
    "asymre": "AsymRE",
    "maxrl": "MaxRL",
    "dpo": "DPO",
    "ipo": "IPO",
    "kto": "KTO",
}
SETTINGS = {
    "oapl-all": "every group",
    "oapl-mixed": "groups with correct and wrong answers",
    "oapl-beta0.1-0.1": "beta1 0.1, beta2 0.1",
    "oapl-beta0.3-0.1": "beta1 0.3, beta2 0.1",
    "oapl-beta0.3-0.3": "beta1 0.3, beta2 0.3",
    "oapl-beta1-0.03": "beta1 1, beta2 0.03",
    "oapl-beta1-0.3": "beta1 1, beta2 0.3",
}
METHODS = {
    "grpo-offline": "GRPO, token IS",
    "topr-offline": "TOPR",
    "asymre-offline": "AsymRE",
    "rft-offline": "RFT: correct answers alone",
    "shifted-offline": "OAPL, beta-shifted mean",
    "maxrl-offline": "MaxRL",
    "dpo-offline": "DPO",
    "ipo-offline": "IPO",
    "kto-offline": "KTO",
}


def _summary(results: Results) -> str:
    return asked_table([*_asked_of_lags(results), *_asked_of_one_file(results)])


def _asked_of_lags(results: Results) -> list[Asked]:
    """List the questions of claims a to e."""
    return [
        collapsed(
            "a",
            "GRPO, refreshed, on one policy's rollouts for 270 steps",
            change(results, "grpo-offline", END, PASS),
        ),
        stable("a", "OAPL on the same", change(results, "oapl-offline", END, PASS)),
        *(
            sided("b", f"OAPL at L = 50 above GRPO {name}", against(results, "oapl-lag50", other, LAST))
            for other, name in (("grpo-off1", "off by one"), ("grpo-lag50", "at L = 50"))
        ),
        *(
            better("b", f"{name} at L = 100 (see b) against its L = 1, 200 steps", loses_by_lag(results, name.lower()))
            for name in ("OAPL", "GRPO")
        ),
        *(
            sided("b", f"OAPL above GRPO, both at L = {step}", against(results, "oapl-lag800", "grpo-lag800", step))
            for step in LONG_LAGS
        ),
        collapsed("b", "GRPO at L = 800, from step 400 to 800", change(results, "grpo-lag800", *LONG_LAGS[::-1])),
        stable("b", "OAPL at L = 800, the same", change(results, "oapl-lag800", *LONG_LAGS[::-1])),
        _signs(results, "c", "entropy of OAPL at 50 % pass@1, against GRPO off by one", "entropy_ended"),
        sided("d", "OAPL above its base, k = 1", over_base(results, "oapl-lag50", 1)),
        sided("d", "OAPL above GRPO off by one, k = 4", against(results, "oapl-lag50", "grpo-off1", LAST, 4)),
        _signs(results, "e", "rollouts of OAPL to 50 %, against GRPO off by one", "rollouts"),
        _signs(results, "e", "CPU seconds of the same", "cpu_s"),
    ]


def _asked_of_one_file(results: Results) -> list[Asked]:
    """List the questions of claims f and g."""
    return [
        better(
            "f",
            "training without the filter, against the paper's",
            against(results, "oapl-all", "oapl-offline", PASS, one_file=True),
        ),
        better(
            "f",
            "beta1 = beta2 = 0.1, against 1 and 0.1" + _note(results, "oapl-beta0.1-0.1", "oapl-offline", PASS),
            against(results, "oapl-beta0.1-0.1", "oapl-offline", PASS),
        ),
        *(_tuned_verdict(results, method, name) for method, name in TUNED.items() if method != "oapl"),
        *(
            row
            for arm, name in PASSES.items()
            for row in (
                collapsed("g", f"{name}, three passes", change(results, arm, END, PASS)),
                better(
                    "g",
                    f"{name}, three passes, against OAPL's" + _note(results, arm, "oapl-offline", END),
                    against(results, arm, "oapl-offline", END),
                ),
            )
        ),
    ]


def _note(results: Results, one: str, other: str, step: int) -> str:
    return "" if results.same_rollouts(one, other, step) else " (other rollouts)"


def _signs(results: Results, claim: str, question: str, column: str) -> Asked:
    said = compared(results, column)
    return Asked(claim, question, said, signs=_agreeing(results) if said in ("more", "less") else 0)


def _tuned_verdict(results: Results, method: str, name: str) -> Asked:
    question = f"{name}, its rate tuned as OAPL's, against OAPL"
    one, other = (tuned_arm(results, own) for own in (method, "oapl"))
    if one is None or other is None:
        return Asked("g", question, NOT_RUN)
    note = _note(results, one, other, PASS)
    return better("g", question + note, against(results, one, other, PASS))


def _missing(results: Results) -> str:
    rows = []
    for study, made in STUDIES.items():
        for arm in made(0):
            found = len(results.bases(arm))
            if found < BASES:
                rows.append([f"`{arm}`", f"{found} of {BASES} bases", f"`--study {study} --only {arm}`"])
    return table(["arm", "run on", "of `python -m bench.claims.train`"], rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "summary": _summary,
    "collapse": _collapse,
    "compared": _compared,
    "slower": _slower,
    "pair": _pair,
    "lags": _lags,
    "entropy": _entropy,
    "passk": _pass_at_k,
    "cost": _cost,
    "settings": lambda results: _against_default(results, SETTINGS),
    "offline": lambda results: _against_default(results, METHODS),
    "tuned": _tuned,
    "same": _same,
    "sharpness": _sharpness,
    "passes": _passes,
    "missing": _missing,
}

if __name__ == "__main__":
    main()
