"""Effects of a run's training on abilities it did not train: its checkpoints evaluated on other problem sets.

Reads the cards of evaluation folders below the run's `forgetting/`, which a person makes:
`oapl evaluate RUN:base RUN --set SET --to RUN/forgetting/NAME`. Writes nothing.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oapl_core.errors import DataError
from oapl_core.reports.blocks import Section, table
from oapl_core.reports.facts import Facts
from oapl_core.run_folder.run import Run

FOLDER = "forgetting"
_NOTE = (
    "The same problems before and after, paired; interval: 95 %, bootstrap over problems. A loss whose interval is "
    "below 0 is told at the head of the report."
)


def cards(run: Run) -> list[Path]:
    """List the cards there are, by name."""
    return sorted((run.root / FOLDER).glob("*/card.json"))


def forgetting_section(facts: Facts) -> Section | None:
    """Make a table with a row for each set and trained checkpoint; None without cards that compare one with the base.

    Raises:
        DataError: a card is broken.
    """
    rows = [
        (
            pair["set"],
            pair["second"],
            f"{pair['before']:.1%}",
            f"{pair['after']:.1%}",
            f"{100 * pair['difference']:+.1f}",
            f"{100 * pair['low']:+.1f} to {100 * pair['high']:+.1f}",
            f"{pair['problems']:,}",
        )
        for pair in _pairs(facts)
    ]
    if not rows:
        return None
    columns = ("problem set", "checkpoint", "before>", "after>", "difference, points>", "95 % interval>", "problems>")
    return Section("What was not trained", tables=(table("pass@1 before and after", columns, rows, _NOTE),))


def losses(facts: Facts) -> Iterator[str]:
    """Yield a sentence for each set on which a checkpoint became worse beyond its interval."""
    for pair in _pairs(facts):
        if pair["high"] < 0:
            yield (
                f"{pair['second']} lost {-100 * pair['difference']:.1f} points ({-100 * pair['high']:.1f} to "
                f"{-100 * pair['low']:.1f}) on {pair['set']}, which was not trained."
            )


def _pairs(facts: Facts) -> Iterator[dict[str, Any]]:
    """Compare pass@1 of the model that the rounds began with to each of the run's checkpoints, by card."""
    trained = {identity for one in facts.rounds for identity in one.epochs.values()}
    for path in cards(facts.run):
        card = _read(path)
        identity = {label: model["policy_hash"] for label, model in card["asked"]["models"].items()}
        for pair in card["comparisons"]:
            # an evaluation folder there may compare other models too, which say nothing of this run
            if pair["k"] == 1 and identity[pair["first"]] == facts.base and identity[pair["second"]] in trained:
                before, after = (card["results"][pair[name]]["pass_at_k"]["1"][0] for name in ("first", "second"))
                yield {**pair, "set": path.parent.name, "before": before, "after": after}


def _read(path: Path) -> Mapping[str, Any]:

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        _ = content["asked"]["models"], content["comparisons"], content["results"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{path}: is not an evaluation card; evaluate again, or delete its folder") from None
    return dict(content)
