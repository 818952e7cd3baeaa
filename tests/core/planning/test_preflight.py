"""Room on the disk is asked for before a stage spends minutes, from what the run has written so far."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oapl_core.errors import ConfigError, StageFailed
from oapl_core.planning.preflight import before_stage, estimate
from oapl_core.planning.room import Need
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.run import Run
from oapl_core.tables import PROBLEMS, read_table, write_table
from tests.sampling_run import MadeUpSampler, made_up_model, make_run
from tests.synthetic_run import Sizes, write_synthetic_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_synthetic_run(tmp_path_factory.mktemp("runs"), Sizes(train=96, validation=12, heldout=12, samples=16))


def recorded_bytes(run: Run, beginning: str) -> int:
    return sum(entry.bytes for name, entry in run.ledger.artifacts().items() if name.startswith(beginning))


def the_need(run: Run, verb: str, number: int | None) -> Need:
    need = estimate(run, verb, number)
    assert need
    return need


def test_a_round_needs_what_the_round_before_came_to(tmp_path: Path) -> None:
    run = make_run(tmp_path, made_up_model(tmp_path / "m"), rounds=[{}, {}], sampling={"problems_per_part": 2})
    first = the_need(run, "rollouts.generate", 0)
    assert not first.is_measured
    assert first.bytes == 7 * 2 * 12 * 6.25
    generate(run, 0, MadeUpSampler)
    assert the_need(run, "rollouts.generate", 0).bytes == 0, "all of it is there"
    second = the_need(run, "rollouts.generate", 1)
    assert second.is_measured
    assert second.bytes == pytest.approx(recorded_bytes(run, "round_00/1_rollouts"))


@pytest.mark.parametrize(("verb", "kind"), [("verdicts.verify", "2_verdicts/"), ("groups.build", "3_groups.parquet")])
def test_what_is_made_from_rollouts_is_as_large_as_in_the_round_before(run: Run, verb: str, kind: str) -> None:
    share = recorded_bytes(run, f"round_00/{kind}") / recorded_bytes(run, "round_00/1_rollouts/")
    left = share * recorded_bytes(run, "round_01/1_rollouts/") - recorded_bytes(run, f"round_01/{kind}")
    assert the_need(run, verb, 1).bytes == pytest.approx(max(0.0, left))
    whole = the_need(run, verb, 0)  # no round before it: a share of the rollouts that is known to be enough
    assert whole.bytes + recorded_bytes(run, f"round_00/{kind}") <= recorded_bytes(run, "round_00/1_rollouts/")


def test_the_evaluation_needs_room_for_every_answer_twice(run: Run) -> None:
    need = the_need(run, "evaluation.evaluate", None)
    rows, epochs = 3 * 12 * 16 + 3 * 12 * 4, "base, round 0 and one epoch held out; three epochs on validation problems"
    assert need.what.startswith(f"evaluation: {rows:,} answers"), epochs
    assert need.is_measured
    assert need.bytes >= recorded_bytes(run, "round_01/5_evaluation/oapl.parquet")


def test_too_little_room_is_one_line_before_anything_starts(run: Run) -> None:
    need = Need("round 1: 48 rollouts need", 5e9, is_measured=True)
    need.compare(run, 5_000_000_000)
    with pytest.raises(StageFailed, match=r"48 rollouts need about 5 GB on the disk, 4.99 GB are free; free some"):
        need.compare(run, 4_990_000_000)


def test_the_most_that_it_can_come_to_stops_nothing_but_is_said(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    Need("round 0: rollouts of at most max_tokens need", 5e9, is_measured=False).compare(run, 1)
    assert "5 GB on the disk, 1 B are free; the stage starts all the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "number"), [("rollouts.generate", 99), ("problems.prepare", None), ("training.train", 0)]
)
def test_a_stage_that_says_so_itself_is_left_alone(run: Run, verb: str, number: int | None) -> None:
    assert estimate(run, verb, number) is None
    before_stage(run, verb, number)


def test_every_stage_process_asks_before_it_works(tmp_path: Path) -> None:
    """A whole stage as the orchestrator starts it, without its input: what is missing is found in the ledger."""
    run = write_synthetic_run(tmp_path, Sizes(train=6, validation=3, heldout=3), "groups")
    from oapl_core.run_folder.ledger import RemovalEntry

    name = run.name(run.rollouts(0) / "part-00000.parquet")
    run.ledger.append(RemovalEntry(name, run.ledger.artifacts()[name].sha256, 1, "oapl clean --keep rollouts=0"))
    command = [sys.executable, "-m", "oapl_core.groups.build", str(run.root), "--round", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "--redo sampling --round 0" in done.stderr


def named_by_a_row(test_input: str, expected: str, printed: str) -> bool:
    raise AssertionError("code that a row may not name is not called")


def test_a_checker_that_an_old_run_may_not_use_any_more_is_one_line_before_answers_are_judged(
    run: Run, tmp_path: Path
) -> None:
    run = Run.open(shutil.copytree(run.root, tmp_path / run.root.name))
    rows = [row | {"checker": f"{__name__}:named_by_a_row"} for row in read_table(run.problems, PROBLEMS).to_pylist()]
    run.problems.unlink()
    write_table(run.problems, PROBLEMS, rows)
    before_stage(run, "rollouts.generate", 0)
    with pytest.raises(ConfigError, match="`checker`: .*named_by_a_row.* put `@checker` of oapl_core.checkers before"):
        before_stage(run, "verdicts.verify", 0)
