"""Training problems that a round samples: all, a random subset, or the next ones of a walk through all.

A draw is a function that is found by the name in `draw` of the round; two are here.

Algorithm 1 of the paper (arXiv 2602.19362) takes fresh prompts for each step and synchronises the behaviour policy
every L steps. Rounds that `walk` do the same offline: one round is L steps' worth of prompts (L x batch / G). No
problem comes again before the walk has been through the whole shuffled set; then it is shuffled anew.
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
from oapl_core.settings.rounds import RoundConfig


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
    wanted = run.config.rounds[number].problems
    if wanted is not None and wanted > len(names):
        say(f"round {number}: {wanted} problems asked for, {len(names)} there are: all of them are sampled")
    return Chosen(drawn(names, run.config.rounds, number, run.config.seed))


def walking(run: Run, number: int, names: Sequence[str], is_first: bool) -> Chosen:
    """Draw the next problems of the walk."""
    chosen = randomly(run, number, names, is_first)
    return Chosen(chosen.problems, {"walked": walked(run.config.rounds, number)})


def drawn(problems: Sequence[str], rounds: Sequence[RoundConfig], number: int, seed: int) -> list[str]:
    """Return the problems of round ``number``, in the order of ``problems``.

    Depends on the names, the rounds up to this one and the run's seed alone. A round that asks for more than there are
    gets all of them.
    """
    wanted = rounds[number].problems
    if wanted is None or wanted >= len(problems):
        return list(problems)
    if rounds[number].draw == "random":
        # Sorted first, so that the order in which a problem set lists its problems decides nothing. The seed is a hash
        # of the round and the run's seed: a round's draw does not depend on how many rounds were drawn before it.
        chosen = set(random.Random(derive_seed(seed, "problems", number)).sample(sorted(problems), wanted))
    else:
        chosen = _walk(sorted(problems), [_taken(one, len(problems)) for one in rounds[: number + 1]], seed)
    return [problem for problem in problems if problem in chosen]


def walked(rounds: Sequence[RoundConfig], number: int) -> list[int | None]:
    """Return sizes of the earlier rounds of the walk, on which a round of it depends (None: all problems)."""
    return [one.problems for one in rounds[:number] if one.draw == "walk"]


def _taken(one: RoundConfig, problems: int) -> int:
    """Return the number of problems by which a round moves the walk."""
    return min(one.problems or problems, problems) if one.draw == "walk" else 0


def _walk(names: Sequence[str], sizes: Sequence[int], seed: int) -> set[str]:
    """Return the problems of the last of these steps of the walk. The rest of one pass comes first in the next round;
    problems of the next pass follow, unless the round has them already."""
    # The walk is replayed from its start, as nothing about it is stored: a resumed run needs no state but its settings.
    passes, ahead = 0, list[str]()
    chosen: set[str] = set()
    for size in sizes:
        chosen = set(ahead[:size])
        ahead = ahead[size:]
        if len(chosen) < size:
            again = list(names)
            # Each pass has a hash of its own as the seed, so that a new pass is another order and a repetition is not.
            random.Random(derive_seed(seed, "walk", passes)).shuffle(again)
            passes += 1
            fresh = [name for name in again if name not in chosen][: size - len(chosen)]
            taken = set(fresh)
            ahead = [name for name in again if name not in taken]
            chosen |= taken
    return chosen
