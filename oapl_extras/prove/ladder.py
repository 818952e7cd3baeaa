"""Climbs the rungs one after another, each in a process of its own, and writes the card.

A rung that fails is red and says what to do; those that need nothing of it are tried all the same. Writes
FOLDER/card.json and FOLDER/card.md, fit to be sent with a question.
"""

import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from oapl_core.launch import guarded
from oapl_core.settings.experiment_file import apply, parse_experiment
from oapl_core.stage import ERROR_PREFIX
from oapl_extras.prove import made
from oapl_extras.prove.rungs import RESULT, RUNGS

_LIMIT_S = 400.0


@dataclass(frozen=True)
class Rung:
    """Result of one proof: green or not, and its figure."""

    name: str
    is_green: bool
    line: str
    """Figure of the proof, or its fault and what to do."""
    seconds: float
    found: Mapping[str, Any] = field(default_factory=dict)


def climb(
    folder: Path, on_gpu: bool, overrides: Iterable[str], wanted: Iterable[str], tell: Callable[[Rung], None]
) -> list[Rung]:
    """Try the ``wanted`` rungs, in order, and write the card.

    Args:
        folder: for models, runs, logs and the card; made if it is missing.
        on_gpu: whether the proofs are sized for a GPU.
        overrides: ``key.sub=value`` changes of the settings, for example ``model=models/Qwen3-4B``.
        wanted: names of RUNGS.
        tell: called with each rung as it ends.

    Raises:
        ConfigError: an override is no setting.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "runs", ignore_errors=True)  # left by an earlier climb, perhaps with other settings
    values = made.values(folder, on_gpu)
    for override in overrides:
        apply(values, override)
    parse_experiment(values, "oapl prove")
    (folder / "settings.json").write_text(json.dumps(values), encoding="utf-8")
    rungs = []
    for name in [rung for rung in RUNGS if rung in set(wanted)]:
        rungs.append(_try(folder, name))
        tell(rungs[-1])
    write_card(folder, rungs)
    return rungs


def _try(folder: Path, name: str) -> Rung:
    log, began = folder / f"{name}.log", time.monotonic()
    with (
        log.open("wb") as sink,
        guarded([sys.executable, "-m", "oapl_extras.prove.rungs", name, str(folder)], sink.fileno()) as process,
    ):
        try:
            code: int | None = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
    seconds = time.monotonic() - began
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if code == 0 and lines[-1].startswith(RESULT):
        facts = json.loads(lines[-1].removeprefix(RESULT))
        return Rung(name, True, facts.pop("figure"), round(seconds, 1), facts)
    errors = [line.removeprefix(ERROR_PREFIX) for line in lines if line.startswith(ERROR_PREFIX)]
    last = f"it ended with {code}; last line: {lines[-1][:200] if lines else 'none'}; see {log}"
    why = f"it took more than {_LIMIT_S:.0f} s and was ended; see {log}" if code is None else last
    return Rung(name, False, (errors or [why])[-1], round(seconds, 1))


def write_card(folder: Path, rungs: list[Rung]) -> None:
    """Write card.json and card.md."""
    machine = {"system": platform.platform(), "python": platform.python_version()}
    card = {"machine": machine, "rungs": [asdict(rung) for rung in rungs]}
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    lines = [
        f"# oapl prove: {sum(r.is_green for r in rungs)} of {len(rungs)} rungs",
        "",
        f"{machine['system']}, Python {machine['python']}",
        "",
        "| rung | | what was found | s |",
        "|---|---|---|---|",
        *(
            f"| {r.name} | {'green' if r.is_green else 'RED'} | {r.line.replace('|', '/')} | {r.seconds:.0f} |"
            for r in rungs
        ),
    ]
    (folder / "card.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
