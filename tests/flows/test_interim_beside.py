"""An evaluation beside the next round's sampling on the real engines: killed while both work, nothing differs.

The engines work on CPUs; a made-up `nvidia-smi` says that there are GPUs for both.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from oapl_core.planning.measurements import measurements
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from tests.whole_run import content, kill_when, made_more_than_once, oapl, small_demo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

BESIDE, SAMPLING = "evaluation.interim round 0 beside", "rollouts.generate round 1"
TWO_GPUS = """#!/bin/sh
echo "NVIDIA H100 80GB HBM3, 81559, 550.0"
echo "NVIDIA H100 80GB HBM3, 81559, 550.0"
"""
CHANGES = {
    "pretrain.epochs": 4,
    "rounds.1.problems": 48,
    "rounds.1.sampling": "{group_size = 16}",
    "sampling.problems_per_part": 4,
    "evaluation.every_rounds": 1,
    "evaluation.heldout_samples": 64,  # several parts, and many answers: both work for 15 seconds
}


def arguments(folder: Path) -> list[str]:
    folder.mkdir()
    kept = [one for one in small_demo(folder, train=48) if not one.startswith(("cache_dir=", *CHANGES))]
    changes = {**CHANGES, "cache_dir": folder.parent / "cache"}  # the base model is made once
    return ["run", *kept, *(f"{key}={value}" for key, value in changes.items())]


def both_work(root: Path) -> Callable[[], bool]:
    """Whether both have finished a part."""
    answers, rollouts = root / "round_00" / "5_evaluation", root / "round_01" / "1_rollouts"
    return lambda: any(answers.rglob("part-*.parquet")) and any(rollouts.glob("part-*.parquet"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    folder = tmp_path_factory.mktemp("beside")
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(TWO_GPUS)
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(program.parent), prepend=":")
        patch.setenv("OMP_NUM_THREADS", "1")
        oapl(arguments(folder / "undisturbed"))
        disturbed = arguments(folder / "disturbed")
        root = folder / "disturbed" / "runs" / "demo-seed0"
        kill_when(disturbed, folder / "killed.log", both_work(root))
        killed = Run.open(root)
        assert not list((root / "round_00" / "5_evaluation").glob("*.json")), "in the middle of the evaluation"
        assert len(list(killed.rollouts(1).glob("part-*.parquet"))) < 12, "in the middle of sampling"
        assert not {BESIDE, SAMPLING} & {entry.stage for entry in killed.ledger.stages()}
        oapl(disturbed)
    return Run.open(folder / "undisturbed" / "runs" / "demo-seed0"), Run.open(root)


def test_both_worked_at_once_and_the_report_came_with_the_numbers(runs: tuple[Run, Run]) -> None:
    for run in runs:
        ended = [entry.stage for entry in run.ledger.stages() if not entry.exit_code]
        # the ledger has the report of the evaluation before the evaluation, which started it
        assert ended.index("training.train round 0") < ended.index("reports.write") < ended.index(BESIDE)
        assert max(map(ended.index, (BESIDE, SAMPLING))) < ended.index("evaluation.interim round 0")
        assert ended.index("evaluation.interim round 0") < ended.index("groups.build round 1")
        report = (run.report / "report.md").read_text()
        assert "## Measured during the run" in report and "round 0: interim evaluation, during sampling" in report


def test_killed_while_both_work_every_row_and_number_is_that_of_the_run_that_was_not(runs: tuple[Run, Run]) -> None:
    expected, found = runs
    for run in runs:
        assert finished(run) == list(steps(run.config))
        assert set(made_more_than_once(run)) <= {"report"}, "finished parts are not redone"
    ours, theirs = found.ledger.artifacts(), expected.ledger.artifacts()
    assert sorted(ours) == sorted(theirs)
    compared = [name for name in ours if name not in ("report", "base_model.json")]
    assert not [name for name in compared if content(found, ours[name]) != content(expected, theirs[name])]
    assert list(measurements(found)) == list(measurements(expected))


def test_time_and_gpus_of_what_ran_at_once_are_counted_once(runs: tuple[Run, Run]) -> None:
    for run in runs:
        status = json.loads(oapl(["--json", "status", str(run.root)]))
        rows = {row["step"]["title"]: row for row in status["times"]}
        sampling, beside = rows["round 1: sampling"], rows["round 0: interim evaluation, during sampling"]
        assert beside["added_s"] < beside["seconds"] and sampling["added_s"] == sampling["seconds"]
        mine = sum(row["added_s"] for title, row in rows.items() if "evaluation" in title)
        assert status["costs"]["gpu_s"]["evaluation"] == pytest.approx(2 * mine, abs=0.1)
