"""Figures and tables of claims a to d, and the bandit's of claim e, from what ``lag.py`` and `oapl evaluate` wrote.

``python -m bench.claims.figures DIR --card CARD --to docs/benchmarks`` reads DIR/<arm>.json and the card of a
measurement with many answers to each problem, writes claims_*.png and prints the tables. A number is the mean over
seeds with its 95 % interval (Student's t): what another seed would give on these problems.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.bandit import figure as bandit
from bench.claims.lag import LAGS, ROUND_EPOCHS, ROUND_STEPS, SWEPT_RATES
from oapl_core.figures.panels import Line, Panel, draw_panels

NAMES = {"oapl": "OAPL", "grpo_frozen": "GRPO, token IS"}
ACCURACIES = (0.5, 0.6, 0.7, 0.75, 0.8)
_T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""97.5 % quantiles of Student's t by degrees of freedom."""

_WINDOW = 25

Arm = Mapping[str, Any]


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arms", type=Path)
    parser.add_argument("--card", type=Path)
    parser.add_argument("--sweep", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    if options.sweep:
        _sweep(options.sweep)
    arms = {path.stem: json.loads(path.read_text()) for path in sorted(options.arms.glob("*.json"))}
    _lags(arms, options.to)
    _samples(arms, options.to)
    _bandit(options.to)
    if options.card:
        _pass_at_k(json.loads(options.card.read_text())["results"], options.to)


def of_seeds(arms: Mapping[str, Arm], setting: str) -> list[tuple[str, Arm]]:
    """The seeds of ``oapl-lag50`` and the like, and their arms."""
    parts = [(name.partition("-seed"), arm) for name, arm in arms.items()]
    return [(seed, arm) for (found, _, seed), arm in parts if found == setting]


def of(arms: Mapping[str, Arm], setting: str) -> list[Arm]:
    """Their arms alone."""
    return [arm for _, arm in of_seeds(arms, setting)]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % interval."""
    mean = statistics.fmean(values)
    reach = _T_975[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean, mean - reach, mean + reach


def shown(values: Sequence[float], scale: float = 100.0, digits: int = 1) -> str:
    """For a table."""
    mean, low, high = (scale * value for value in interval(values))
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _line(label: str, points: Mapping[float, Sequence[float]], style: int, top: float = 1.0) -> Line:
    rows = [(x, *interval(values)) for x, values in sorted(points.items())]
    x, y, low, high = zip(*rows, strict=True)
    return Line(label, x, y, [max(0.0, v) for v in low], [min(top, v) for v in high], style=style)


def accuracies(arms: Iterable[Arm], x: str = "step") -> dict[float, list[float]]:
    """Held-out pass@1 of every seed, by optimiser step or by rollouts (``samples``)."""
    points: dict[float, list[float]] = {}
    for arm in arms:
        for row in arm["evaluations"]:
            points.setdefault(row[x], []).append(row["pass_at_1"])
    return points


def with_entropy(arms: Iterable[Arm]) -> list[Arm]:
    """Those whose steps recorded the exact entropy; earlier versions of the trainer did not."""
    return [arm for arm in arms if "entropy" in arm["steps"][0]]


def entropies(arms: Iterable[Arm]) -> dict[float, list[float]]:
    """The exact entropy over the training rollouts' states: medians of 25 steps, for every seed, by their last step."""
    points: dict[float, list[float]] = {}
    for arm in with_entropy(arms):
        for start in range(0, len(arm["steps"]), _WINDOW):
            window = arm["steps"][start : start + _WINDOW]
            points.setdefault(window[-1]["step"], []).append(statistics.median(step["entropy"] for step in window))
    return points


def _lags(arms: Mapping[str, Arm], to: Path) -> None:
    """Claims a and b."""
    kinds = {"accuracy": ("pass@1, %", accuracies), "entropy": ("exact entropy, nats per token", entropies)}
    for name, (label, points) in kinds.items():
        panels = []
        for lag in LAGS:
            lines = [
                _line(title, points(found), style, top=math.inf if name == "entropy" else 1.0)
                for style, (objective, title) in enumerate(NAMES.items(), 1)
                if (found := of(arms, f"{objective}-lag{lag}"))
            ]
            if lines:
                title = "a new policy each step" if lag == 1 else f"a new policy every {lag} steps"
                panels.append(Panel(title, "optimiser steps", label, lines, is_percent=name == "accuracy"))
        draw_panels(to / f"claims_{name}.png", panels)
    columns = "pass@1 at the end | lowest from step 100 on | pass@8 | entropy | mean tokens | exact entropy of a step"
    columns += " | clipped"
    print(f"| L | objective | seeds | {columns} |")
    print("|---" * 10 + "|")
    for lag in LAGS:
        for objective, title in NAMES.items():
            if found := of(arms, f"{objective}-lag{lag}"):
                _print_row(lag, title, found)
        _print_difference(lag, arms)


def _clipped(found: Sequence[Arm]) -> str:
    """Mean share of tokens whose gradient the clip stopped, over all steps; empty for an objective without a clip."""
    shares = [step["clipped_tokens_share"] for arm in found for step in arm["steps"]]
    return "" if None in shares else f"{statistics.fmean(shares):.1%}"


def _print_difference(lag: int, arms: Mapping[str, Arm]) -> None:
    """OAPL minus GRPO at the end, paired by seed; a seed has the same problems in the same order for both."""
    ends = {
        name: {seed: arm["evaluations"][-1]["pass_at_1"] for seed, arm in of_seeds(arms, f"{name}-lag{lag}")}
        for name in NAMES
    }
    ours, theirs = ends.values()
    gains = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    print(f"| {lag} | difference, points | {len(gains)} | {shown(gains)} | | | | | | |")


def _print_row(lag: int, title: str, found: Sequence[Arm]) -> None:
    """Of held-out answers at the end, and the median over the last 50 steps of the training states' exact entropy."""
    ends = [arm["evaluations"][-1] for arm in found]
    lowest = [min(row["pass_at_1"] for row in arm["evaluations"] if row["step"] >= 100) for arm in found]
    exact = [statistics.median(step["entropy"] for step in arm["steps"][-50:]) for arm in with_entropy(found)]
    cells = [
        shown([end["pass_at_1"] for end in ends]),
        f"{100 * min(lowest):.1f}",
        shown([end["pass_at_8"] for end in ends]),
        shown([end["token_entropy"] for end in ends], 1, 3),
        f"{statistics.fmean(end['tokens'] for end in ends):.1f}",
        shown(exact, 1, 3),
        _clipped(found),
    ]
    print(f"| {lag} | {title} | {len(found)} | {' | '.join(cells)} |")


def _samples(arms: Mapping[str, Arm], to: Path) -> None:
    """Claim d: accuracy over rollouts spent, and the rollouts at which an accuracy is reached for the first time."""
    lines = []
    print("| | " + " | ".join(f"{100 * a:.0f} %" for a in ACCURACIES) + " |")
    print("|---" * (len(ACCURACIES) + 1) + "|")
    for style, (objective, title) in enumerate(NAMES.items(), 1):
        if found := of(arms, f"{objective}-lag1"):
            lines.append(_line(f"{title}, a new policy each step", accuracies(found, "samples"), style))
            _print_reached(f"{title}, L = 1", [arm["evaluations"] for arm in found])
    for style, fresh in enumerate(ROUND_STEPS, 3):
        if found := of(arms, f"oapl-rounds{64 * fresh}"):
            label = f"OAPL, two rounds of {64 * fresh}"
            lines.append(_line(label, accuracies(found, "samples"), style))
            _print_reached(f"{label}, {ROUND_EPOCHS} epochs each", [arm["evaluations"] for arm in found])
    draw_panels(to / "claims_samples.png", [Panel("", "rollouts sampled", "pass@1, %", lines)])
    _print_matched(arms)


def _print_matched(arms: Mapping[str, Arm]) -> None:
    """OAPL after its two rounds against on-policy GRPO after as many rollouts, paired by seed."""
    print("| rollouts | OAPL, two rounds | GRPO, token IS, L = 1 | difference, points |")
    print("|---|---|---|---|")
    theirs = dict(of_seeds(arms, "grpo_frozen-lag1"))
    for fresh in ROUND_STEPS:
        pairs = [
            (arm["evaluations"][-1]["pass_at_1"], accuracy_after(theirs[seed]["evaluations"], 2 * 64 * fresh))
            for seed, arm in of_seeds(arms, f"oapl-rounds{64 * fresh}")
            if seed in theirs
        ]
        columns = [ours for ours, _ in pairs], [other for _, other in pairs], [ours - other for ours, other in pairs]
        print(f"| {128 * fresh:,} | {' | '.join(shown(column) for column in columns)} |")


def accuracy_after(rows: Sequence[Mapping[str, float]], samples: float) -> float:
    """pass@1 after so many rollouts, on straight lines between the evaluations."""
    before, after = next((a, b) for a, b in pairwise(rows) if a["samples"] <= samples <= b["samples"])
    share = (samples - before["samples"]) / (after["samples"] - before["samples"])
    return before["pass_at_1"] + share * (after["pass_at_1"] - before["pass_at_1"])


def _print_reached(label: str, seeds: Sequence[Sequence[Mapping[str, float]]]) -> None:
    cells = []
    for accuracy in ACCURACIES:
        reached = [x for x in (first_reached(rows, accuracy) for rows in seeds) if x is not None]
        missing = "" if len(reached) == len(seeds) else f" ({len(reached)} of {len(seeds)})"
        cells.append(f"{statistics.fmean(reached):,.0f}{missing}" if reached else "-")
    print(f"| {label} | {' | '.join(cells)} |")


def first_reached(rows: Sequence[Mapping[str, float]], accuracy: float) -> float | None:
    """Rollouts at which pass@1 first was ``accuracy``, on straight lines between the evaluations; None: never."""
    for before, after in pairwise(rows):
        low, high = before["pass_at_1"], after["pass_at_1"]
        if low < accuracy <= high:
            return before["samples"] + (after["samples"] - before["samples"]) * (accuracy - low) / (high - low)
    return None


def _bandit(to: Path) -> None:
    """Claim e's bandit: the probability of each arm over exact gradient steps."""
    found: Any = bandit()
    panels = []
    for method, title in (("reinforce", "REINFORCE"), ("oapl", "OAPL, beta 0.05")):
        arms = list(zip(*found[method]["arms"], strict=True))
        steps = [found["every"] * i for i in range(len(arms[0]))]
        lines = [
            Line(f"reward {reward:g}, behavior {share:g}", steps, arm, arm, arm, style=style, look="plain")
            for style, (reward, share, arm) in enumerate(zip(found["reward"], found["behavior"], arms, strict=True), 1)
        ]
        panels.append(Panel(title, "exact gradient steps", "probability of the arm, %", lines))
    draw_panels(to / "claims_bandit.png", panels)


def _pass_at_k(results: Mapping[str, Any], to: Path) -> None:
    """Claim c: of the base, with its interval over problems, and of arms called ``oapl-lag400-seed0`` and the like."""
    ks = [k for k in (2**i for i in range(20)) if str(k) in results["base"]["pass_at_k"]]
    mean, low, high = zip(*(results["base"]["pass_at_k"][str(k)] for k in ks), strict=True)
    lines = [Line("base", ks, mean, low, high)]
    print("| |" + "".join(f" k = {k} |" for k in ks))
    print("|---" * (len(ks) + 1) + "|")
    print("| base |" + "".join(f" {100 * value:.1f} |" for value in mean))
    settings = dict.fromkeys(label.partition("-seed")[0] for label in results if label != "base")
    for style, setting in enumerate(settings, 1):
        objective, _, lag = setting.partition("-lag")
        label = f"{NAMES[objective]}, L = {lag}"
        mine = [result["pass_at_k"] for name, result in results.items() if name.startswith(f"{setting}-seed")]
        points = {float(k): [one[str(k)][0] for one in mine] for k in ks}
        lines.append(_line(label, points, style))
        print(f"| {label} |" + "".join(f" {shown(points[k])} |" for k in ks))
    draw_panels(to / "claims_pass_at_k.png", [Panel("", "k, answers per problem", "pass@k, %", lines, is_log2=True)])


def _sweep(folder: Path) -> None:
    """How the learning rates were chosen: pass@1 on the validation problems at the end."""
    arms = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    print("| |" + "".join(f" {rate:g} |" for rate in SWEPT_RATES))
    print("|---" * (len(SWEPT_RATES) + 1) + "|")
    for objective, title in NAMES.items():
        found = [arms.get(f"{objective}-lag1-rate{rate:g}") for rate in SWEPT_RATES]
        ends = [f"{100 * arm['evaluations'][-1]['pass_at_1']:.1f}" if arm else "not run" for arm in found]
        print(f"| {title} | {' | '.join(ends)} |")


if __name__ == "__main__":
    main()
