"""Half of an emoji, which models write, ends nothing: tables, files, logs and pages hold what is left of the text."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from oapl_core import tables
from oapl_core.problems.problem_set import read_problem_set
from oapl_core.problems.raw_rows import raw_rows
from oapl_core.problems.set_files import write_problem_set
from oapl_core.progress import say
from oapl_core.storable import json_text, storable, storable_text
from oapl_extras.exchange.messages import _parsed
from tests.architecture.sources import PACKAGES, python_files, text

HALF, WHOLE = "\ud83d", "\N{GRINNING FACE}"
KEPT = "\N{REPLACEMENT CHARACTER}"
PROBLEM = {"problem_id": "p", "kind": "math", "statement": "1 + 1?", "answer": "2"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (HALF, KEPT),
        (f"a{HALF}b\udc00", f"a{KEPT}b{KEPT}"),
        (f"fine {WHOLE} \x00\x1b", f"fine {WHOLE} \x00\x1b"),
        ({HALF: [HALF, {"a": (HALF, 1, None, 0.5, b"\xff")}]}, {KEPT: [KEPT, {"a": [KEPT, 1, None, 0.5, b"\xff"]}]}),
        (json.loads('{"\\ud83d\\ude00": "\\ude00\\ud83d"}'), {WHOLE: KEPT * 2}),
    ],
)
def test_a_half_is_replaced_and_nothing_else_is(given: Any, kept: Any) -> None:
    assert storable(given) == kept


def test_json_is_readable_and_can_be_encoded() -> None:
    assert json_text({HALF: f"{WHOLE}{HALF}"}).encode().decode() == f'{{"{KEPT}": "{WHOLE}{KEPT}"}}'


def test_text_that_is_storable_is_not_copied() -> None:
    plain = f"plain {WHOLE}" * 9
    assert storable_text(plain) is plain


def test_a_table_takes_texts_of_any_column(tmp_path: Path) -> None:
    row: dict[str, Any] = dict.fromkeys(name for name, _ in tables.ROLLOUTS)
    call = {"turn": 0, "name": HALF, "arguments": HALF, "result": f"{HALF}!", "is_error": True, "seconds": 0.0}
    row |= {"text": f"said {HALF}", "problem_id": HALF, "tool_calls": [call], "response_ids": [1], "logprobs": [0.0]}
    fine = row | {"text": "fine", "problem_id": "p", "tool_calls": None}
    assert tables.write_table(tmp_path / "r.parquet", tables.ROLLOUTS, [row, fine]) == 2
    one, other = pq.read_table(tmp_path / "r.parquet").to_pylist()
    assert (one["text"], one["problem_id"], other["text"]) == (f"said {KEPT}", KEPT, "fine")
    assert one["tool_calls"] == [call | {"name": KEPT, "arguments": KEPT, "result": f"{KEPT}!"}]


@pytest.mark.parametrize("name", ["set.jsonl", "set.parquet", "set.jsonl.gz"])
def test_a_problem_set_is_read_and_written(tmp_path: Path, name: str) -> None:
    test = {"input": HALF, "output": f"{HALF}\n"}
    program = {"problem_id": f"q{HALF}", "kind": "stdin", "statement": f"Echo {HALF}.", "tests": [test]}
    whole = {"split": "train", **dict.fromkeys(n for n, _ in tables.PROBLEMS if n not in ("split", "tests"))}
    write_problem_set(tmp_path / name, [whole | program, whole | PROBLEM | {"tests": []}])
    first, second = read_problem_set(tmp_path / name, "train")
    assert (first["problem_id"], first["statement"]) == (f"q{KEPT}", f"Echo {KEPT}.")
    assert first["tests"] == [{"input": KEPT, "output": f"{KEPT}\n"}]
    assert second["statement"] == "1 + 1?"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_rows_of_a_file_have_no_half_escaped_or_as_it_is(tmp_path: Path, name: str) -> None:
    lines = json.dumps([{"a": HALF}, {HALF: WHOLE}, {"a": "\\ud83d"}]).encode().replace(b"null", b"")
    lines = lines if name == "rows.json" else b"\n".join(json.dumps(row).encode() for row in json.loads(lines))
    (tmp_path / name).write_bytes(lines.replace(b"\\ud83d\\ude00", WHOLE.encode()))
    assert [row for _, row in raw_rows(tmp_path / name)] == [{"a": KEPT}, {KEPT: WHOLE}, {"a": "\\ud83d"}]
    (tmp_path / "raw.jsonl").write_bytes(b'{"a": "\xed\xa0\xbd"}\n')
    assert [row for _, row in raw_rows(tmp_path / "raw.jsonl")] == [{"a": KEPT}]


def test_arguments_of_imported_messages_are_a_text_in_a_text() -> None:
    assert _parsed('{"code": "\\ud83d"}') == {"code": KEPT}
    assert _parsed("[" * 10**5) == "[" * 10**5


def test_progress_and_prints_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    say(f"failed on {HALF}")
    assert r"failed on \ud83d" in capfd.readouterr().out, "what a person may look for is shown"
    code = "from oapl_core.storable import lenient_output; lenient_output(); print('half \\ud83d')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ, check=True)
    assert done.stdout == b"half \\ud83d\n"


def test_one_place_makes_json_that_is_readable_and_tables_of_rows() -> None:
    """Anything else would raise at the first half of an emoji."""
    found = [
        str(path)
        for path in python_files(*PACKAGES)
        if ("ensure_ascii=False" in text(path) and path.name != "storable.py")
        or (".from_pylist(" in text(path) and path != Path("oapl_core/tables.py"))
    ]
    assert not found
