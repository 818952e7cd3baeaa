"""Arms trained side by side: each comes out as the pipeline's trainer makes it alone."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.claims.algorithm_1 import InOrder
from bench.claims.grouped import GroupedPolicy
from bench.claims.side_by_side import Rollouts, SideArm, SideBySide
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.objectives import Oapl
from oapl_core.objectives.clipped.grpo import GrpoTokenIs
from oapl_core.objectives.oapl_variant import OaplVariant
from oapl_core.objectives.supervised import Rft
from oapl_core.objectives.topr import Topr
from oapl_core.seeds import derive_seed
from oapl_core.settings.training import TrainingConfig
from oapl_core.tables import GROUPS, is_correct, write_table
from oapl_core.training.examples import read_examples
from oapl_core.training.model.checkpoint import load_model
from tests.core.training.plain_engine import PlainEngine
from tests.tiny_model import write_tiny_model

GROUPS_PER_STEP, SIZE, STEPS = 2, 4, 4
ARMS = (
    SideArm("oapl", Oapl(regression_temperature=0.1), 1e-3),
    SideArm("clipped", Oapl(regression_temperature=0.1), 1e-3, max_grad_norm=0.01),
    SideArm("tapered", OaplVariant(regression_temperature=0.1, divergence="tapered"), 5e-4),
    SideArm("topr", Topr(), 1e-3),
    SideArm("rft", Rft(), 1e-3),
    SideArm("grpo", GrpoTokenIs(), 1e-3),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", sharpness=5.0)


@pytest.fixture(scope="module")
def rows(model: Path) -> list[dict[str, Any]]:
    draw, identity = random.Random(1), policy_hash(model)
    made = []
    for i in range(GROUPS_PER_STEP * SIZE * STEPS):
        group = i // SIZE
        # a group without a correct answer, and one that is all correct
        reward = 0.0 if group == 3 else 1.0 if group == 4 else float(draw.random() < 0.5 or i % SIZE == 0)
        ids = [draw.randrange(5, 300) for _ in range(draw.randint(1, 6))]
        made.append(
            {
                "rollout_id": f"r{i}",
                "problem_id": f"p{group}",
                "group": group,
                "policy_hash": identity,
                "prompt_ids": [10 + group, 11, *range(12, 12 + group % 3)],
                "response_ids": ids,
                "behavior_logprobs": [-5.0 - draw.random() for _ in ids],
                "temperature": 1.0,
                "reward": reward,
                "correct": is_correct(reward),
            }
        )
    return made


def rollouts_of(rows: list[dict[str, Any]]) -> Rollouts:
    return Rollouts(
        [row["prompt_ids"] for row in rows],
        [row["response_ids"] for row in rows],
        [row["behavior_logprobs"] for row in rows],
        torch.tensor([row["reward"] for row in rows]),
        torch.tensor([row["correct"] for row in rows]),
        torch.tensor([row["group"] for row in rows]),
    )


@pytest.mark.parametrize("number", range(len(ARMS)), ids=[arm.name for arm in ARMS])
def test_an_arm_is_the_trainers(model: Path, rows: list[dict[str, Any]], tmp_path: Path, number: int) -> None:
    arm, rollouts = ARMS[number], rollouts_of(rows)
    side = SideBySide(load_model(model).model, ARMS, rollouts, seed=3)
    steps = rollouts.steps(GROUPS_PER_STEP)
    assert [len(step) for step in steps] == [8, 4, 8, 8], "the filter leaves a group out"
    training = TrainingConfig(
        dtype="float32",
        batch_size=GROUPS_PER_STEP * SIZE,
        share_prompts="on",
        warmup_share=0.0,
        floor_share=1.0,
        learning_rate=arm.rate,
        max_grad_norm=arm.max_grad_norm,
        peak_tflops=1.0,
    )
    path = tmp_path / "groups.parquet"
    write_table(path, GROUPS, rows)
    stored = load_model(model)
    engine = PlainEngine(GroupedPolicy(stored.model), training)
    examples = read_examples(path, policy_hash(model), model)
    order = tuple(tuple(step) for step in steps)
    trainer = InOrder(engine, arm.objective, examples, training, 3, 0, 2, lag_steps=0, steps=order)
    for epoch in (1, 2):
        trainer.epoch(epoch, lambda metrics: None)
        side.train(steps, epoch)
    start = dict(load_model(model).model.named_parameters())
    moved = max(float((p - start[name].detach()).abs().max()) for name, p in side.weights_of(number).items())
    assert moved > 4 * arm.rate, "the comparison would mean nothing"
    for name, p in stored.model.named_parameters():
        torch.testing.assert_close(side.weights_of(number)[name], p.detach(), rtol=0, atol=2e-5)


def test_another_rate_is_another_arm(model: Path, rows: list[dict[str, Any]]) -> None:
    rollouts = rollouts_of(rows)
    arms = (ARMS[0], replace(ARMS[0], rate=2e-3))
    side = SideBySide(load_model(model).model, arms, rollouts)
    side.train(rollouts.steps(GROUPS_PER_STEP)[:1])
    one, other = side.weights_of(0), side.weights_of(1)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_pass_may_end_early(model: Path, rows: list[dict[str, Any]]) -> None:
    rollouts = rollouts_of(rows)
    steps = rollouts.steps(GROUPS_PER_STEP)
    torch.manual_seed(derive_seed(3, "order of passes", 0, 2) % 2**63)
    order = torch.randperm(len(steps)).tolist()
    cut, whole = (SideBySide(load_model(model).model, ARMS[:1], rollouts, seed=3) for _ in range(2))
    cut.train(steps, 2, most=3)
    whole.train([steps[number] for number in order[:3]])
    assert cut.updates == 3
    for name, p in cut.weights_of(0).items():
        assert torch.equal(p, whole.weights_of(0)[name])
