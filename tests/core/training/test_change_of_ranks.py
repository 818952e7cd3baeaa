"""A round, and an optimiser through rounds, goes on with other ranks or another ZeRO stage: real DeepSpeed on gloo.

Losses are those of a run that never changed, within 1e-5; on as many ranks as before, to the bit (test_resume.py).
"""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from deployments.commands.status import status
from oapl_core.reports.sections.training import metrics as metrics_of
from oapl_core.reports.sections.training import training_table
from oapl_core.run_folder.machines import spans, told
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.settings.experiment_file import parse_experiment
from tests.core.training.made_round import train_in_a_process
from tests.core.training.test_continuation import Rows, prepared
from tests.core.training.test_continuation import rows as rows
from tests.core.training.test_resume import (
    EPOCHS,
    STEPS,
    metrics,
    prepare,
    start,
    steps_saved,
    wait_for_step,
    weights_gap,
)

OFFLOADED: dict[str, Any] = {"zero_stage": 2, "offload_optimizer": "cpu"}


def elsewhere(run: Run, **training: Any) -> Run:
    """The same run on another machine, as `oapl run EXPERIMENT training.processes=1` opens it."""
    values = run.config.model_dump(mode="json")
    values["training"] |= training
    return Run.create(parse_experiment(values, "test"))


def stop_after(run: Run, step: int) -> int:
    """Train until a state of ``step`` or later is saved, and ask to stop; returns the step that it stopped after."""
    with start(run) as process:
        wait_for_step(run, process, step)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    return steps_saved(run)


def losses(run: Run) -> list[float]:
    return [step["loss"] for epoch in range(1, EPOCHS + 1) for step in metrics(run, epoch)]


def assert_same_losses(run: Run, expected: Run) -> None:
    found, wanted = losses(run), losses(expected)
    assert len(found) == len(wanted) == EPOCHS * STEPS
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < 1e-5


def of_the_page() -> list[dict[str, int]]:
    """What docs/operations/cluster.md shows: one command after the other."""
    page = (Path(__file__).parents[3] / "docs/operations/cluster.md").read_text()
    section = page.partition("## Another number of GPUs")[2].partition("\n## ")[0]
    commands = re.findall(r"^oapl run my.toml (.*)$", section, re.MULTILINE)
    return [{k: int(v) for k, v in re.findall(r"training\.(\w+)=(\d+)", one)} for one in commands]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ways",
    [
        of_the_page(),
        [{"processes": 1}, {"processes": 4, **OFFLOADED}],
        [{"processes": 4}, {"processes": 2}],
        [{"processes": ranks, "zero_stage": stage} for ranks, stage in ((2, 1), (2, 2), (3, 3), (1, 0))],
    ],
    ids=["2 to 1, of the page", "1 to 4, offloaded", "4 to 2", "ZeRO 1, 2, 3, 0"],
)
def test_a_round_goes_on_with_other_ranks(
    ways: list[dict[str, Any]],
    trained: Run,
    tmp_path: Path,
    sharp_model: Path,
    many_rows: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = prepare(tmp_path, sharp_model, many_rows, **ways[0])
    stops = [0]
    for number, way in enumerate(ways[:-1]):
        run = elsewhere(run, **way)
        stops.append(stop_after(run, max(stops[-1] + 1, EPOCHS * STEPS * number // len(ways))))
    run = elsewhere(run, **ways[-1])
    output = train_in_a_process(run)
    assert re.search(r"epochs done: [0-2] of 3", output)
    assert "cannot be used" not in output
    assert_same_losses(run, trained)
    assert weights_gap(run, trained) < 2e-5
    expected = ", ".join(
        f"steps {first + 1}-{last} on {way['processes']} rank{'s' * (way['processes'] > 1)} with ZeRO "
        f"{way.get('zero_stage', 1)}"
        for first, last, way in zip(stops, [*stops[1:], EPOCHS * STEPS], ways, strict=True)
    )
    assert told(run, 0) == expected
    status(run)
    assert f"round 0 trained {expected}" in " ".join(capsys.readouterr().out.split())
    record = RunRecord(run)
    assert f" round 0: {expected}." in training_table(record, metrics_of(record)).note
    assert [entry.config["training"]["processes"] for entry in run.ledger.settings()][-1] == ways[-1]["processes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ways",
    [
        [{"processes": 2}, {"processes": 1}, {"processes": 4}],
        [{"processes": 4, "zero_stage": 3}, {"processes": 2, "zero_stage": 2}, {"processes": 1, "zero_stage": 0}],
    ],
    ids=["2, 1, 4", "ZeRO 3, 2, 0"],
)
def test_an_optimiser_goes_on_into_the_next_round_on_other_ranks(
    ways: list[dict[str, Any]], tmp_path: Path, sharp_model: Path, rows: Rows
) -> None:
    expected, run = (
        prepared(tmp_path / name, sharp_model, rows, 3, optimizer_state="continued") for name in ("whole", "changed")
    )
    for number, way in enumerate(ways):
        train_in_a_process(expected, number)
        run = elsewhere(run, **way)
        output = train_in_a_process(run, number)
        assert (f"the optimiser continues from round {number - 1}" in output) == (number > 0)
        found, wanted = ([step["loss"] for step in steps_of(one, number)] for one in (run, expected))
        assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < 1e-5
    assert told(run, 0).endswith(f"on {ways[0]['processes']} ranks with ZeRO {ways[0].get('zero_stage', 1)}")


def steps_of(run: Run, number: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.policy(number + 1) / "training_metrics.jsonl").read_text().splitlines()]


def test_consecutive_steps_of_as_many_ranks_are_one_span() -> None:
    steps = [{"step": n, "ranks": 1 + (3 <= n < 6), "zero_stage": 1 + (n == 8)} for n in range(1, 9)]
    assert spans(steps) == [
        {"first": 1, "last": 2, "ranks": 1, "zero_stage": 1},
        {"first": 3, "last": 5, "ranks": 2, "zero_stage": 1},
        {"first": 6, "last": 7, "ranks": 1, "zero_stage": 1},
        {"first": 8, "last": 8, "ranks": 1, "zero_stage": 2},
    ]
