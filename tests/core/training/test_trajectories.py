"""Rows of several turns: only what the model sampled has a log-ratio, a gradient and a place in any count."""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.objectives import Inputs, StepSizes
from oapl_core.training.examples import Examples, read_examples
from oapl_core.training.job import make_job
from oapl_core.training.layouts.shared_prompts import SharedPromptPolicy
from oapl_core.training.mismatch import compare_with_engine
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.reference import reference_rows
from oapl_core.training.steps import Trainer
from tests.core.training.made_round import (
    BETA2,
    made_groups,
    make_run,
    plain_entropies,
    plain_logprobs,
    write_groups,
)
from tests.core.training.plain_engine import PlainEngine
from tests.core.training.test_objectives import NAMES, trainer_of
from tests.core.training.test_splits import advantages, assert_same, step_of_deepspeed
from tests.tiny_model import write_tiny_model

Row = dict[str, Any]


def trajectories(model: Path, seed: int = 5) -> list[Row]:
    """Groups whose responses an environment wrote in part; another policy's log-probs, 0 where nobody sampled."""
    draw, rows = random.Random(seed), made_groups(model)
    for number, row in enumerate(rows):
        length = len(row["response_ids"])
        mask = [place == 0 or draw.random() < 0.6 for place in range(length)]
        row["loss_mask"] = None if number == 3 else mask  # one row of a single turn
        mask = [True] * length if number == 3 else mask
        logprobs = zip(row["behavior_logprobs"], mask, strict=True)
        row["behavior_logprobs"] = [x + draw.gauss(0, 0.1) if sampled else 0.0 for x, sampled in logprobs]
    return rows


def mask_of(row: Row) -> np.ndarray:
    return np.array([True] * len(row["response_ids"]) if row["loss_mask"] is None else row["loss_mask"])


def read(folder: Path, model: Path, rows: Sequence[Row], **training: Any) -> Examples:
    run = make_run(folder, model, **training)
    write_groups(run, list(rows))
    examples = read_examples(run.groups(0), policy_hash(model), model)
    # pi_old of objectives that ask for it: the reference file of the same weights
    engine = PlainEngine(Policy(AutoModelForCausalLM.from_pretrained(model)), run.config.training)
    return replace(examples, start=reference_rows(make_job(run, 0), engine, examples))


@pytest.fixture(scope="module")
def model(sharp_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(sharp_model)


@pytest.fixture(scope="module")
def rows(sharp_model: Path) -> list[Row]:
    return trajectories(sharp_model)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, sharp_model: Path, rows: list[Row]) -> Examples:
    return read(tmp_path_factory.mktemp("turns"), sharp_model, rows)


@dataclass(frozen=True)
class Plain:
    """The sampled tokens alone, [S, T] from the first column on, in float64."""

    model: Any
    pi_ST: torch.Tensor
    """Textbook log-softmax of whole rows, with its graph."""
    b_ST: torch.Tensor
    start_ST: torch.Tensor
    length_S: torch.Tensor


@pytest.fixture(scope="module")
def plain(model: Any, rows: list[Row], examples: Examples) -> Plain:
    exact = copy.deepcopy(model).double()
    found: tuple[list[torch.Tensor], ...] = ([], [], [])
    for i, row in enumerate(rows):
        ids, mask = torch.tensor([row["prompt_ids"] + row["response_ids"]]), torch.from_numpy(mask_of(row))
        logprobs = exact(ids).logits[0, :-1].log_softmax(1).gather(1, ids[0, 1:, None])[:, 0]
        assert examples.start is not None
        stored = examples.start[i]["reference_logprobs"][0].as_py()
        recorded = torch.tensor(row["behavior_logprobs"], dtype=torch.float32)
        own = (logprobs[len(row["prompt_ids"]) - 1 :], recorded.double(), torch.tensor(stored, dtype=torch.float64))
        for part, values in zip(found, own, strict=True):
            part.append(values[mask])
    pi_ST, b_ST, start_ST = (torch.nn.utils.rnn.pad_sequence(part, batch_first=True) for part in found)
    return Plain(exact, pi_ST, b_ST, start_ST, torch.tensor([len(x) for x in found[0]]))


def computed(trainer: Trainer, examples: Examples, rows: Sequence[Row]) -> torch.Tensor:
    """The trainer's own log-probs of sampled tokens, [S, T] from the first column on, as float64."""
    batch = examples.batch(range(len(rows)))
    with torch.no_grad():
        logprob_ST = trainer.engine.policy(*batch.given())
    mask_ST = batch.mask_ST
    own = [logprob_T[mask_T].double() for logprob_T, mask_T in zip(logprob_ST, mask_ST, strict=True)]
    return torch.nn.utils.rnn.pad_sequence(own, batch_first=True)


def plain_step(trainer: Trainer, plain: Plain, computed_ST: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient of a step over all rows, in float64: the objective's at the trainer's own log-probs, which are
    float32 and so have a rounding that is no matter of objectives; from there on through the exact model."""
    kept_S, objective = trainer.kept_S, trainer.objective
    reward_S, group_S, length_S = (x[kept_S] for x in (trainer.reward_S, trainer.group_S, plain.length_S))
    assert (computed_ST - plain.pi_ST).abs().max() < 2e-6
    pi_ST = computed_ST.clone().requires_grad_()
    inputs = Inputs(
        (pi_ST - plain.b_ST)[kept_S],
        torch.arange(pi_ST.shape[1]) < length_S[:, None],
        objective.advantages(reward_S, group_S),
        reward_S,
        group_S,
        StepSizes(len(reward_S), len(group_S.unique()), int(length_S.sum())),
        (plain.start_ST - plain.b_ST)[kept_S],
    )
    loss = objective.loss_of_step(inputs).value
    loss.backward()
    names, parameters = zip(*plain.model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(plain.pi_ST, parameters, pi_ST.grad, retain_graph=True)
    return float(loss.detach()), dict(zip(names, gradients, strict=True))


@pytest.mark.slow_if(case=lambda given: given["name"] not in {"oapl", "grpo", "gspo", "bapo", "minpro", "sft"})
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_a_plain_transcription_over_the_mask(
    model: Any, rows: list[Row], examples: Examples, plain: Plain, name: str
) -> None:
    """The whole gradient, from float32 of the trainer to float64 of plain code."""
    trainer = trainer_of(name, model, examples, tokens_per_micro_batch=10**6, batch_size=len(rows))
    loss, expected = plain_step(trainer, plain, computed(trainer, examples, rows))
    metrics = trainer.step(trainer.batches(1)[0], examples.lengths, 1e-3)
    assert isinstance(trainer.engine, PlainEngine)
    found = Policy.model_weights(trainer.engine.gradients[0])
    apart = torch.cat([(found[key].double() - g).flatten() for key, g in expected.items()]).norm()
    whole = torch.cat([g.flatten() for g in expected.values()]).norm()
    assert 0 < apart <= 1e-6 * whole
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)


def test_a_token_of_an_environment_gets_no_gradient(model: Any, rows: list[Row], examples: Examples) -> None:
    """Finite differences: the hidden state before a token is moved, which changes this token's log-prob alone."""
    trainer = trainer_of("oapl", model, examples)
    batch, policy = examples.batch(range(len(rows))), trainer.engine.policy
    inputs = batch.given()
    moved = torch.zeros(*batch.id_ST.shape, policy.model.config.hidden_size, requires_grad=True)

    def move(_module: Any, _inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state + moved
        return output

    policy.model.base_model.register_forward_hook(move)

    def loss() -> torch.Tensor:
        step = trainer.inputs(policy(*inputs) - batch.compared_ST, batch.mask_ST, range(len(rows)), trainer.sizes([0]))
        return replace(step, sizes=StepSizes(len(rows), 6, 1)).log_ratio_S.mul(step.advantage_S).sum()

    before = loss()
    before.backward()
    gradient, size = moved.grad, 1e-2
    assert gradient is not None
    for s, row in enumerate(rows):
        for place, sampled in enumerate(mask_of(row)):
            column = len(row["prompt_ids"]) + place - 1
            if not sampled:
                assert not gradient[s, column].any()
            if s < 2:
                with torch.no_grad():
                    moved[s, column] += size * gradient[s, column] + (not sampled)
                    change = float(loss() - before)
                    moved[s, column] = 0
                assert change == 0 if not sampled else change > 0


WAYS: dict[str, tuple[type[Policy], dict[str, Any]]] = {
    "small micro-batches": (Policy, {"tokens_per_micro_batch": 48}),
    "packed": (Policy, {"packed": True}),
    "small chunks": (Policy, {"chunk": 3}),
    "shared prompts": (SharedPromptPolicy, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_however_a_step_is_cut_it_is_the_same(model: Any, examples: Examples, way: str) -> None:
    kind, options = WAYS[way]
    size = options.get("tokens_per_micro_batch", 10**6)
    expected, found = (trainer_of("grpo", model, examples, tokens_per_micro_batch=n) for n in (10**6, size))
    made = {name: value for name, value in options.items() if name != "tokens_per_micro_batch"}
    found = replace(found, engine=PlainEngine(kind(copy.deepcopy(model), **made), found.training))
    batch = expected.batches(1)[0]
    one, other = (trainer.step(batch, examples.lengths, 1e-3) for trainer in (expected, found))
    for key in ("loss", "response_tokens", "log_ratio", "kl", "entropy", "effective_sample_size", "grad_norm"):
        assert other[key] == pytest.approx(one[key], rel=1e-4, abs=1e-6), key


def test_what_is_measured_is_over_sampled_tokens(
    sharp_model: Path, model: Any, rows: list[Row], examples: Examples
) -> None:
    trainer = trainer_of("oapl", model, examples, batch_size=len(rows))
    metrics = trainer.step(range(len(rows)), examples.lengths, 1e-3)
    masks = [mask_of(row) for row in rows]
    ratios = [
        (np.array(pi) - np.array(row["behavior_logprobs"]))[mask]
        for pi, row, mask in zip(plain_logprobs(sharp_model, rows), rows, masks, strict=True)
    ]
    weights = np.exp([x.sum() for x in ratios])
    entropies = [np.array(x)[mask] for x, mask in zip(plain_entropies(sharp_model, rows), masks, strict=True)]
    tokens = np.concatenate(ratios)
    assert metrics["response_tokens"] == len(tokens) < sum(len(row["response_ids"]) for row in rows)
    assert metrics["tokens"] == sum(examples.lengths), "what is computed includes what was read"
    assert metrics["token_log_ratio_abs"] == pytest.approx(np.abs(tokens).mean(), rel=1e-4)
    assert metrics["kl"] == pytest.approx((np.expm1(tokens) - tokens).mean(), rel=1e-4)
    assert metrics["entropy"] == pytest.approx(np.concatenate(entropies).mean(), rel=1e-4)
    expected = weights.sum() ** 2 / (weights**2).sum() / len(rows)
    assert metrics["effective_sample_size"] == pytest.approx(expected, rel=1e-4)


def test_reference_and_mismatch_are_over_sampled_tokens(tmp_path: Path, sharp_model: Path, rows: list[Row]) -> None:
    run = make_run(tmp_path, sharp_model, max_mismatch=0.2)
    write_groups(run, rows)
    examples = read_examples(run.groups(0), policy_hash(sharp_model), sharp_model)
    engine = PlainEngine(Policy(AutoModelForCausalLM.from_pretrained(sharp_model)), run.config.training)
    job = make_job(run, 0)
    compare_with_engine(job, engine, examples)
    reference_rows(job, engine, examples)
    sampled = {row["rollout_id"]: int(mask_of(row).sum()) for row in rows}
    mismatch = tables.read_table(run.mismatch(0), tables.MISMATCHES).to_pylist()
    assert {row["rollout_id"]: row["response_tokens"] for row in mismatch} == sampled
    expected = plain_logprobs(sharp_model, rows)
    stored = tables.read_table(run.reference(0), tables.REFERENCES)["reference_logprobs"].to_pylist()
    for row, logprobs, own in zip(rows, expected, stored, strict=True):
        assert own == pytest.approx(np.where(mask_of(row), logprobs, 0.0).tolist(), abs=1e-5)
    details = run.ledger.artifacts()[run.name(run.reference(0))].details
    mean = sum(row["mean_difference"] * row["response_tokens"] for row in mismatch) / sum(sampled.values())
    assert details["mean"] == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["oapl", "grpo"])
def test_a_mask_that_is_true_everywhere_changes_no_digit(
    tmp_path: Path, sharp_model: Path, model: Any, name: str, packed: bool
) -> None:
    rows, results = made_groups(sharp_model), []
    for number, mask in enumerate((None, True)):
        given = rows if mask is None else [row | {"loss_mask": [True] * len(row["response_ids"])} for row in rows]
        examples = read(tmp_path / str(number), sharp_model, given)
        assert examples.is_masked == (number == 1)
        trainer = trainer_of(name, model, examples, packing="on" if packed else "off", tokens_per_micro_batch=64)
        steps = [trainer.step(batch, examples.lengths, 1e-3) for batch in trainer.batches(1)]
        timed = {"seconds", "peak_memory_mb"}
        metrics = [{key: value for key, value in step.items() if key not in timed} for step in steps]
        results.append((metrics, trainer.engine.weights(), examples.start))
    (one, weights, start), (other, masked_weights, masked_start) = results
    assert one == other
    assert all(torch.equal(weight, masked_weights[key]) for key, weight in weights.items())
    assert start is not None
    assert masked_start is not None
    assert all(start[i].equals(masked_start[i]) for i in range(len(rows)))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (lambda mask: mask[:-1], "does not fit its tokens"),
        (lambda mask: [False] * len(mask), "or a log-prob where that is false"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, sharp_model: Path, rows: list[Row], changed: Any, complaint: str
) -> None:
    bad = [*rows[:5], rows[5] | {"loss_mask": changed(rows[5]["loss_mask"])}, *rows[6:]]
    with pytest.raises(DataError, match=rf"rollout r1-1 has a loss_mask that .*{complaint}"):
        read(tmp_path, sharp_model, bad)


def test_a_response_of_which_nothing_was_sampled_is_refused(tmp_path: Path, sharp_model: Path, rows: list[Row]) -> None:
    nothing: dict[str, Any] = {"loss_mask": [False] * len(rows[5]["response_ids"])}
    nothing["behavior_logprobs"] = [0.0] * len(rows[5]["response_ids"])
    with pytest.raises(DataError, match="r1-1 has no token that the model sampled"):
        read(tmp_path, sharp_model, [*rows[:5], rows[5] | nothing, *rows[6:]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        {"processes": 2, "sequence_parallel": 2, "zero_stage": 3},
        {"processes": 2, "zero_stage": 2, "packing": "on"},
        {"share_prompts": "on", "zero_stage": 1},
    ],
    ids=str,
)
def test_ranks_that_share_sequences_make_the_gradient_of_plain_code(tmp_path: Path, training: dict[str, Any]) -> None:
    """Real DeepSpeed; its weights tell the gradient (test_splits.py)."""
    folder = write_tiny_model(tmp_path / "model", hidden_size=64, sharpness=3.0)
    rows = trajectories(folder)
    examples = read(tmp_path / "plain", folder, rows)
    batch = examples.batch(range(len(rows)))
    policy = Policy(AutoModelForCausalLM.from_pretrained(folder))
    log_ratio_ST = policy(*batch.given()) - batch.compared_ST
    loss = (BETA2 * log_ratio_ST.double().sum(1) - advantages(examples)).square().mean()
    loss.backward()
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    expected = float(loss.detach()), Policy.model_weights(gradients)
    assert_same(step_of_deepspeed(tmp_path, folder, rows, **training), expected)
