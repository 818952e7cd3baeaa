"""A round's rollouts as a person reads them: a random sample of problems with every answer, token by token.

Reads rollouts, verdicts, problems and prompts (``joined.py``) and the tokenizer of the model that sampled.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.seeds import derive_seed
from oapl_core.turns.rows import is_trajectory, turn_of_each
from oapl_extras.round_pages.joined import joined
from oapl_extras.round_pages.pieces import Piece, pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NOT_JUDGED = "not judged yet"


@dataclass(frozen=True)
class RolloutSample:
    """Rows of ``joined`` for a few problems of one round."""

    run: str
    round: int
    rows_by_problem: Mapping[str, Sequence[Mapping[str, Any]]]
    problems: int
    """Number of problems that the round has."""
    tests_run_in_order: bool
    """Whether tests were run from the first on, and none after one failed."""

    def first(self, problems: int) -> "RolloutSample":
        """Return this sample with fewer problems."""
        kept = dict(list(self.rows_by_problem.items())[:problems])
        return RolloutSample(self.run, self.round, kept, self.problems, self.tests_run_in_order)

    @property
    def outcomes(self) -> dict[str, int]:
        """Outcome -> rollouts of the sample, the most frequent first."""
        return dict(Counter(outcome_of(row) for rows in self.rows_by_problem.values() for row in rows).most_common())

    @property
    def has_environment(self) -> bool:
        """Whether an environment answered the model in one of them."""
        return any(is_trajectory(row) for rows in self.rows_by_problem.values() for row in rows)

    @property
    def without_logprobs(self) -> int:
        """Rollouts of the sample that nobody recorded log-probs of."""
        return sum(row["logprobs"] is None for rows in self.rows_by_problem.values() for row in rows)

    def every(self, column: str) -> list[str]:
        """Return the different values of a column, sorted."""
        return sorted({str(row[column]) for rows in self.rows_by_problem.values() for row in rows})


def outcome_of(row: Mapping[str, Any]) -> str:
    """Name a rollout's outcome, or say that it is not judged."""
    return str(row["outcome"] or NOT_JUDGED)


def sample_rollouts(record: RunRecord, number: int) -> RolloutSample | None:
    """Draw `report.shown_problems` problems of round ``number`` by hash, with all their rollouts; None without any.

    Raises:
        DataError: a part cannot be read.
    """
    run = record.run
    parts = record.parts(run.rollouts(number))
    wanted = run.config.report.shown_problems
    if not parts or not wanted:
        return None
    ids_of = {p.name: tables.read_table(p, tables.ROLLOUTS, ("problem_id",))["problem_id"].unique() for p in parts}
    every = {i for ids in ids_of.values() for i in ids.to_pylist()}
    # by hash: drawn before anything is known of the answers, and the same in every report
    drawn = sorted(every, key=lambda i: derive_seed(run.config.seed, "rollouts shown", number, i))[:wanted]
    # a part without any of the problems is not even opened: parts of a real round are gigabytes
    theirs = [name for name, ids in ids_of.items() if not set(drawn).isdisjoint(ids.to_pylist())]
    rows = joined(record, number, theirs, drawn).sort("sample").collect(engine="streaming").to_dicts()
    by_problem = {i: [row for row in rows if row["problem_id"] == i] for i in drawn}
    verifier = run.config.verifier
    in_order = verifier.stop_at_first_failure and verifier.max_tests is None
    return RolloutSample(run.root.name, number, by_problem, len(every), in_order)


@dataclass(frozen=True)
class Stretch:
    """Tokens next to each other that the model sampled in one turn, or that an environment wrote."""

    turn: int | None
    """Number of the turn, from 0; None: the environment wrote it."""
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """Text of the pieces for a person to read."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True)
class Shown:
    """An answer cut in its middle: its beginning, how many tokens are left out, its end."""

    head: tuple[Stretch, ...]
    left_out: int
    tail: tuple[Stretch, ...]


def shaded(row: Mapping[str, Any], tokenizer: "Tokenizer", tokens: int) -> Shown | None:
    """At most ``tokens`` tokens of an answer, three quarters of them from its beginning; None without log-probs."""
    ids, logprobs = row["response_ids"], row["logprobs"]
    if logprobs is None:  # imported, from a data set that does not have them
        return None
    left_out = max(0, len(ids) - tokens)
    # the rest from its end, where the answer is given
    end = len(ids) if not left_out else tokens - tokens // 4
    begin = end + left_out
    head = tuple(_stretches(row, tokenizer, 0, end))
    return Shown(head, left_out, tuple(_stretches(row, tokenizer, begin, len(ids))))


def _stretches(row: Mapping[str, Any], tokenizer: "Tokenizer", begin: int, end: int) -> Iterator[Stretch]:
    """Yield the tokens of a row from ``begin`` to ``end``."""
    ids, logprobs, turns = row["response_ids"], row["logprobs"], turn_of_each(row)
    borders = {begin, end, *(place for place in range(begin + 1, end) if turns[place] != turns[place - 1])}
    for first, last in pairwise(sorted(borders)):
        yield Stretch(turns[first], tuple(pieces(tokenizer, ids[first:last], logprobs[first:last])))


@dataclass(frozen=True)
class Marks:
    """Results of a program's tests, each ``passed``, ``failed`` or ``not run``, and the same in words."""

    of_tests: tuple[str, ...]
    words: str


def marks(row: Mapping[str, Any], tests_run_in_order: bool) -> Marks | None:
    """Mark each test, or give only words where the verdict does not tell which tests passed; None without tests."""
    total, run, passed, failed = (row[n] for n in ("problem_tests", "tests_run", "tests_passed", "first_failing_test"))
    if not run:
        return None
    words = f"{passed} of {total} tests passed, {run} run"
    words += f"; test {failed} failed first" if failed is not None else ""
    if not tests_run_in_order and passed < total:  # then the tests that passed may be any of them
        return Marks((), words)
    known = ["passed"] * passed + ["failed"] * (failed is not None)
    return Marks((*known, *["not run"] * (total - len(known))), words)
