"""Training problems that a round samples: all, or those that a draw chooses.

A draw is a function that is found by the name in `draw` of the round; the random one is here.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oapl_core import plugins
from oapl_core.progress import say
from oapl_core.run_folder.run import Run
from oapl_core.seeds import derive_seed


@dataclass(frozen=True)
class Chosen:
    """Problems that a round samples, in the order of prompts.parquet."""

    problems: Sequence[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the round's rollouts depend on, beside the number of problems."""


Draws = Callable[[Run, int, Sequence[str], bool], Chosen]
"""Function that draws of the names of problems; the last argument is whether this process writes what people look at.
"""


def choose_problems(run: Run, number: int, names: Sequence[str], is_first: bool = False) -> Chosen:
    """Choose the problems of round ``number`` of those that have a prompt."""
    name = run.config.rounds[number].draw
    draw: Draws = plugins.resolve("draw", name)
    chosen = draw(run, number, names, is_first)
    if name in plugins.BUILT_IN["draw"]:
        return chosen
    # a person's own code may change, and rollouts depend on what it chose
    return Chosen(chosen.problems, {**chosen.settings, "drawn": digest(chosen.problems)})


def digest(problems: Iterable[str]) -> str:
    """Return 16 hex digits of which problems these are."""
    return hashlib.sha256("\n".join(sorted(problems)).encode()).hexdigest()[:16]


def randomly(run: Run, number: int, names: Sequence[str], _is_first: bool) -> Chosen:
    """Draw a subset that is independent of other rounds."""
    return Chosen(drawn(names, asked(run, number, names), number, run.config.seed))


def asked(run: Run, number: int, names: Sequence[str]) -> int:
    """Return the number of problems that a round takes; a line says so where it asks for more than there are."""
    wanted = run.config.rounds[number].problems
    if wanted is not None and wanted > len(names):
        say(f"round {number}: {wanted} problems asked for, {len(names)} there are: all of them are sampled")
    return min(wanted or len(names), len(names))


def drawn(problems: Sequence[str], wanted: int, number: int, seed: int) -> list[str]:
    """Return ``wanted`` problems for round ``number``, in the order of ``problems``.

    Depends on the names, the number of the round and the run's seed alone.
    """
    # Sorted first, so that the order in which a problem set lists its problems decides nothing. The seed is a hash of
    # the round and the run's seed: a round's draw does not depend on how many rounds were drawn before it.
    chosen = set(random.Random(derive_seed(seed, "problems", number)).sample(sorted(problems), wanted))
    return [problem for problem in problems if problem in chosen]
