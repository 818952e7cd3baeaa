"""Figures of docs/benchmarks/claims.md, drawn by ``page.py``: claims_{collapse,pair,lag,bandit}.png."""

from pathlib import Path
from typing import Any

import polars as pl

from bench.bandit import figure as bandit
from bench.claims.bootstrap import estimate
from bench.claims.results import Results
from oapl_extras.compare.panels import Line, Panel, draw_panels


def draw(results: Results, to: Path) -> None:
    """Whatever has results."""
    offline = {"oapl-offline": "OAPL", "grpo-offline": "GRPO, token IS"}
    if all(map(results.curves, offline)):
        _with_distance(results, offline, to / "claims_collapse.png", starts=(90, 180))
    lag = {"oapl-lag800": "OAPL, L = 800", "grpo-lag800": "GRPO, L = 800"}
    if all(map(results.curves, lag)):
        _with_distance(results, lag, to / "claims_lag.png")
    lagged = {"oapl-lag50": "OAPL, L = 50", "grpo-off1": "GRPO, off by one", "grpo-lag50": "GRPO, L = 50"}
    found = {arm: label for arm, label in lagged.items() if results.curves(arm)}
    if found:
        _pair(results, found, to / "claims_pair.png")
    _bandit(to / "claims_bandit.png")


def accuracy(results: Results, arm: str, label: str, style: int) -> Line:
    """pass@1 with its interval over bases, seeds and problems."""
    points = []
    for step in results.steps_of(arm):
        found = estimate(results.cells(arm, step))
        points.append((step, found.mean, found.low, found.high))
    x, y, low, high = zip(*points, strict=True)
    return Line(label, x, y, low, high, style=style)


def _means(results: Results, arm: str, column: str, label: str, style: int) -> Line:
    frame = (
        results.steps.filter(pl.col("arm") == arm)
        .group_by("step")
        .agg(pl.col(column).mean().alias("mean"), pl.col(column).min().alias("low"), pl.col(column).max().alias("high"))
    )
    x, y, low, high = (frame.sort("step")[name].to_list() for name in ("step", "mean", "low", "high"))
    return Line(label, x, y, low, high, style=style, look="plain")


def _with_distance(results: Results, arms: dict[str, str], path: Path, starts: tuple[int, ...] = ()) -> None:
    """Accuracy, and how far the policy is from the one that sampled."""
    styles = list(enumerate(arms.items(), 1))
    accuracies = [accuracy(results, arm, label, style) for style, (arm, label) in styles]
    distances = [_means(results, arm, "kl", label, style) for style, (arm, label) in styles]
    panels = [
        Panel("held-out accuracy, 95 %", "optimiser steps", "pass@1, %", accuracies, starts=starts),
        Panel("KL(b, pi), lowest to highest base", "optimiser steps", "KL, nats per token", distances, False),
    ]
    draw_panels(path, panels)


def _pair(results: Results, arms: dict[str, str], path: Path) -> None:
    lines = [accuracy(results, arm, name, style) for style, (arm, name) in enumerate(arms.items(), 1)]
    draw_panels(path, [Panel("", "optimiser steps of 64 rollouts", "pass@1, %", lines)])


def _bandit(path: Path) -> None:
    """The probability of each arm over exact gradient steps."""
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
    draw_panels(path, panels)
