"""Reads a problem set (a file that raw_rows.py reads) row by row and refuses the first row that is not a problem.

Writes nothing. oapl_extras/rows makes a row of tables.PROBLEMS of one that somebody else wrote. Then `problem_id`,
`kind`, `statement` and the columns that the kind needs must be there. The others may be left out, and so may `split`
where the file has one split alone.
"""

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from oapl_core import plugins
from oapl_core.errors import ConfigError, DataError
from oapl_core.problems.raw_rows import place, raw_rows
from oapl_core.settings.problems import FILE_KINDS
from oapl_core.storable import json_text
from oapl_core.toolchain_of import ASKED_BY, PYTHON, toolchain_of

PROGRAMS = ("stdin", "function", "assert")
KINDS = (*PROGRAMS, "math", "text", "open")
"""Judged by tests; by the equality of maths; by that of texts; by nothing but a `[reward]` or an environment."""
SPLITS = ("train", "validation", "heldout")
TEXTS = "starter_code entry_point answer checker structure source platform difficulty released flaw".split()
COLUMNS = frozenset({"problem_id", "split", "kind", "statement", "tests", *TEXTS, "language", "messages", "info"})
"""Columns of a problem (tables.PROBLEMS)."""
_OPTIONAL = {**dict.fromkeys(TEXTS), "tests": (), "structure": ""}


class ProblemRows:
    """Rows of files as problems: those of our columns pass, others go to the kind ``problem_rows`` of plugins."""

    def __init__(self, columns: Mapping[str, str] | None = None) -> None:
        """Take the names that `[problems] columns` gives: ours, and where a row has each."""
        self._columns = dict(columns or {})
        self._reader: Any = None

    def problem(self, raw: Any, path: Path, number: int, where: str) -> Any:
        """Make a row of our columns; what is no object comes back as it is. Raises DataError: it cannot be read."""
        if not isinstance(raw, dict):
            return raw
        is_ours = raw.keys() <= COLUMNS and {"problem_id", "kind", "statement"} <= raw.keys()
        if is_ours and not self._columns and isinstance(raw.get("messages"), str | None):
            return raw
        self._reader = self._reader or plugins.resolve("problem_rows", "reader")(self._columns)
        return self._reader.problem(raw, path, number, where)

    @property
    def said(self) -> list[str]:
        """Lines on how rows were read; empty where every row was written in our columns."""
        return self._reader.said if self._reader else []

    @property
    def has_renamed(self) -> bool:
        """Whether a column was found under another name than ours."""
        return bool(self._reader and self._reader.has_renamed)


def read_problem_set(
    path: Path, split: str, only: bool = False, reader: ProblemRows | None = None
) -> Iterator[dict[str, Any]]:
    """Yield every problem of ``path``, complete and checked, in the file's order.

    With ``only``, problems of other splits are left out instead of refused. A problem without `source` gets the file's
    name, up to the first point. ``reader`` makes our columns of a row; unset: one without a person's own names.

    Raises:
        DataError: the file is missing or unreadable, or a row is broken: one line with file, row and remedy.
    """
    assert split in SPLITS
    if not path.exists():
        raise DataError(f"{path}: no such problem set; check [problems] in the experiment")
    if path.is_dir():
        raise DataError(f"{path}: is a folder; give one file ({', '.join(FILE_KINDS)})")
    reader, seen = reader or ProblemRows(), dict[str, int]()
    number = 0
    for number, raw in raw_rows(path):
        if only and isinstance(raw, dict) and raw.get("split") in {*SPLITS} - {split}:
            continue
        where = place(path, number)
        problem = checked(reader.problem(raw, path, number, where), split, where)
        problem["source"] = problem["source"] or path.name.partition(".")[0]
        first = seen.setdefault(problem["problem_id"], number)
        if first != number:
            raise DataError(
                f"{where}: problem_id {problem['problem_id']!r} was used before (at {first}); give each its own"
            )
        yield problem
    if not seen:
        which = f" of split {split}" if number else ""
        raise DataError(f"{path}: holds no problems{which}; give a set with at least one")


def checked(raw: Any, split: str, where: str) -> dict[str, Any]:
    """Check a raw row and complete it to a problem; ``where`` (file and line) opens the error message."""
    if not isinstance(raw, dict):
        raise DataError(f"{where}: is not a JSON object; write one problem per line")
    if unknown := sorted(set(raw) - COLUMNS):
        raise DataError(f"{where}: unknown column `{unknown[0]}`; the columns are {', '.join(sorted(COLUMNS))}")
    problem: dict[str, Any] = {"split": split, **_OPTIONAL, **{k: v for k, v in raw.items() if v is not None}}
    if problem["split"] != split:
        raise DataError(
            f"{where}: `split` is {problem['split']!r} in a file given as {split}; change the row or the experiment"
        )
    for key in ("problem_id", "kind", "statement"):
        if not isinstance(problem.get(key), str) or not problem[key].strip():
            raise DataError(f"{where}: `{key}` must be a text that is not empty")
    if isinstance(problem.get("info"), dict):  # as one writes it in JSON lines; a column is of one type
        problem["info"] = json_text(problem["info"])
    for key in (*TEXTS, "language", "messages", "info"):
        if not isinstance(problem.get(key), str | None):
            raise DataError(f"{where}: `{key}` must be a text or null")
    if problem["kind"] not in KINDS:
        raise DataError(f"{where}: `kind` is {problem['kind']!r}; choose one of {', '.join(KINDS)}")
    complaint = _program_complaint(problem) if problem["kind"] in PROGRAMS else _gold_complaint(problem)
    complaint = complaint or _checker_complaint(problem) or _toolchain_complaint(problem)
    if complaint:
        raise DataError(f"{where}: {complaint}")
    if problem.get(ASKED_BY) == PYTHON:
        del problem[ASKED_BY]  # a problem that says nothing asks for it, too: the two are the same
    return {**problem, "tests": list(problem["tests"])}


def _gold_complaint(problem: Mapping[str, Any]) -> str | None:
    kind = problem["kind"]
    if kind != "open" and (not problem["answer"] or not problem["answer"].strip()):
        return f"a {kind} problem needs an `answer`; drop the row or fill it in"
    return f"a {kind} problem has no `tests`; remove them or change `kind`" if problem["tests"] else None


def _program_complaint(problem: Mapping[str, Any]) -> str | None:
    tests = problem["tests"]
    if not isinstance(tests, list) or not tests:
        return "`tests` must be a list with at least one {input, output}"
    for index, test in enumerate(tests):
        if not isinstance(test, dict) or set(test) != {"input", "output"}:
            return f"test {index} must be an object with `input` and `output` and nothing else"
        if not all(isinstance(text, str) for text in test.values()):
            return f"test {index}: `input` and `output` must be texts (for kind function: JSON written as text)"
    if problem["kind"] == "stdin":
        return None
    if not problem["entry_point"] or not problem["entry_point"].isidentifier():
        return f"a problem of kind {problem['kind']} needs `entry_point`, the name of the function that the tests call"
    return _assert_complaint(tests) if problem["kind"] == "assert" else _function_complaint(tests)


def _assert_complaint(tests: list[dict[str, str]]) -> str | None:
    for index, test in enumerate(tests):
        if test["output"]:
            return f"test {index}: `output` must be empty for kind assert; the checks stand in `input`"
        try:
            # Now, so that a broken check is an error of the set; while answers are judged it would count as theirs.
            compile(test["input"], "input", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return f"test {index}: `input` must be Python code that checks `entry_point` ({error})"
    return None


def _checker_complaint(problem: Mapping[str, Any]) -> str | None:
    if problem["checker"] is None:
        return None
    if problem["kind"] in ("assert", "open"):
        return f"a problem of kind {problem['kind']} has no use for a `checker`; remove it"
    try:
        inspect.signature(plugins.resolve("checker", problem["checker"])).bind("", "", "")
    except ConfigError as error:
        return str(error)
    except TypeError:  # nor does what is no function
        return f"checker {problem['checker']!r} does not take (test_input, expected, printed); write one that does"
    except ValueError:  # some functions of C do not say what they take
        return None
    return None


def _toolchain_complaint(problem: Mapping[str, Any]) -> str | None:
    try:
        toolchain = toolchain_of(problem)
    except DataError as error:
        return str(error)
    if toolchain and problem["kind"] != "stdin":
        return f"a problem in {toolchain.title} is of kind stdin: only Python functions can be called"
    return None


def _function_complaint(tests: list[dict[str, str]]) -> str | None:
    for index, test in enumerate(tests):
        if not isinstance(_json(test["input"]), list):
            return f"test {index}: `input` must be a JSON array of the call's arguments, for example [[1, 2], 3]"
        if _json(test["output"]) is _NOT_JSON:
            return f"test {index}: `output` must be a JSON value"
    return None


_NOT_JSON = object()


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_int=len)  # not its value: Python refuses integers of more than 4300 digits
    except json.JSONDecodeError:
        return _NOT_JSON
