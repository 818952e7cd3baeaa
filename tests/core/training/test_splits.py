"""However a step is computed, loss and gradient are the same: ranks, ZeRO stages, packing, padding, one pass or two.

Micro-batch sizes and row order: test_steps.py. Real DeepSpeed does not show its gradients, but the weights do: with an
Adam epsilon far above any gradient, one step moves each weight by learning rate / epsilon times its gradient.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from oapl_core.model_files.model_folder import policy_hash
from oapl_core.objectives import Oapl
from oapl_core.run_folder.run import METRICS_FILE
from oapl_core.training.examples import Examples, read_examples
from oapl_core.training.model.logprobs import Policy
from tests.core.training.made_round import (
    BETA2,
    made_groups,
    make_run,
    plain_entropies,
    train_in_a_process,
    write_groups,
)

Row = dict[str, Any]
Gradients = dict[str, torch.Tensor]
EPSILON, FACTOR = 1e6, 100.0


@pytest.fixture(scope="module")
def rows(sharp_model: Path) -> list[Row]:
    shift = [0.02 * (i % 7 - 3) for i in range(24)]
    made = made_groups(sharp_model)
    return [
        row | {"behavior_logprobs": [x + d for x in row["behavior_logprobs"]]}
        for row, d in zip(made, shift, strict=True)
    ]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, sharp_model: Path, rows: list[Row]) -> Examples:
    run = make_run(tmp_path_factory.mktemp("examples"), sharp_model)
    write_groups(run, rows)
    return read_examples(run.groups(0), policy_hash(sharp_model), sharp_model)


def advantages(examples: Examples) -> torch.Tensor:
    objective = Oapl(regression_temperature=BETA2)
    return objective.advantages(torch.from_numpy(examples.reward_S), torch.from_numpy(examples.group_S))


def one_pass(
    model_dir: Path, examples: Examples, padding: int = 0, packed: bool = False, double: bool = False
) -> tuple[float, Gradients]:
    """Loss and gradient of one batch of everything, with ``padding`` further columns."""
    policy = Policy(AutoModelForCausalLM.from_pretrained(model_dir), packed=packed)
    batch = examples.batch(range(len(examples.lengths)))
    ids = torch.nn.functional.pad(batch.id_ST, (0, padding), value=9)
    compared = torch.nn.functional.pad(batch.compared_ST, (0, padding))
    log_ratio_ST = policy(ids, batch.prompt_length_S, batch.length_S) - compared
    residual_S = BETA2 * log_ratio_ST.double().sum(1) - advantages(examples)
    loss = residual_S.square().sum() / len(ids)
    if double:
        # coefficients from a pass without gradient, then a sum that is linear in the log-probs
        (residual_S.detach() * 2 * BETA2 / len(ids) * log_ratio_ST.double().sum(1)).sum().backward()
    else:
        loss.backward()
    found = Policy.model_weights({n: p.grad for n, p in policy.named_parameters() if p.grad is not None})
    return float(loss.detach()), found


@pytest.fixture(scope="module")
def expected(sharp_model: Path, examples: Examples) -> tuple[float, Gradients]:
    return one_pass(sharp_model, examples)


def assert_same(found: tuple[float, Gradients], expected: tuple[float, Gradients]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found[1].keys() >= expected[1].keys()
    for name, gradient in expected[1].items():
        # float32 sums in another order: an entry is off by up to 1e-5 of the largest ones, whatever its own size
        torch.testing.assert_close(found[1][name], gradient, rtol=0, atol=1e-5 * gradient.abs().max().item(), msg=name)


@pytest.mark.parametrize(
    "changes", [{"padding": 1}, {"padding": 50}, {"packed": True}, {"packed": True, "padding": 13}, {"double": True}]
)
def test_padding_packing_and_a_second_pass_change_nothing(
    sharp_model: Path, examples: Examples, expected: tuple[float, Gradients], changes: dict[str, Any]
) -> None:
    assert_same(one_pass(sharp_model, examples, **changes), expected)


def step_of_deepspeed(folder: Path, model_dir: Path, rows: list[Row], **training: Any) -> tuple[float, Gradients]:
    """Loss and gradient; the entropy that the step reports is compared here."""
    run = make_run(
        folder,
        model_dir,
        epochs=1,
        batch_size=len(rows),
        learning_rate=EPSILON * FACTOR,
        adam_eps=EPSILON,
        weight_decay=0.0,
        max_grad_norm=1e9,
        max_mismatch=0.2,  # the rows are off by 0.1 nats or less, so that no log-ratio is 0
        **training,
    )
    write_groups(run, rows)
    said = train_in_a_process(run)
    assert ("prompts are computed once" in said) == ("share_prompts" in training)
    metrics = json.loads((run.checkpoint(0, 1) / METRICS_FILE).read_text())  # one step
    sampled = [row.get("loss_mask") or [True] * len(row["response_ids"]) for row in rows]
    found = zip(plain_entropies(model_dir, rows), sampled, strict=True)
    entropies = [entropy for of_row, mask in found for entropy, own in zip(of_row, mask, strict=True) if own]
    assert metrics["entropy"] == pytest.approx(sum(entropies) / len(entropies), abs=1e-5)
    before, after = (AutoModelForCausalLM.from_pretrained(d).state_dict() for d in (model_dir, run.checkpoint(0, 1)))
    scale = metrics["learning_rate"] / EPSILON
    return metrics["loss"], {name: (before[name] - after[name]) / scale for name in before}


@pytest.mark.slow
def test_two_ranks_with_sharded_gradients_make_the_gradient_of_plain_code(
    tmp_path: Path, sharp_model: Path, rows: list[Row], expected: tuple[float, Gradients]
) -> None:
    assert_same(step_of_deepspeed(tmp_path, sharp_model, rows, processes=2, zero_stage=2), expected)


WAYS: dict[str, dict[str, Any]] = {
    "packed": {"packing": "on"},
    "padded": {"packing": "off"},
    "shared": {"share_prompts": "on"},
}


@pytest.mark.slow_if(case=lambda given: given != {"way": "shared", "stage": 1, "processes": 1})
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("processes", [1, 2])
def test_every_stage_and_number_of_ranks_makes_the_gradient_of_plain_code(
    tmp_path: Path,
    sharp_model: Path,
    rows: list[Row],
    expected: tuple[float, Gradients],
    processes: int,
    stage: int,
    way: str,
) -> None:
    found = step_of_deepspeed(tmp_path, sharp_model, rows, processes=processes, zero_stage=stage, **WAYS[way])
    assert_same(found, expected)
