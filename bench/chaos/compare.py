"""Two run folders: is anything lost, different or left over? Wall times, memory and dates apart, all must be equal."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.training.speed import TIMED

_TIMES = {"sampled_at", "cpu_s", "wall_s", "peak_memory_mb"}
_OF_CARDS = ("settings", "asked", "origin", "statistics", "results", "comparisons")
"""Parts of a card that do not say when and where it was made."""
_KEPT = {".in_flight", "state", ".tmp-stop"}
"""Names that a finished round does not leave behind."""


def differences(whole: Run, hurt: Run) -> list[str]:
    """Everything that is lost or different in ``hurt``, in words."""
    found = []
    if len(finished(hurt)) < len(steps(hurt.config)):
        found.append(f"unfinished: {steps(hurt.config)[len(finished(hurt))].title}")
    if hurt.config != whole.config.model_copy(update={"mirror": hurt.config.mirror}):
        found.append("run.json has other settings")
    recorded = hurt.ledger.artifacts()
    for name in whole.ledger.artifacts():
        if name in whole.ledger.removals():
            continue
        if name not in recorded:
            found.append(f"lost: {name}")
        elif not (hurt.root / name).exists():
            found.append(f"gone: {name}")
        elif why := _difference(whole.root / name, hurt.root / name):
            found.append(f"different: {name}: {why}")
    found += [f"not made by the undisturbed run: {name}" for name in recorded.keys() - whole.ledger.artifacts().keys()]
    return found + list(leftovers(hurt))


def leftovers(run: Run) -> Iterator[str]:
    """Scratch that nobody will ever use again."""
    root, recorded = run.root, run.ledger.artifacts()
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        if parts[0] in ("superseded", "logs") or any(run.name(above) in recorded for above in path.parents):
            continue
        is_scratch = path.name.startswith(".tmp-") or (path.name in _KEPT and path.is_dir() and any(path.glob("*_*")))
        if is_scratch and not (path.name == ".in_flight" and _only_says_sizes(path)):
            yield f"left over: {path.relative_to(root)}"


def _only_says_sizes(path: Path) -> bool:
    return {child.name for child in path.iterdir()} <= {"problems_per_part"}


def _difference(whole: Path, hurt: Path) -> str | None:
    if (whole.name.startswith("epoch_") and whole.is_dir()) or whole.name == "optimizer_state":
        return _of_checkpoints(whole, hurt)
    if whole.suffix == ".parquet":
        return _of_tables(whole, hurt)
    if whole.name.endswith("_card.json"):
        one, other = (json.loads(path.read_text()) for path in (whole, hurt))
        return next((f"its {part}" for part in _OF_CARDS if one[part] != other[part]), None)
    if whole.name in ("report", "base_model.json") or whole.name.endswith("_card.md"):
        return None  # made of what is compared here, with dates or paths in it
    return None if whole.read_bytes() == hurt.read_bytes() else "other bytes"


def _of_checkpoints(whole: Path, hurt: Path) -> str | None:
    names = sorted(path.name for path in whole.iterdir())
    if names != sorted(path.name for path in hurt.iterdir()):
        return "other files"
    for name in names:
        if name == METRICS_FILE:
            if [_timeless(line) for line in _lines(whole / name)] != [_timeless(line) for line in _lines(hurt / name)]:
                return "other metrics"
        elif (whole / name).read_bytes() != (hurt / name).read_bytes():
            return f"other {name}"
    return None


def _of_tables(whole: Path, hurt: Path) -> str | None:
    one, other = (pl.read_parquet(path) for path in (whole, hurt))
    if one.columns != other.columns or one.height != other.height:
        return f"{other.height} rows of {len(other.columns)} columns instead of {one.height} of {len(one.columns)}"
    differing = [name for name in one.columns if name not in _TIMES and not one[name].equals(other[name])]
    return f"columns {', '.join(differing)}" if differing else None


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _timeless(line: dict[str, Any]) -> dict[str, Any]:
    return line | dict.fromkeys(TIMED, 0)
