"""Calls a filter of a person's own for every group of a round; the core finds it by name (``plugins``).

Reads parts of rollouts and verdicts, one at a time, and problems.parquet; writes nothing. A group's rows are in memory
together, with their texts, token ids and log-probs. The function runs in this process: what it asks of others waits.
"""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from oapl_core import plugins, tables
from oapl_core.errors import ConfigError
from oapl_core.rows import Rows
from oapl_core.storable import json_object, one_line
from oapl_core.token_columns import COLUMNS

if TYPE_CHECKING:
    import polars as pl

_ROLLOUT = [name for name, _ in tables.ROLLOUTS if name not in COLUMNS]
_PROBLEM = [name for name, _ in tables.PROBLEMS if name != "tests"]
_ARRAYS = ("response_ids", "logprobs")
_COUNTED_ELSEWHERE = frozenset({"missing_verdict", "verifier_error", "empty_response", "truncated"})
_MOST_REASONS, _LONGEST_REASON = 20, 60

Row = dict[str, Any]


class Filter(Protocol):
    """A person's own filter; kind ``filter`` of oapl_core/plugins."""

    def __call__(self, problem: Row, rows: list[Row]) -> str | Sequence[str | None] | None:
        """Judge the answers of one group.

        Args:
            problem: columns of PROBLEMS but its tests, with what ``info`` holds beside them.
            rows: the rows of the group that are left, samples in order: columns of ROLLOUTS and of the verdict.

        Returns:
            None to keep all rows, a reason to drop all of them, or for each row, in order, None or a reason.
        """
        ...


def reasons(
    problems: Path, rollouts: Sequence[Path], verdicts: Sequence[Path], name: str, left: "pl.DataFrame"
) -> list[str | None]:
    """Ask the filter ``name`` about each group of ``left``, rows as ``groups.selection.select`` has them.

    Returns:
        For each row of ``left``, None or the reason why it is dropped.

    Raises:
        ConfigError: the function cannot be imported, raised, or returned something else.
        DataError: a file is damaged.
    """
    # named in this process, as an objective is: a process of its own for each group would cost more than the filter
    function, said, different = plugins.resolve("filter", name), dict[int, str | None](), set[str]()
    for problem, places, rows in _groups(problems, rollouts, verdicts, left):
        answers = _asked(function, name, problem, rows)
        different.update(filter(None, answers))
        if len(different) > _MOST_REASONS:
            raise ConfigError(
                f"`rounds.keep`: {name} gives more than {_MOST_REASONS} different reasons, such as {max(different)!r}; "
                "a reason is a word under which rows are counted, so leave numbers out of it"
            )
        said.update(zip(places, answers, strict=True))
    return [said[row] for row in left["row"]]


def _groups(
    problems: Path, rollouts: Sequence[Path], verdicts: Sequence[Path], left: "pl.DataFrame"
) -> Iterator[tuple[Row, list[int], list[Row]]]:
    """Yield each group's problem, the numbers of its rows in ``left``, and the rows."""
    judged = {path.name: path for path in verdicts}
    # a problem's rollouts lie in one part, so that parts one after another leave groups whole
    for (number,), part in left.group_by("part", maintain_order=True):
        path = rollouts[int(number)]
        asked = part["problem_id"].unique().to_list()
        known = tables.read_table(problems, tables.PROBLEMS, _PROBLEM, only=("problem_id", asked)).to_pylist()
        # tests may be hundreds of megabytes, and no filter of answers needs them
        by_id = {row["problem_id"]: {**json_object(row["info"]), **row} for row in known}
        # with the columns that [reward] adds, whose names are the run's own
        with tables.open_table(judged[path.name], tables.VERDICTS) as file:
            verdict_of = {row["rollout_id"]: row for row in file.read().to_pylist()}
        stored = Rows(path, tables.ROLLOUTS, _ROLLOUT)
        for (problem, _), group in part.group_by("problem_id", "policy_hash", maintain_order=True):
            ordered = group.sort("sample")
            rows = [_row(stored, place) for place in ordered["place"]]
            yield by_id[str(problem)], ordered["row"].to_list(), [verdict_of[r["rollout_id"]] | r for r in rows]


def _row(stored: Rows, place: int) -> Row:
    """Read a rollout; ids and log-probs, one for each token, as NumPy arrays."""
    table = stored[place]
    (row,) = table.drop_columns(list(_ARRAYS)).to_pylist()
    cells = {name: table[name][0] for name in _ARRAYS}
    arrays = {name: c.values.to_numpy(zero_copy_only=False) if c.is_valid else None for name, c in cells.items()}
    return {**row, **arrays}


def _asked(function: Filter, name: str, problem: Mapping[str, Any], rows: list[Row]) -> list[str | None]:
    where = (
        f"`rounds.keep`: {name}, problem {problem['problem_id']!r} ({len(rows)} rows from {rows[0]['rollout_id']} on)"
    )
    again = "mend it and run the same command again; nothing is sampled or judged anew"
    try:
        # copies: a function that changes what it is given changes nothing of ours
        answer = function(dict(problem), [dict(row) for row in rows])
    except Exception as error:  # a person's own function can raise anything
        # where a person looks first: the line of their own file that raised
        at = traceback.extract_tb(error.__traceback__)[-1]
        why = one_line(f"{type(error).__name__}: {error}")[:300]
        raise ConfigError(f"{where}: {why} ({Path(at.filename).name}, line {at.lineno}); {again}") from None
    # a text is a sequence too, so it is told apart before lists are
    answers = [answer] * len(rows) if answer is None or isinstance(answer, str) else answer
    if not isinstance(answers, list | tuple):
        form = f"None, a reason, or a list with one of them for each row, not {one_line(repr(answer))[:80]}"
        raise ConfigError(f"{where}: return {form}; {again}")
    if len(answers) != len(rows):
        raise ConfigError(f"{where}: returned {len(answers)} reasons for {len(rows)} rows; {again}")
    for row, one in zip(rows, answers, strict=True):
        if complaint := _complaint(one):
            raise ConfigError(
                f"{where}: of {row['rollout_id']} it returned {one_line(repr(one))[:80]}, {complaint}; {again}"
            )
    return list(answers)


def _complaint(reason: Any) -> str | None:
    """Say why ``reason`` is neither None nor a reason; None if it is one of them."""
    if reason is None:
        return None
    if not isinstance(reason, str) or not reason.strip() or one_line(reason) != reason or len(reason) > _LONGEST_REASON:
        return f"which is neither None nor a word or a few, of {_LONGEST_REASON} characters at most"
    return "a reason that counts something else already" if reason in _COUNTED_ELSEWHERE else None
