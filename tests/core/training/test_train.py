"""The verb with real DeepSpeed in processes of its own: parity, exact resume, export, ranks."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.warnings import batch_too_large
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.tables import MISMATCHES, read_table
from oapl_core.training import epochs
from oapl_core.training.examples import read_examples
from oapl_core.training.layouts.batching import epoch_order, global_batches
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.steps import Trainer
from oapl_core.training.train import train
from tests.core.training.made_round import (
    BETA2,
    TRAINING,
    make_run,
    plain_logprobs,
    train_command,
    train_in_a_process,
    write_groups,
)
from tests.core.training.plain_engine import PlainEngine
from tests.tiny_model import write_tiny_model

EPOCHS = 3
FINISHED = ["engine_mismatch.parquet", "epoch_01", "epoch_02", "epoch_03"]


@pytest.fixture
def model_dir(sharp_model: Path) -> Path:
    return sharp_model


@pytest.fixture
def rows(many_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return many_rows


def prepare(folder: Path, model_dir: Path, rows: list[dict[str, Any]], **settings: Any) -> Run:
    run = make_run(folder, model_dir, **settings)
    write_groups(run, rows)
    return run


def steps_of(run: Run, epoch: int) -> list[dict[str, Any]]:
    lines = (run.checkpoint(0, epoch) / METRICS_FILE).read_text().splitlines()
    return [json.loads(line) for line in lines]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())


def gap(one: Path, other: Path) -> float:
    """Largest difference of a weight."""
    a, b = weights_of(one), weights_of(other)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def test_deepspeed_gives_the_weights_of_a_plain_torch_loop(
    trained: Run, tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]
) -> None:
    config, examples = trained.config, read_examples(trained.groups(0), policy_hash(model_dir), model_dir)
    policy = Policy(AutoModelForCausalLM.from_pretrained(model_dir))
    engine = PlainEngine(policy, config.training)
    trainer = Trainer(
        engine=engine,
        objective=config.objective.loaded("behavior"),
        examples=examples,
        training=config.training,
        seed=config.seed,
        round_number=0,
        epochs=EPOCHS,
    )
    exported = weights_of(model_dir)
    for epoch in range(1, EPOCHS + 1):
        steps = trainer.epoch(epoch, lambda _: None)
        for found, expected in zip(steps_of(trained, epoch), steps, strict=True):
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
            assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
            assert found["learning_rate"] == expected["learning_rate"]
        exported = weights_of(trained.checkpoint(0, epoch))
        for name, weight in Policy.model_weights(engine.weights()).items():
            torch.testing.assert_close(exported[name], weight, rtol=0, atol=2e-5)
    start = weights_of(model_dir)
    moved = max(float((exported[name] - start[name]).abs().max()) for name in start)
    assert moved > 0.01, "the comparison would mean nothing had the weights not moved"


def test_the_ledger_says_what_the_layers_were_computed_with(trained: Run) -> None:
    details = trained.ledger.artifacts()[trained.name(trained.checkpoint(0, 1))].details
    assert details["computed_with"] == {"recompute": "none", "kernels": "transformers", "attention": "torch"}


def test_an_exported_epoch_scores_what_the_trainer_scored_next(trained: Run, rows: list[dict[str, Any]]) -> None:
    """From the exported folder alone, plain code reproduces the loss of the next epoch's first step."""
    batch = global_batches(epoch_order(len(rows), trained.config.seed, 0, 2), TRAINING["batch_size"])[0]  # type: ignore[arg-type]
    chosen = [rows[i] for i in batch]
    residuals = []
    for row, logprobs in zip(chosen, plain_logprobs(trained.checkpoint(0, 1), chosen), strict=True):
        rewards = np.array([r["reward"] for r in rows if r["group"] == row["group"]])
        advantage = row["reward"] - np.log(np.mean(np.exp(rewards)))
        residuals.append(BETA2 * (np.sum(logprobs) - np.sum(row["behavior_logprobs"])) - advantage)
    assert steps_of(trained, 2)[0]["loss"] == pytest.approx(np.mean(np.square(residuals)), rel=1e-4)


def test_an_exported_folder_is_a_plain_model_of_the_same_type(trained: Run, model_dir: Path) -> None:
    folder = trained.checkpoint(0, EPOCHS)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == AutoModelForCausalLM.from_pretrained(model_dir).dtype == torch.float32
    for file in model_dir.iterdir():
        if file.suffix != ".safetensors":
            assert (folder / file.name).read_bytes() == file.read_bytes()
    assert policy_hash(folder) not in (policy_hash(model_dir), policy_hash(trained.checkpoint(0, 1)))


def test_the_ledger_tells_what_an_epoch_did(trained: Run) -> None:
    entries = {n: e for n, e in trained.ledger.artifacts().items() if "/4_checkpoint/" in n}
    names = ("engine_mismatch.parquet", "epoch_01", "epoch_02", "epoch_03")
    assert list(entries) == [f"round_00/4_checkpoint/oapl/{name}" for name in names]
    first = entries["round_00/4_checkpoint/oapl/epoch_01"].details
    assert first["policy_hash"] == policy_hash(trained.checkpoint(0, 1))
    assert (first["sequences"], first["steps"], first["epoch"]) == (241, 25, 1)
    mismatch = entries["round_00/4_checkpoint/oapl/engine_mismatch.parquet"].details
    assert mismatch["sequences"] == 64
    assert mismatch["max"] < 1e-4, "plain code scored these rollouts with the same weights"
    assert first["loss"] == pytest.approx(sum(s["loss"] * s["sequences"] for s in steps_of(trained, 1)) / 241)
    last = entries["round_00/4_checkpoint/oapl/epoch_03"].details
    assert last["log_ratio_right"] > last["log_ratio_wrong"]
    steps = [s for s in steps_of(trained, 3) if s["log_ratio_right"] is not None]
    right = [s["right_share"] * s["sequences"] for s in steps]
    expected = sum(s["log_ratio_right"] * many for s, many in zip(steps, right, strict=True)) / sum(right)
    assert last["log_ratio_right"] == pytest.approx(expected)
    assert last["peak_memory_mb"] == max(s["peak_memory_mb"] for s in steps_of(trained, 3))


def test_a_side_that_an_epoch_has_not_is_unknown_and_others_count_by_their_answers(trained: Run) -> None:
    few, all_right = (step | {"sequences": 8} for step in steps_of(trained, 1)[:2])
    few |= {"right_share": 1 / 8, "log_ratio_right": -8.0, "log_ratio_wrong": 1.0}
    all_right |= {"right_share": 1.0, "log_ratio_right": 0.0, "log_ratio_wrong": None}
    details = epochs._details([few, all_right], 0.0, "abc")
    assert (details["log_ratio_right"], details["log_ratio_wrong"]) == (pytest.approx(-8 / 9), 1.0)
    assert epochs._details([all_right], 0.0, "abc")["log_ratio_wrong"] is None


def test_steps_are_counted_over_the_round(trained: Run) -> None:
    numbers = [step["step"] for epoch in (1, 2, 3) for step in steps_of(trained, epoch)]
    assert numbers == list(range(1, 76))


def test_a_finished_round_keeps_no_state_and_is_not_trained_again(
    trained: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(p.name for p in trained.checkpoints(0).iterdir()) == FINISHED
    before = len(trained.ledger.artifacts())
    train(trained, 0)
    assert "all 3 epochs are trained" in capsys.readouterr().out
    assert len(trained.ledger.artifacts()) == before


def test_fewer_rows_than_a_step_would_take_are_said(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]
) -> None:
    few = prepare(tmp_path / "few", model_dir, rows, epochs=1, batch_size=len(rows) + 1)
    warning = f"warning: batch_size = {len(rows) + 1} is more than the {len(rows)} sequences of round 0"
    assert train_in_a_process(few).count(warning) == 1
    assert len(steps_of(few, 1)) == 1
    assert batch_too_large("round 0", len(rows), len(rows)) is None


@pytest.mark.slow  # their gradients are compared by default in test_splits.py
def test_two_ranks_train_the_weights_of_one(
    trained: Run, tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]
) -> None:
    run = prepare(tmp_path, model_dir, rows, epochs=EPOCHS, processes=2)
    assert " | 0/" not in train_in_a_process(run), "one rank speaks for all"
    for alone, together in zip(steps_of(trained, 1), steps_of(run, 1), strict=True):
        for key in ("loss", "grad_norm", "log_ratio", "kl"):
            assert together[key] == pytest.approx(alone[key], rel=1e-3, abs=1e-6)
        assert (together["sequences"], together["tokens"]) == (alone["sequences"], alone["tokens"])
    assert gap(run.checkpoint(0, EPOCHS), trained.checkpoint(0, EPOCHS)) < 2e-5
    alone, together = (read_table(r.mismatch(0), MISMATCHES).to_pylist() for r in (trained, run))
    assert [row["rollout_id"] for row in together] == [row["rollout_id"] for row in alone]
    for one, two in zip(alone, together, strict=True):
        assert two["response_tokens"] == one["response_tokens"]
        assert two["sum_difference"] == pytest.approx(one["sum_difference"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("processes", [1, 2])
def test_every_zero_stage_trains_the_same_weights(
    trained: Run, tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]], stage: int, processes: int
) -> None:
    run = prepare(tmp_path, model_dir, rows, epochs=EPOCHS, processes=processes, zero_stage=stage)
    train_in_a_process(run)
    assert gap(run.checkpoint(0, EPOCHS), trained.checkpoint(0, EPOCHS)) < 2e-5


@pytest.mark.slow
def test_bfloat16_training_exports_the_stored_type_and_steps_as_float32(
    trained: Run, tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]
) -> None:
    run = prepare(tmp_path, model_dir, rows, epochs=EPOCHS, dtype="bfloat16", recompute="all")
    train_in_a_process(run)
    assert AutoModelForCausalLM.from_pretrained(run.checkpoint(0, 1)).dtype == torch.float32
    for exact, coarse in zip(steps_of(trained, 1), steps_of(run, 1), strict=True):
        assert coarse["loss"] == pytest.approx(exact["loss"], rel=0.05)
        assert coarse["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.1)
    start, one, other = (weights_of(folder) for folder in (model_dir, trained.checkpoint(0, 1), run.checkpoint(0, 1)))
    moved, apart = (sum(float((one[name] - own[name]).square().sum()) for name in one) for own in (start, other))
    assert apart < 0.1 * moved, "an epoch in bfloat16 goes where one in float32 goes"


@pytest.mark.slow  # how the last error line is found is in tests/core/test_launch.py
def test_a_rank_that_fails_says_why_in_the_last_error_line(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    broken = write_tiny_model(tmp_path / "model", sharpness=3.0)
    run = prepare(tmp_path, broken, [row | {"policy_hash": policy_hash(broken)} for row in rows], processes=2)
    file = broken / "model.safetensors"
    intact = file.read_bytes()
    file.write_bytes(intact[:-100])
    write_groups(run, [row | {"policy_hash": policy_hash(broken)} for row in rows])
    result = subprocess.run(train_command(run), capture_output=True, text=True)
    assert result.returncode != 0
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "cannot be loaded" in errors[-1]
