"""Judging a round again: says what changed, writes only when asked, and then as `verify` would have."""

from pathlib import Path

import pytest

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.run_folder.run import Run
from oapl_core.verdicts.regrade import Change, regrade, round_of
from oapl_core.verdicts.verifier import CHANGES, VERIFIER_VERSION
from oapl_core.verdicts.verify import verify
from tests.core.verdicts.test_verify import made_run, verdicts
from tests.lasting_maths import lasting_maths as lasting_maths

pytestmark = pytest.mark.usefixtures("lasting_maths")


def judged_wrongly(run: Run, version: str = "3") -> None:
    """Every verdict of part 0 becomes a pass, as an older verifier might have had it."""
    part = run.verdicts(0) / "part-00000.parquet"
    wrong = {"outcome": "passed", "reward": 1.0, "correct": True, "verifier_version": version}
    rows = [row | wrong for row in tables.read_table(part, tables.VERDICTS).to_pylist()]
    with run.writing(part, {}, {}) as draft:
        draft.rows = tables.write_table(draft.path, tables.VERDICTS, rows)


def test_what_changed_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    run = made_run(tmp_path, parts=2)
    verify(run, 0)
    judged_wrongly(run)
    before, entries, lines = verdicts(run), run.ledger.artifacts(), list[str]()
    found = regrade(run, 0, tell=lines.append)
    assert found.old == {"passed": 6, "wrong_answer": 1, "no_answer": 1}
    assert found.new == {"passed": 4, "wrong_answer": 2, "no_answer": 2}
    assert found.changes == [
        Change("0-1", "passed", "wrong_answer", "-1\n"),
        Change("0-2", "passed", "no_answer", None),
    ]
    assert found.why() == [f"version {version}: {text}" for version, text in CHANGES.items()]
    assert verdicts(run) == before
    assert run.ledger.artifacts() == entries
    assert lines[-1].startswith("judge round 0 again | 8/8 rollouts")


def test_a_change_within_one_version_is_not_laid_on_the_verifier(tmp_path: Path) -> None:
    run = made_run(tmp_path, parts=1)
    verify(run, 0)
    judged_wrongly(run, VERIFIER_VERSION)
    found = regrade(run, 0)
    assert (len(found.changes), found.why()) == (2, [])


def test_asked_to_write_it_leaves_what_verify_would_have_made(tmp_path: Path) -> None:
    run = made_run(tmp_path, parts=2)
    verify(run, 0)
    right = [row["outcome"] for row in verdicts(run)]
    judged_wrongly(run)
    regrade(run, 0, write=True)
    assert [row["outcome"] for row in verdicts(run)] == right
    kept = (run.verdicts(0) / "part-00000.parquet").stat().st_mtime_ns
    verify(run, 0)
    assert (run.verdicts(0) / "part-00000.parquet").stat().st_mtime_ns == kept, "verify judged it once more"


def test_rollouts_without_a_verdict_are_counted(tmp_path: Path) -> None:
    found = regrade(made_run(tmp_path, parts=1), 0)
    assert (found.without_old, found.old.total(), found.new.total(), found.changes) == (4, 0, 4, [])


def test_a_folder_of_rollouts_names_its_run_and_round(tmp_path: Path) -> None:
    run = made_run(tmp_path, parts=1)
    opened, number = round_of(run.rollouts(0))
    assert (opened.root, number) == (run.root.resolve(), 0)
    for other in (run.root, run.rollouts(1), tmp_path / "round_00" / "1_rollouts"):
        with pytest.raises(DataError, match="1_rollouts"):
            round_of(other)


def test_no_rollouts_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rollouts"):
        regrade(made_run(tmp_path, parts=0), 0)
