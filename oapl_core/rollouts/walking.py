"""The draw `walk`: a round's training problems are the next ones of a walk through all.

Algorithm 1 of the paper (arXiv 2602.19362) takes fresh prompts for each step and synchronises the behaviour policy
every L steps. Rounds that `walk` do the same offline: one round is L steps' worth of prompts (L x batch / G). No
problem comes again before the walk has been through the whole shuffled set; then it is shuffled anew.
"""

import random
from collections.abc import Sequence

from oapl_core.rollouts.drawing import Chosen, asked
from oapl_core.run_folder.run import Run
from oapl_core.seeds import derive_seed
from oapl_core.settings.rounds import RoundConfig


def walking(run: Run, number: int, names: Sequence[str], _is_first: bool) -> Chosen:
    """Draw the next problems of the walk."""
    asked(run, number, names)  # for its line: the sizes of all rounds decide, not this one alone
    rounds = run.config.rounds
    return Chosen(walk(names, rounds, number, run.config.seed), {"walked": walked(rounds, number)})


def walk(problems: Sequence[str], rounds: Sequence[RoundConfig], number: int, seed: int) -> list[str]:
    """Return the problems of round ``number``, in the order of ``problems``.

    Depends on the names, the rounds up to this one and the run's seed alone. A round that asks for more than there are
    gets all of them.
    """
    sizes = [_taken(one, len(problems)) for one in rounds[: number + 1]]
    chosen = set(problems) if sizes[-1] == len(problems) else _last(sorted(problems), sizes, seed)
    return [problem for problem in problems if problem in chosen]


def walked(rounds: Sequence[RoundConfig], number: int) -> list[int | None]:
    """Return sizes of the earlier rounds of the walk, on which a round of it depends (None: all problems)."""
    return [one.problems for one in rounds[:number] if one.draw == "walk"]


def _taken(one: RoundConfig, problems: int) -> int:
    """Return the number of problems by which a round moves the walk."""
    return min(one.problems or problems, problems) if one.draw == "walk" else 0


def _last(names: Sequence[str], sizes: Sequence[int], seed: int) -> set[str]:
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
