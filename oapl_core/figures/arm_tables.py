"""Tables of a comparison's report: what each arm reached, did and took. Writes the same numbers as table.csv."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oapl_core.comparing.folder import Comparison
from oapl_core.evaluation.pass_at_k import MeanWithInterval
from oapl_core.figures.arms import Means, Result, base_means, base_name, largest_k, problem_sets, ranked
from oapl_core.reports.blocks import DASH, Table, duration, interval, percent, table, whole

SHORT = (0, 2, 3, 5)
"""Columns of ``held_out_table`` that fit into a terminal."""


def held_out_table(comparison: Comparison, results: Sequence[Result], name: str) -> Table:
    """A row for each measured arm, the highest pass@1 first, and the checkpoint that they started from."""
    k, first = largest_k(results, name), results[0]
    rows = []
    for one in ranked(results, name):
        means, reference = one.means(name, 1), first.means(name, 1)
        if means is None:
            continue
        gain = means.minus(reference) if reference and one is not first else None
        rows.append(
            (
                one.label,
                whole(len(means.seeds)),
                *_pass_cells(means),
                signed(gain) if gain else DASH,
                *_pass_cells(one.means(name, k))[::2],
                _number(one.answers.get("tokens"), 1),
                percent(one.answers.get("truncated")),
            )
        )
    base = base_means(results, name, 1)
    if base:
        at_k = _pass_cells(base_means(results, name, k))[::2]
        rows.append((base_name(comparison), whole(len(base.seeds)), *_pass_cells(base), DASH, *at_k, DASH, DASH))
    columns = (
        "arm",
        "seeds>",
        "pass@1>",
        "95 % over problems>",
        "seeds from, to>",
        f"against {first.label}>",
        f"pass@{k}>",
        "seeds from, to>",
        "tokens>",
        "truncated>",
    )
    marked = next((i for i, row in enumerate(rows) if row[0] == first.label), None)
    note = (
        "Unbiased pass@k, mean over seeds. 95 % interval: bootstrap over problems, each with its mean over the seeds. "
        f"Against {first.label}: difference of pass@1 in points with its 95 % interval, paired by problem. Tokens: "
        "mean length of held-out answers."
    )
    return table(f"Arms on {name}", columns, rows, note, marked)


def _pass_cells(means: Means | None) -> tuple[str, str, str]:
    """Mean, interval over problems, range of the seeds."""
    if means is None:
        return DASH, DASH, DASH
    seeds = interval(min(means.seeds), max(means.seeds))
    return percent(means.all.mean), interval(means.all.low, means.all.high), seeds


def training_table(results: Sequence[Result]) -> Table:
    """What each arm did and took, failed ones too."""
    rows = [
        (
            one.label,
            whole(one.training.get("steps")),
            whole(one.training.get("sequences")),
            _number(one.training.get("entropy"), 3),
            _number(one.training.get("kl"), 4),
            _number(one.training.get("step_s"), 3),
            _time(one.training.get("training_s")),
            f"{len(one.failures)} failed" if one.failures else DASH,
        )
        for one in results
    ]
    columns = (
        "arm",
        "steps>",
        "rollouts trained on>",
        "entropy at the end>",
        "KL>",
        "seconds a step>",
        "training>",
        "seeds",
    )
    estimated = [one.label for one in results if one.training.get("has_entropy", 1.0) != 1.0]
    older = f" (an earlier version's estimate for {', '.join(estimated)})" if estimated else ""
    note = (
        f"Means over the trained seeds. Entropy: of the policy, exact{older}, nats per token of the rollouts of the "
        "last eighth of the steps, which another policy sampled. KL: k3 estimate of KL(behavior, policy) per token "
        "over the last epoch, nats. Training: wall time of the arm's training processes, start-up included; nothing "
        "was sampled or verified again."
    )
    return table("What the arms did", columns, rows, note)


def failures_table(results: Sequence[Result]) -> Table | None:
    """Why seeds were not trained to their end; None if all were."""
    rows = [(arm.label, whole(arm.seed), text) for one in results for arm, text in one.failures]
    note = "A loss or gradient that is not finite is a result of the arm's settings; it is not tried again."
    return table("Arms that failed", ("arm", "seed>", "why"), rows, note) if rows else None


def write_numbers(results: Sequence[Result], comparison: Comparison, path: Path) -> None:
    """A row for each arm and problem set, and one for the checkpoint that they started from."""
    import polars as pl

    rows = [row for name in problem_sets(results) or [""] for row in _numbers(results, comparison, name)]
    pl.DataFrame(rows, infer_schema_length=None).write_csv(path)


def _numbers(results: Sequence[Result], comparison: Comparison, name: str) -> Iterator[dict[str, Any]]:
    k, first = largest_k(results, name), results[0].means(name, 1)
    for one in ranked(results, name):
        means, at_k = one.means(name, 1), one.means(name, k)
        gain = means.minus(first) if means and first and one is not results[0] else None
        yield {
            "arm": one.label,
            "problem_set": name,
            "seeds": len(one.tracks),
            "failed": len(one.failures),
            **_columns("pass_at_1", means),
            "k": k,
            **_columns("pass_at_k", at_k),
            "difference": gain.mean if gain else None,
            "difference_low": gain.low if gain else None,
            "difference_high": gain.high if gain else None,
            **{key: one.training.get(key) for key in ("entropy", "kl", "steps", "sequences", "step_s", "training_s")},
            **{key: one.answers.get(key) for key in ("tokens", "truncated")},
        }
    base = base_means(results, name, 1)
    if base:
        yield {
            "arm": base_name(comparison),
            "problem_set": name,
            "seeds": len(base.seeds),
            "failed": 0,
            **_columns("pass_at_1", base),
            "k": k,
            **_columns("pass_at_k", base_means(results, name, k)),
        }


def _columns(name: str, means: Means | None) -> dict[str, float | None]:
    if means is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high", f"{name}_seeds_from", f"{name}_seeds_to"))
    return {
        name: means.all.mean,
        f"{name}_low": means.all.low,
        f"{name}_high": means.all.high,
        f"{name}_seeds_from": min(means.seeds),
        f"{name}_seeds_to": max(means.seeds),
    }


def signed(gain: MeanWithInterval) -> str:
    """``+1.2 (-0.4 to +2.8)`` in percentage points."""
    return f"{100 * gain.mean:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"


def _number(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def _time(seconds: float | None) -> str:
    return DASH if seconds is None else duration(seconds)
