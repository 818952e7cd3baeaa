"""The warm start: cross-entropy on answers alone, by the trainer of the rounds; round 0 starts from its end."""

import copy
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from oapl_core import tables
from oapl_core.errors import ConfigError, Interrupted
from oapl_core.model_folder import policy_hash
from oapl_core.problems.prepare import prepare
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.training.examples import UNKNOWN, read_examples
from oapl_core.training.job import make_job
from oapl_core.training.logprobs import Policy
from oapl_core.training.speed import TIMED
from oapl_core.training.steps import Trainer
from oapl_core.training.warm_start import make_warm_start, warm_start
from tests.core.training.made_round import TRAINING, made_groups, make_run, write_groups
from tests.core.training.plain_engine import PlainEngine

EPOCHS, ROWS, BATCH = 3, 83, 4
STEPS = 21
TIMELESS = dict.fromkeys(TIMED, 0)


def demonstrations(rows: int = ROWS) -> list[dict[str, Any]]:
    """Answers of many lengths; some conversations have two."""
    draw = random.Random(3)

    def words(most: int) -> str:
        return " ".join(draw.choice(("sum", "print", "max", "f(x)", "boxed")) for _ in range(draw.randint(1, most)))

    turns = [("user", 4), ("assistant", 3), ("user", 2), ("assistant", 6)]
    talk = [{"role": role, "content": words(most)} for role, most in turns]
    return [{"statement": words(4), "solution": words(8)} for _ in range(rows - 2)] + [{"messages": talk}]


def warm_run(folder: Path, model: Path, **training: Any) -> Run:
    """A run whose demonstrations are made."""
    folder.mkdir(parents=True, exist_ok=True)
    problem = {"problem_id": "p", "kind": "math", "statement": "What is 1 + 1?", "answer": "2"}
    for name, rows in (("train", [problem]), ("heldout", [problem | {"problem_id": "h"}]), ("shown", demonstrations())):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "name": "warm",
        "runs_dir": folder,
        "model": model,
        "problems": {"train": folder / "train.jsonl", "heldout": folder / "heldout.jsonl", "prompt_style": "plain"},
        "training": TRAINING | {"optimizer_state": "continued", "warmup_share": 0, "floor_share": 1} | training,
        "rounds": [{"epochs": 1}, {"epochs": 1}],
        "warm_start": {
            "data": folder / "shown.jsonl",
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "learning_rate": 1e-3,
            "warmup_share": 0.1,
        },
    }
    run = Run.create(parse_experiment(values, "test"))
    prepare(run)
    return run


def command(run: Run) -> list[str]:
    return [sys.executable, "-m", "oapl_core.training.warm_start", str(run.root)]


def trained_in_a_process(run: Run) -> str:
    result = subprocess.run(command(run), capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def metrics(run: Run, epoch: int) -> list[dict[str, Any]]:
    lines = (run.warm_start(epoch) / METRICS_FILE).read_text().splitlines()
    return [json.loads(line) | TIMELESS for line in lines]


def test_a_step_is_the_cross_entropy_of_the_answers_tokens_alone(tmp_path: Path, sharp_model: Path) -> None:
    """As transformers computes it with -100 at every token of the prompts."""
    run = warm_run(tmp_path, sharp_model)
    examples = read_examples(run.demonstrations, UNKNOWN, sharp_model, recorded=False)
    model, job = AutoModelForCausalLM.from_pretrained(sharp_model), make_warm_start(run)
    engine = PlainEngine(Policy(copy.deepcopy(model), 1.0, 32), job.training)
    trainer = Trainer(engine, job.objective, examples, job.training, job.seed, 0, EPOCHS)
    assert [len(batch) for batch in trainer.batches(1)] == [BATCH] * 20 + [ROWS - 20 * BATCH]
    batch = trainer.batches(1)[0]
    step = trainer.step(batch, examples.lengths, 1e-3)
    rows = tables.read_table(run.demonstrations, tables.GROUPS).to_pylist()
    answers = sum(len(rows[row]["response_ids"]) for row in batch)
    total = torch.zeros(())
    for row in (rows[number] for number in batch):
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        labels = ids.clone()
        labels[0, : len(row["prompt_ids"])] = -100
        total = total + model(ids, labels=labels, num_items_in_batch=answers).loss
    total.backward()
    assert step["loss"] == pytest.approx(total.item(), rel=1e-5)
    assert step["token_entropy"] == step["loss"], "the cross-entropy itself, since nothing is subtracted"
    assert (step["response_tokens"], step["kl"], step["log_ratio"]) == (answers, None, None)
    expected = {name: p.grad for name, p in model.named_parameters()}
    found = engine.gradients[0]
    assert expected["model.embed_tokens.weight"] is not None
    for name, gradient in Policy.model_weights(found).items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=2e-6)


def test_round_0_starts_from_it_with_an_optimiser_of_its_own(tmp_path: Path, sharp_model: Path) -> None:
    run = warm_run(tmp_path, sharp_model)
    assert run.policy(0) == run.behavior(0) == run.root / "warm_start" / "epoch_03"
    assert (run.base_model(), run.policy(1)) == (sharp_model, run.checkpoint(0, 1))
    job = make_warm_start(run)
    assert (job.kept_state, job.start, job.lag, list(job.droppable(EPOCHS))) == (None, sharp_model, 0, [])
    assert (job.training.warmup_share, job.training.floor_share, job.training.adam_eps) == (0.1, 0.0, 1e-5)
    assert job.seed != run.config.seed, "its order and adapters are not round 0's"
    with run.writing(run.policy(0), {}, {}) as draft:
        draft.path.mkdir()
        (draft.path / "model.safetensors").write_bytes(b"x")
    write_groups(run, made_groups(sharp_model))
    assert "warm_start/epoch_03" in make_job(run, 0).inputs


def test_a_run_without_one_says_so(tmp_path: Path, sharp_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"the experiment has no \[warm_start\]"):
        warm_start(make_run(tmp_path, sharp_model))


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory, sharp_model: Path) -> Run:
    """Trained without an interruption."""
    run = warm_run(tmp_path_factory.mktemp("warmed"), sharp_model)
    said = trained_in_a_process(run)
    assert f"{EPOCHS * ROWS}/{EPOCHS * ROWS} sequences" in said
    assert "training warm start: ready" in said
    return run


@pytest.mark.slow
def test_it_learns_and_the_ledger_says_what_it_did(warmed: Run, sharp_model: Path) -> None:
    losses = [step["loss"] for epoch in range(1, EPOCHS + 1) for step in metrics(warmed, epoch)]
    assert len(losses) == EPOCHS * STEPS
    assert sum(losses[-STEPS:]) < 0.8 * sum(losses[:STEPS])
    entry = warmed.ledger.artifacts()["warm_start/epoch_03"]
    assert entry.details["policy_hash"] == policy_hash(warmed.policy(0)) != policy_hash(sharp_model)
    assert not {"kl", "log_ratio", "token_log_ratio_abs"} & entry.details.keys()
    assert sorted(entry.inputs) == sorted(["warm_start/demonstrations.parquet", warmed.name(sharp_model)])
    names = ["demonstrations.parquet", "epoch_01", "epoch_02", "epoch_03"]
    assert sorted(path.name for path in warmed.demonstrations.parent.iterdir()) == names
    assert list((warmed.root / "logs" / "tensorboard" / "warm_start").glob("events*"))


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_ended_at_random_steps_it_comes_to_the_same_bits(
    warmed: Run, tmp_path: Path, sharp_model: Path, sent: signal.Signals
) -> None:
    run, draw = warm_run(tmp_path, sharp_model, save_steps=2, trackers=[]), random.Random(int(sent))
    for first in (3, STEPS + 5, 2 * STEPS + 3):
        wanted = first + draw.randrange(8)
        process = subprocess.Popen(command(run), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while _steps_saved(run) < wanted:
            assert process.poll() is None, process.communicate()
            time.sleep(0.001)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == (-sent if sent == signal.SIGKILL else Interrupted.exit_code), errors
    assert "within" not in trained_in_a_process(run)
    for epoch in range(1, EPOCHS + 1):
        files = [r.warm_start(epoch) / "model.safetensors" for r in (run, warmed)]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert metrics(run, epoch) == metrics(warmed, epoch)


def _steps_saved(run: Run) -> int:
    states = (run.demonstrations.parent / "state").glob("epoch_*")
    return max(((int(p.name[6:8]) - 1) * STEPS + int(p.name[-6:]) for p in states), default=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [{"processes": 2}, {"processes": 2, "zero_stage": 3}, {"packing": "on"}],
    ids=["two ranks", "two ranks, ZeRO 3", "packed"],
)
def test_however_it_is_divided_the_weights_are_the_same(
    warmed: Run, tmp_path: Path, sharp_model: Path, training: dict[str, Any]
) -> None:
    run = warm_run(tmp_path, sharp_model, **training)
    trained_in_a_process(run)
    one, other = (load_file(r.policy(0) / "model.safetensors") for r in (run, warmed))
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 2e-5


@pytest.mark.slow
def test_an_adapter_of_its_own_is_trained_and_merged(warmed: Run, tmp_path: Path, sharp_model: Path) -> None:
    run = warm_run(tmp_path, sharp_model, adapter={"rank": 4}, optimizer_state="fresh")
    trained_in_a_process(run)
    assert metrics(run, EPOCHS)[-1]["loss"] < metrics(run, 1)[0]["loss"]
    before, after = (load_file(folder / "model.safetensors") for folder in (sharp_model, run.policy(0)))
    assert before.keys() == after.keys()
    assert torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])
