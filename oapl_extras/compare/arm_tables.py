"""Tables of a comparison's report: what each arm reached, did and took. Writes the same numbers as table.csv."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from oapl_core.reports.blocks import (
    DASH,
    Table,
    decimal,
    duration,
    gain_of,
    interval,
    interval_of,
    mean_of,
    percent,
    reward_of,
    table,
    table_of,
    whole,
)
from oapl_extras.compare.arms import Means, Result, base_means, base_name, largest_k, problem_sets, ranked
from oapl_extras.compare.folder import Comparison

SHORT = (0, 2, 3, 5)
"""Columns of ``held_out_table`` that fit into a terminal."""


def held_out_table(comparison: Comparison, results: Sequence[Result], name: str) -> Table:
    """Tabulate a row for each measured arm, the highest pass@1 first, and the checkpoint that they started from."""
    k, first = largest_k(results, name), results[0]
    rows: list[tuple[str, ...]] = []
    for one in ranked(results, name):
        means, reference = one.means(name, 1), first.means(name, 1)
        if means is None:
            continue
        # the first arm is the reference; against itself there is nothing to say
        gain = means.minus(reference) if reference and one is not first else None
        lengths = decimal(one.answers.get("tokens"), 1), percent(one.answers.get("truncated"))
        rows.append((one.label, *_pass_cells(means), gain_of(gain), *_rate_and_seeds(one.means(name, k)), *lengths))
    base = base_means(results, name, 1)
    if base:
        at_k = _rate_and_seeds(base_means(results, name, k))
        rows.append((base_name(comparison), *_pass_cells(base), DASH, *at_k, DASH, DASH))
    at_1 = ("seeds>", "pass@1>", "95 % over problems>", "seeds from, to>")
    rewards = {one.label: reward_of(means.all) for one in results if (means := one.rewards(name))}
    if rewards:
        rows = [(*row, rewards.get(row[0], DASH)) for row in rows]
    columns = (
        "arm",
        *at_1,
        f"against {first.label}>",
        f"pass@{k}>",
        "seeds from, to>",
        "tokens>",
        "truncated>",
        *["mean reward>"] * bool(rewards),
    )
    marked = next((i for i, row in enumerate(rows) if row[0] == first.label), None)
    note = (
        "Unbiased pass@k, mean over seeds. 95 % interval: bootstrap over problems, each with its mean over the seeds. "
        f"Against {first.label}: difference of pass@1 in points with its 95 % interval, paired by problem. Tokens: "
        "mean length of held-out answers."
    )
    return table(f"Arms on {name}", columns, rows, note, marked)


def _pass_cells(means: Means) -> tuple[str, str, str, str]:
    """Write the number of seeds, mean, interval over problems, range of the seeds."""
    rate, seeds = _rate_and_seeds(means)
    return whole(len(means.seeds)), rate, interval_of(means.all), seeds


def _rate_and_seeds(means: Means | None) -> tuple[str, str]:
    return (mean_of(means.all), interval(min(means.seeds), max(means.seeds))) if means else (DASH, DASH)


def training_table(results: Sequence[Result]) -> Table:
    """Tabulate what each arm did and took, failed ones too."""
    cells: dict[str, Callable[[Result], str]] = {
        "arm": lambda one: one.label,
        "steps>": lambda one: whole(one.training.get("steps")),
        "rollouts trained on>": lambda one: whole(one.training.get("sequences")),
        "entropy at the end>": lambda one: decimal(one.training.get("entropy"), 3),
        "KL>": lambda one: decimal(one.training.get("kl"), 4),
        "seconds a step>": lambda one: decimal(one.training.get("step_s"), 3),
        "training>": lambda one: duration(one.training.get("training_s")),
        "seeds": lambda one: f"{len(one.failures)} failed" if one.failures else DASH,
    }
    estimated = [one.label for one in results if one.training.get("has_entropy", 1.0) != 1.0]
    older = f" (an earlier version's estimate for {', '.join(estimated)})" if estimated else ""
    note = (
        f"Means over the trained seeds. Entropy: of the policy, exact{older}, nats per token of the rollouts of the "
        "last eighth of the steps, which another policy sampled. KL: k3 estimate of KL(behavior, policy) per token "
        "over the last epoch, nats. Training: wall time of the arm's training processes, start-up included; nothing "
        "was sampled or verified again."
    )
    return table_of("What the arms did", results, cells, note)


def failures_table(results: Sequence[Result]) -> Table | None:
    """Why seeds were not trained to their end; None if all were."""
    rows = [(arm.label, whole(arm.seed), text) for one in results for arm, text in one.failures]
    note = "A loss or gradient that is not finite is a result of the arm's settings; it is not tried again."
    return table("Arms that failed", ("arm", "seed>", "why"), rows, note) if rows else None


def write_numbers(results: Sequence[Result], comparison: Comparison, path: Path) -> None:
    """Write a CSV with a row for each arm and problem set, and one for the checkpoint that they started from."""
    import polars as pl

    # before anything is measured there is no problem set, but what training recorded is a row already
    rows = [row for name in problem_sets(results) or [""] for row in _numbers(results, comparison, name)]
    # columns of the base's row are fewer, and a null may come before the first number of a column
    pl.DataFrame(rows, infer_schema_length=None).write_csv(path)


def _numbers(results: Sequence[Result], comparison: Comparison, name: str) -> Iterator[dict[str, Any]]:
    k, first = largest_k(results, name), results[0].means(name, 1)
    for one in ranked(results, name):
        means = one.means(name, 1)
        gain = means.minus(first) if means and first and one is not results[0] else None
        ends = (gain.mean, gain.low, gain.high) if gain else (None, None, None)
        yield {
            "arm": one.label,
            "problem_set": name,
            "seeds": len(one.tracks),
            "failed": len(one.failures),
            **_columns("pass_at_1", means),
            "k": k,
            **_columns("pass_at_k", one.means(name, k)),
            **dict(zip(("difference", "difference_low", "difference_high"), ends, strict=True)),
            **{key: one.training.get(key) for key in ("entropy", "kl", "steps", "sequences", "step_s", "training_s")},
            **{key: one.answers.get(key) for key in ("tokens", "truncated")},
            **(_columns("mean_reward", rewards) if (rewards := one.rewards(name)) else {}),
        }
    base = base_means(results, name, 1)
    if base:
        at_k = _columns("pass_at_k", base_means(results, name, k))
        named = {"arm": base_name(comparison), "problem_set": name, "seeds": len(base.seeds), "failed": 0}
        yield {**named, **_columns("pass_at_1", base), "k": k, **at_k}


def _columns(name: str, means: Means | None) -> dict[str, float | None]:
    ends: Sequence[float | None] = [None] * 5
    if means is not None:
        ends = (means.all.mean, means.all.low, means.all.high, min(means.seeds), max(means.seeds))
    names = (name, *(f"{name}_{end}" for end in ("low", "high", "seeds_from", "seeds_to")))
    return dict(zip(names, ends, strict=True))
