"""What a run's record says agrees with the files, and the report with the record."""

from pathlib import Path

import polars as pl
import pytest

from oapl_core.reports.blocks import DASH
from oapl_core.reports.sections.heldout import rollouts_spent
from oapl_core.reports.sections.rollouts import dropped_counts, prompts_note, trust_table
from oapl_core.reports.sections.timing import starts_table, time_table
from oapl_core.reports.sections.training import metrics
from oapl_core.reports.write import write
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord
from tests.core.reports.shown import tables_of
from tests.synthetic_run import Sizes, write_synthetic_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_synthetic_run(tmp_path_factory.mktemp("runs"), Sizes(train=20))


def test_kept_and_dropped_rows_add_up_to_the_rollouts(run: Run) -> None:
    record = RunRecord(run)
    for one in record.rounds:
        files = pl.read_parquet(sorted(run.rollouts(one.number).glob("*.parquet")))
        assert sum(dropped_counts(record.rounds)[one.label].values()) == one.rollouts == len(files)


def test_every_round_names_the_same_reasons_in_the_same_order(run: Run) -> None:
    first, second = dropped_counts(RunRecord(run).rounds).values()
    assert list(first) == list(second)


def test_response_tokens_of_the_ledger_are_those_of_the_files(run: Run) -> None:
    for one in RunRecord(run).rounds:
        files = pl.read_parquet(sorted(run.rollouts(one.number).glob("*.parquet")))
        assert one.response_tokens == files["response_ids"].list.len().sum()


def test_samples_spent_count_every_rollout_up_to_the_checkpoint(run: Run) -> None:
    record = RunRecord(run)
    first, second = record.rounds
    assert first.policy_hash is not None
    assert rollouts_spent(record, first.policy_hash) == 0
    assert rollouts_spent(record, first.epochs[1]) == first.rollouts
    assert {rollouts_spent(record, h) for h in second.epochs.values()} == {first.rollouts + second.rollouts}


def test_a_step_without_wrong_or_right_answers_has_no_number(run: Run) -> None:
    values = metrics(RunRecord(run))["round 0"]["log_ratio_right"]
    assert [value != value for value in values] == [False, True, False, False, False, False]


def test_tables_of_the_rounds_add_up(run: Run) -> None:
    record = RunRecord(run)
    write(run)
    found = tables_of((run.report / "report.md").read_text())
    for title in ("Outcomes of the training rollouts", "Rollouts trained on, and dropped by reason"):
        for column in (1, 3):
            counts = [int(row[column].replace(",", "")) for row in found[title].rows]
            assert sum(counts[:-1]) == counts[-1]
    assert [row[3] for row in found["What was sampled"].rows] == [f"{r.rollouts:,}" for r in record.rounds]


def test_trust_checks_stand_in_the_report_as_the_ledger_has_them(run: Run) -> None:
    record = RunRecord(run)
    shown = {row[0]: row[1:] for row in trust_table(record.rounds).rows}
    assert shown["missing samples"] == ("0 of 80", "0 of 40")
    assert shown["cut at the length limit"] == tuple(f"{100 * r.truncated / r.rollouts:.1f} %" for r in record.rounds)
    assert shown["mean difference of a token"] == ("1.5e-05", "1.5e-05")
    assert shown["other tokens if encoded again"] == ("1 of 4", "1 of 4")


def test_a_round_that_is_not_trained_yet_has_no_mismatch(tmp_path: Path) -> None:
    shown = {
        row[0]: row[1:] for row in trust_table(RunRecord(write_synthetic_run(tmp_path, until="groups")).rounds).rows
    }
    assert shown["repeats"] == ("0.0 %",)
    assert shown["mean difference of a token"] == (DASH,)


def test_problems_that_never_reached_the_model_are_counted(run: Run) -> None:
    record = RunRecord(run)
    total = record.artifacts["prompts.parquet"].rows + 2
    assert prompts_note(record).startswith(f"2 of {total} problems were left out")


def test_time_is_shown_for_every_stage_that_ran(run: Run) -> None:
    shown = time_table(RunRecord(run))
    titles = [row[0] for row in shown.rows]
    assert titles[0] == "problems and prompts"
    assert titles[-1] == "all"
    assert shown.rows[1][3] == "24.5 s", "the engine's start-up, counted once for all parts of one process"


def test_starts_of_engines_are_shown_by_what_they_were_spent_on(run: Run) -> None:
    shown = starts_table(RunRecord(run))
    assert shown.columns == ("stage", "starts", "engine", "import")
    assert shown.rows[0][1:] == ("1", "4.5 s", "20.0 s"), "once for all parts of one process"


def test_reading_writes_nothing(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path, until="verdicts")
    before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
    record = RunRecord(run)
    assert record.rounds and record.missing
    assert {path: path.stat().st_mtime_ns for path in run.root.rglob("*")} == before
