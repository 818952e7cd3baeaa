"""Where the pieces of `minutes.py` lie, and what its processes work with: sampler, verifier, problems, arms."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.claims.mixture import studies

if TYPE_CHECKING:
    from bench.claims.algorithm_1 import Arm
    from bench.claims.machine import Machine
    from bench.claims.mixture.measuring import Row

HERE = Path(__file__).resolve().parent
WIDE = 4
"""Problems of each family and tier that the last weights are asked 256 times."""
ROWS = {"gpu": 320, "cores": 64}
"""Answers in one sampler at once: a dozen share a GPU."""
MICRO_BATCH = 8192
"""Tokens."""
FAILED = "base.failed"
"""Says in a base's folder that it could not be made, or not be asked."""


@dataclass(frozen=True)
class Place:
    """Where things lie."""

    scale: str
    sets: Path
    encoded: Path
    to: Path

    def base(self, seed: int) -> Path:
        """Folder of a base's results."""
        return self.to / f"mixture-{self.scale}-seed{seed}"

    def model(self, seed: int) -> Path:
        """Its weights."""
        return self.to / "models" / f"seed{seed}"

    def arguments(self) -> list[str]:
        """For a process of our own."""
        return [self.scale, "--sets", str(self.sets), "--encoded", str(self.encoded), "--to", str(self.to)]


def of_study(place: Place, seed: int) -> dict[str, Arm]:
    """The arms of a base that are trained here, at the rates that were chosen, else at the middle one."""
    path = place.to / "rates.json"
    rates = json.loads(path.read_text()) if path.exists() else dict.fromkeys(studies.METHODS, studies.RATES[1])
    return studies.arms(place.scale, seed, rates)


def sized(arm: Arm, steps: int | None) -> Arm:
    """An arm as a shared GPU trains it; with ``steps`` a small one, to try it."""
    from bench.claims.mixture.arms import shorter

    arm = replace(arm, training={**arm.training, "tokens_per_micro_batch": MICRO_BATCH})
    return shorter(arm, steps) if steps else arm


@contextmanager
def means_of(place: Place, model: Path) -> Iterator[tuple[Any, Any]]:
    """A sampler and a verifier of one process: others run beside it."""
    from bench.claims.mixture.torch_sampler import TorchSampler
    from oapl_core.verdicts.verifier import Verifier

    config = settings_of(place.scale)
    # the verifier's processes start before the GPU's memory is in use
    with Verifier(config.verifier.model_copy(update={"workers": 1})) as verifier:
        verifier.verify([], [], [])
        with TorchSampler(model, ROWS[place.scale], config.engine.max_model_len) as sampler:
            yield sampler, verifier


def machine_of(place: Place, seed: int, means: tuple[Any, Any], kept: Path) -> Machine:
    """Problems and prompts of a base; ``kept``: folder of what it answered before."""
    from bench.claims.mixture.measuring import machine
    from oapl_core.problems.problem_set import read_problem_set

    folder, splits = place.sets / place.scale, ("train", "validation", "heldout")
    rows = {split: list(read_problem_set(folder / f"{split}.jsonl", split)) for split in splits}
    return machine(place.model(seed), rows, *means, settings_of(place.scale).sampling.max_tokens, kept)


def heldout(place: Place, tier: str) -> Iterable[Row]:
    """Return held-out problems of a tier."""
    from bench.claims.mixture.measuring import family_of
    from oapl_core.problems.problem_set import read_problem_set

    rows = read_problem_set(place.sets / place.scale / "heldout.jsonl", "heldout")
    return [row for row in rows if family_of(row)[1] == tier]


def widths(place: Place, machine: Machine, folder: Path, steps: int | None) -> dict[str, Any]:
    """Many answers of a model folder to a few held-out problems, by problem."""
    from bench.claims.mixture import arms, measuring

    many, n = (1, 16) if steps else (WIDE, arms.ANSWERS)
    rows = [row for tier in measuring.TIERS for row in measuring.chosen(heldout(place, tier), many)]
    return {"n": n, "problems": measuring.widths(machine, folder, rows, n)}


def settings_of(scale: str) -> Any:
    """Return the settings of a scale's file."""
    from oapl_core.settings.experiment_file import load_experiment

    return load_experiment(HERE / f"{scale}.toml", [])
