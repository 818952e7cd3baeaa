"""Choice of the imported problems that are worth having; every one that is left out is counted under a reason.

A chain of filters over a stream of `Imported`; none holds more than a batch of problems and the hashes of statements.
Whether reference solutions pass their tests is asked of a `ProblemVerifier`: the real verifier in `oapl problems`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any, Literal, Protocol

from oapl_core.problems.likeness import OVERLAP_LIMIT, NearDuplicates, Overlap
from oapl_core.problems.sameness import same
from oapl_core.problems.storing import size_of_tests
from oapl_extras.problem_sets.imported import Imported

MOST_ATTEMPTS = 8
"""Pairs of a reference solution and a reading of the tests that are tried for one problem."""
# A batch keeps every core of the verifier busy; its tests, of which one problem may have 189 MB, are all in memory.
_BATCH_ROWS, _BATCH_BYTES = 256, 64 * 2**20


@dataclass
class Tally:
    """Counts of the rows by their fate."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    """Rows that are kept, but of which a reader of the set should know something."""


Word = Literal["passes", "fails", "not judgeable", "broken"]
"""Verdict on a program: `not judgeable` if the checks compare a value that is no plain data, `broken` if the verifier
itself failed.
"""


class ProblemVerifier(Protocol):
    """Tells whether problems are sound: can be solved as their source says, and not without solving them."""

    def programs(self, problems: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> list[Word]:
        """Judge each program on the tests of its problem."""

    def answers(self, answers: Sequence[str]) -> list[bool]:
        """Check that each maths answer can be read and equals itself."""

    def unearned(self, problems: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Find for each problem a way to pass it without solving anything; None where none is known."""


def with_tests(problems: Iterable[Imported], tally: Tally, minimum: int, longest: int | None) -> Iterator[Imported]:
    """Yield program problems with at least ``minimum`` tests (`assert`: any), cut to those with the longest inputs."""
    for imported in problems:
        problem = imported.problem
        if problem["kind"] in ("stdin", "function") and len(problem["tests"]) < minimum:
            tally.dropped[f"fewer than {minimum} tests"] += 1
            continue
        if longest is not None and len(problem["tests"]) > longest:
            tests = (problem["tests"], *imported.readings)
            chosen = _longest([test["input"] for test in problem["tests"]], longest)
            problem["tests"], *readings = [[reading[index] for index in chosen] for reading in tests]
            imported.readings = tuple(readings)
            tally.noted[f"only the {longest} tests with the longest inputs kept"] += 1
        yield imported


def _longest(inputs: Sequence[str], count: int) -> list[int]:
    """Return the indices in their order; of equally long inputs the earlier ones, as `verifier.max_tests` chooses."""
    return sorted(sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))[:count])


def unlike(
    problems: Iterable[Imported], tally: Tally, earlier: Iterable[tuple[str, str]], threshold: float
) -> Iterator[Imported]:
    """Yield the problems that are not, exactly or nearly, among the ``earlier`` (name, statement) or those before them.

    Nearly equal maths problems with different answers are different problems.
    """
    exact: set[str] = set()
    near = NearDuplicates(threshold)
    answers: dict[str, str | None] = {}
    for name, statement in earlier:
        exact.add(same(statement))
        near.add(name, statement)
    # Exact copies go by their hashes first: it is the cheaper question, and the count says which of the two it was.
    for imported in problems:
        name, statement, answer = (imported.problem[key] for key in ("problem_id", "statement", "answer"))
        if same(statement) in exact:
            tally.dropped["the same statement was there before"] += 1
            continue
        other = near.find(statement)
        if other is not None and (answer is None or answers.get(other, answer) == answer):
            tally.dropped["nearly the same statement was there before"] += 1
            continue
        exact.add(same(statement))
        near.add(name, statement)
        answers[name] = answer
        yield imported


def uncontaminated(
    problems: Iterable[Imported], tally: Tally, evaluation: Sequence[tuple[str, str]], threshold: float
) -> Iterator[Imported]:
    """Yield the problems that equal, or nearly equal, no evaluation problem (name, statement), and contain little of
    any.
    """
    overlap, near = Overlap(evaluation), NearDuplicates(threshold)
    exact = {same(statement) for _, statement in evaluation}
    for name, statement in evaluation:
        near.add(name, statement)
    for imported in problems:
        statement = imported.problem["statement"]
        if same(statement) in exact:
            tally.dropped["in an evaluation set"] += 1
        elif near.find(statement) is not None:
            tally.dropped["nearly in an evaluation set"] += 1
        elif overlap.largest(statement)[0] >= OVERLAP_LIMIT:
            tally.dropped[f"contains {OVERLAP_LIMIT:.0%} of an evaluation problem's 13-word pieces"] += 1
        else:
            yield imported


def proven(problems: Iterable[Imported], tally: Tally, verifier: ProblemVerifier) -> Iterator[Imported]:
    """Yield the programs of which a reference solution passes every test, and maths problems whose answer equals
    itself; those that reward doing nothing are marked.

    The reading of ambiguous tests that a solution passes is taken. What could not be judged is dropped, too.
    """
    stream = iter(problems)
    while batch := _batch(stream):
        programs = [imported for imported in batch if imported.problem["kind"] != "math"]
        maths = [imported for imported in batch if imported.problem["kind"] == "math"]
        # By id(): records that change have no hash, and the batch keeps them alive.
        refused = {**_unsolved(programs, tally, verifier), **_unreadable(maths, verifier)}
        kept = [imported for imported in batch if id(imported) not in refused]
        tally.dropped.update(refused.values())
        for imported, way in zip(kept, verifier.unearned([imported.problem for imported in kept]), strict=True):
            if way:
                tally.noted["rewards doing nothing, marked in `flaw`"] += 1
                imported.problem["flaw"] = imported.problem["flaw"] or f"rewards doing nothing: {way}"
            yield imported


def _batch(problems: Iterator[Imported]) -> list[Imported]:
    """Take so many problems, or those with so much of tests."""
    batch, size = list[Imported](), 0
    for imported in islice(problems, _BATCH_ROWS):
        batch.append(imported)
        size += size_of_tests(imported.problem)
        if size >= _BATCH_BYTES:
            break
    return batch


def _unsolved(problems: Sequence[Imported], tally: Tally, verifier: ProblemVerifier) -> dict[int, str]:
    """Return why a problem (by id()) has no proof; sets the reading that was proven."""
    refused: dict[int, str] = {}
    attempts = {}
    for imported in problems:
        if imported.solutions is None:
            tally.noted["no reference solution in the set: not proven"] += 1
            continue
        tests = [imported.problem["tests"], *imported.readings]
        # Lazily, as most problems need one attempt; a solution meets every reading before the next one is tried.
        attempts[id(imported)] = (imported, islice(product(imported.solutions, tests), MOST_ATTEMPTS))
        refused[id(imported)] = "no reference solution"
    # One attempt of every problem at a time: the verifier gets many programs at once, which keeps all cores busy.
    while attempts:
        tried = [(imported, pair) for imported, pairs in attempts.values() for pair in islice(pairs, 1)]
        results = verifier.programs(
            [imported.problem | {"tests": tests} for imported, (_, tests) in tried],
            [source for _, (source, _) in tried],
        )
        left = {id(imported) for imported, _ in tried}  # the others have no attempts left and stay refused
        attempts = {key: value for key, value in attempts.items() if key in left}
        for (imported, (_, tests)), word in zip(tried, results, strict=True):
            key = id(imported)
            if word == "passes":
                imported.problem["tests"], imported.readings = tests, ()
                del refused[key], attempts[key]
            else:
                refused[key] = _why(word, refused[key])
    return refused


# The reason that says most comes first; a word of a program that fails says least.
_REASONS: Mapping[Word, str] = {
    "broken": "its reference solution could not be judged",
    "not judgeable": "not judgeable: its checks compare objects that cannot leave the program",
    "fails": "no reference solution passes every test",
}


def _why(word: Word, before: str) -> str:
    """Return the reason to name: of several solutions that do not pass, one that could not be judged says more."""
    return next((reason for reason in _REASONS.values() if reason in (_REASONS[word], before)), before)


def _unreadable(problems: Sequence[Imported], verifier: ProblemVerifier) -> dict[int, str]:
    # An answer that our own verifier cannot read would make every response to the problem wrong.
    good = verifier.answers([imported.problem["answer"] for imported in problems]) if problems else []
    reason = "the answer does not verify against itself"
    return {id(imported): reason for imported, is_good in zip(problems, good, strict=True) if not is_good}
