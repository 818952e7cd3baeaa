"""Optimiser steps without DeepSpeed: normalisation, splits, measurements, guards."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from oapl_core.errors import StageFailed
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.training.examples import read_examples
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.steps import Trainer
from tests.core.training.made_round import (
    BETA1,
    BETA2,
    made_groups,
    make_run,
    plain_entropies,
    plain_logprobs,
    write_groups,
)
from tests.core.training.plain_engine import PlainEngine
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.fixture(scope="module")
def rows(model_dir: Path) -> list[dict[str, Any]]:
    return made_groups(model_dir)


def make_trainer(folder: Path, model_dir: Path, rows: list[dict[str, Any]], **training: Any) -> Trainer:
    run = make_run(folder, model_dir, **training)
    write_groups(run, rows)
    examples = read_examples(run.groups(0), policy_hash(model_dir), model_dir)
    config = run.config
    model, packed = AutoModelForCausalLM.from_pretrained(model_dir), config.training.packing == "on"
    policy = Policy(model, examples.temperature, config.training.logprob_chunk, packed)
    return Trainer(
        engine=PlainEngine(policy, config.training),
        objective=config.objective.loaded("behavior"),
        examples=examples,
        training=config.training,
        seed=0,
        round_number=0,
        epochs=3,
    )


def first_gradient(trainer: Trainer, batch: list[int]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    metrics = trainer.step(batch, trainer.examples.lengths, 1e-3)
    assert isinstance(trainer.engine, PlainEngine)
    return metrics, trainer.engine.gradients[0]


def advantages(rows: list[dict[str, Any]]) -> np.ndarray:
    found = []
    for row in rows:
        rewards = np.array([other["reward"] for other in rows if other["group"] == row["group"]])
        found.append(row["reward"] - BETA1 * np.log(np.mean(np.exp(rewards / BETA1))))
    return np.array(found)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens_per_micro_batch": 1},
        {"tokens_per_micro_batch": 64},
        {"logprob_chunk": 3},
        {"packing": "on"},
        {"packing": "on", "tokens_per_micro_batch": 64},
    ],
)
def test_loss_and_gradient_do_not_depend_on_how_a_batch_is_cut(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]], changes: dict[str, Any]
) -> None:
    batch = list(range(20))
    whole = make_trainer(tmp_path / "whole", model_dir, rows, tokens_per_micro_batch=10**6)
    parted = make_trainer(tmp_path / "parted", model_dir, rows, **changes)
    expected, gradient = first_gradient(whole, batch)
    found, parted_gradient = first_gradient(parted, batch[::-1])
    for key in ("loss", "log_ratio", "kl", "entropy", "grad_norm", "tokens", "sequences", "token_log_ratio_max"):
        assert found[key] == pytest.approx(expected[key], rel=1e-5, abs=1e-6)
    for name, expected_gradient in gradient.items():
        # float32 sums in another order: an entry is off by up to 1e-5 of the largest ones, whatever its own size
        largest = expected_gradient.abs().max().item()
        torch.testing.assert_close(parted_gradient[name], expected_gradient, rtol=0, atol=1e-5 * largest)


def test_an_idle_ranks_stand_in_changes_nothing(tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]) -> None:
    trainer = make_trainer(tmp_path, model_dir, rows)
    engine = trainer.engine
    assert isinstance(engine, PlainEngine)
    engine.rank, engine.ranks = 1, 2
    trainer.step([0, 1, 2], trainer.examples.lengths, 1e-3)  # rank 1 gets one row
    assert any(float(g.abs().max()) > 0 for g in engine.gradients[0].values())
    before = {name: weight.clone() for name, weight in engine.weights().items()}
    engine.optimizer = torch.optim.AdamW(engine.policy.parameters(), weight_decay=0.0)
    with pytest.raises(ZeroDivisionError):  # alone it has no sequence to average over
        trainer.step([5], trainer.examples.lengths, 1e-3)
    assert all(not g.any() for g in engine.gradients[1].values())
    assert engine.gradients[1].keys() == engine.gradients[0].keys(), (
        "every parameter takes part in the collective operations"
    )
    assert all(torch.equal(before[name], weight) for name, weight in engine.weights().items())


def test_measurements_are_those_of_plain_code(tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]) -> None:
    shifted = [row | {"behavior_logprobs": [x - 0.1 for x in row["behavior_logprobs"]]} for row in rows]
    trainer = make_trainer(tmp_path, model_dir, shifted)
    batch = list(range(0, 24, 2))
    metrics, _ = first_gradient(trainer, batch)
    policy = plain_logprobs(model_dir, [rows[i] for i in batch])
    ratios = [np.array(p) - np.array(shifted[i]["behavior_logprobs"]) for i, p in zip(batch, policy, strict=True)]
    sums, flat = np.array([r.sum() for r in ratios]), np.concatenate(ratios)
    right = np.array([rows[i]["reward"] for i in batch]) == 1.0
    assert metrics["loss"] == pytest.approx(float(np.mean((BETA2 * sums - advantages(rows)[batch]) ** 2)), rel=1e-5)
    assert metrics["right_share"] == right.mean()
    assert metrics["log_ratio"] == pytest.approx(sums.mean(), rel=1e-4)
    assert metrics["log_ratio_right"] == pytest.approx(sums[right].mean(), rel=1e-4)
    assert metrics["log_ratio_wrong"] == pytest.approx(sums[~right].mean(), rel=1e-4)
    weights = np.exp(sums)
    ess = weights.sum() ** 2 / (weights**2).sum() / len(batch)
    assert metrics["effective_sample_size"] == pytest.approx(ess, rel=1e-4)
    assert metrics["token_log_ratio_abs"] == pytest.approx(np.abs(flat).mean(), rel=1e-4)
    assert metrics["token_log_ratio_max"] == pytest.approx(np.abs(flat).max(), rel=1e-4)
    assert metrics["kl"] == pytest.approx(np.mean(np.exp(flat) - 1 - flat), rel=1e-3)
    assert metrics["kl_k1"] == pytest.approx(-flat.mean(), rel=1e-4)
    assert metrics["token_log_ratio"] == pytest.approx(flat.mean(), rel=1e-4)
    entropies = plain_entropies(model_dir, [rows[i] for i in batch])
    assert metrics["entropy"] == pytest.approx(np.concatenate(entropies).mean(), abs=1e-5)
    assert metrics["token_entropy"] == pytest.approx(-np.concatenate(policy).mean(), rel=1e-5)
    residuals = BETA2 * sums - advantages(rows)[batch]
    assert metrics["residual_right"] == pytest.approx(residuals[right].mean(), rel=1e-4)
    assert metrics["residual_wrong"] == pytest.approx(residuals[~right].mean(), rel=1e-4)
    assert metrics["clipped"] == (metrics["grad_norm"] > trainer.training.max_grad_norm)
    assert metrics["squared_tokens"] == sum(trainer.examples.lengths[i] ** 2 for i in batch)
    assert metrics["peak_memory_mb"] > 100
    assert metrics["response_tokens"] == len(flat)
    assert metrics["sequences"] == len(batch)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_entropy_is_that_of_the_policy_at_the_temperature_of_its_rollouts(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]], temperature: float
) -> None:
    trainer = make_trainer(tmp_path, model_dir, [row | {"temperature": temperature} for row in rows])
    batch = list(range(20))
    for step in range(2):
        now = AutoModelForCausalLM.from_pretrained(model_dir)
        now.load_state_dict(Policy.model_weights(trainer.engine.weights()))
        now.save_pretrained(tmp_path / f"now{step}")
        expected = plain_entropies(tmp_path / f"now{step}", rows[:20], temperature)
        found = trainer.step(batch, trainer.examples.lengths, 1e-2)["entropy"]
        assert found == pytest.approx(np.concatenate(expected).mean(), abs=1e-5), "of the weights before the update"


def test_values_are_taken_over_whole_groups_however_they_are_batched(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]
) -> None:
    trainer = make_trainer(tmp_path, model_dir, rows)
    assert trainer.advantage_S.tolist() == pytest.approx(advantages(rows).tolist())
    metrics, _ = first_gradient(trainer, [4])  # one row of a group of four
    assert metrics["loss"] == pytest.approx(advantages(rows)[4] ** 2, rel=1e-4)


def test_an_epoch_steps_over_every_sequence_and_the_short_last_batch(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]
) -> None:
    trainer = make_trainer(tmp_path, model_dir, rows)
    seen: list[dict[str, Any]] = []
    steps = trainer.epoch(2, seen.append)
    assert steps == seen
    assert [step["sequences"] for step in steps] == [10, 10, 4]
    assert [step["step"] for step in steps] == [4, 5, 6]
    assert {step["epoch"] for step in steps} == {2}
    assert [step["policy_lag"] for step in steps] == [3, 4, 5]


def test_training_lowers_the_loss_and_parts_right_from_wrong(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]
) -> None:
    trainer = make_trainer(tmp_path, model_dir, rows, learning_rate=3e-3)
    epochs = [trainer.epoch(epoch, lambda _: None) for epoch in (1, 2, 3)]
    first, last = ([step["loss"] for step in epoch] for epoch in (epochs[0], epochs[-1]))
    assert np.mean(last) < 0.8 * np.mean(first)
    assert epochs[-1][-1]["log_ratio_right"] > epochs[-1][-1]["log_ratio_wrong"] + 1.0


def test_a_loss_that_is_not_finite_names_the_rollouts(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]
) -> None:
    trainer = make_trainer(tmp_path, model_dir, rows, tokens_per_micro_batch=1)
    trainer.advantage_S[7] = float("nan")
    with pytest.raises(StageFailed, match=r"loss is nan over rollouts r1-3; lower"):
        trainer.step(list(range(24)), trainer.examples.lengths, 1e-3)


def test_a_gradient_that_is_not_finite_stops_the_round(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, model_dir, rows)
    monkeypatch.setattr(trainer.engine, "step", lambda _rate: float("inf"))
    with pytest.raises(StageFailed, match="gradient norm is inf in a step over rollouts .* and 2 more"):
        trainer.step(list(range(10)), trainer.examples.lengths, 1e-3)


@pytest.mark.parametrize("far", [0.0, 800.0, -800.0])
def test_the_effective_sample_size_is_that_of_the_ratios_however_large_they_are(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]], far: float
) -> None:
    lengths = [len(row["behavior_logprobs"]) for row in rows]
    shifted = [
        row | {"behavior_logprobs": [x - far / n for x in row["behavior_logprobs"]]}
        for row, n in zip(rows, lengths, strict=True)
    ]
    trainer = make_trainer(tmp_path, model_dir, shifted, tokens_per_micro_batch=64, max_mismatch=1e3)
    found = trainer.step(list(range(10)), trainer.examples.lengths, 0.0)["effective_sample_size"]
    assert found == pytest.approx(1.0, abs=1e-3), "all ratios are the same, e^-800 or e^800"
    # one answer alone is e^5 times likelier than all others
    alone = [dict(row) for row in rows]
    alone[3]["behavior_logprobs"] = [x - 5.0 / lengths[3] for x in rows[3]["behavior_logprobs"]]
    trainer = make_trainer(tmp_path / "alone", model_dir, alone, tokens_per_micro_batch=64)
    found = trainer.step(list(range(10)), trainer.examples.lengths, 0.0)["effective_sample_size"]
    assert found == pytest.approx((9 + np.exp(5.0)) ** 2 / (9 + np.exp(10.0)) / 10, rel=1e-4)
