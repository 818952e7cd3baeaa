"""A round of demonstrations: cross-entropy on answers alone, by the trainer of every round."""

import copy
import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from oapl_core import tables
from oapl_core.errors import ConfigError, DataError, Interrupted
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.problems.demonstrate import demonstrate
from oapl_core.problems.prepare import prepare
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.training.examples import UNKNOWN, read_examples
from oapl_core.training.job import make_job
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.speed import TIMED
from oapl_core.training.steps import Trainer
from oapl_core.training.train import train
from tests.core.training.made_round import (
    TRAINING,
    made_groups,
    make_run,
    train_command,
    train_in_a_process,
    write_groups,
)
from tests.core.training.plain_engine import PlainEngine
from tests.processes import started

EPOCHS, ROWS, BATCH = 3, 83, 4
STEPS = 21
FIRST_BATCHES, FIRST_LOSS = [[48, 42, 34, 61], [1, 55, 12, 51], [38, 58, 26, 81]], 5.8846433871501205
TIMELESS = dict.fromkeys(TIMED, 0)


def demonstrations(rows: int = ROWS) -> list[dict[str, Any]]:
    """Answers of many lengths; some conversations have two."""
    draw = random.Random(3)

    def words(most: int) -> str:
        return " ".join(draw.choice(("sum", "print", "max", "f(x)", "boxed")) for _ in range(draw.randint(1, most)))

    turns = [("user", 4), ("assistant", 3), ("user", 2), ("assistant", 6)]
    talk = [{"role": role, "content": words(most)} for role, most in turns]
    return [{"statement": words(4), "solution": words(8)} for _ in range(rows - 2)] + [{"messages": talk}]


def shown_run(folder: Path, model: Path, **training: Any) -> Run:
    """A run whose demonstrations are made."""
    folder.mkdir(parents=True, exist_ok=True)
    problem = {"problem_id": "p", "kind": "math", "statement": "What is 1 + 1?", "answer": "2"}
    for name, rows in (
        ("train", [problem]),
        ("heldout", [problem | {"problem_id": "h", "statement": "What is 2 + 2?", "answer": "4"}]),
        ("shown", demonstrations()),
    ):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "name": "shown",
        "runs_dir": folder,
        "model": model,
        "problems": {"train": folder / "train.jsonl", "heldout": folder / "heldout.jsonl", "prompt_style": "plain"},
        "training": TRAINING | {"optimizer_state": "continued", "warmup_share": 0, "floor_share": 1} | training,
        "rounds": [
            {
                "rows": {"demonstrations": folder / "shown.jsonl"},
                "epochs": EPOCHS,
                "training": {"batch_size": BATCH, "learning_rate": 1e-3, "warmup_share": 0.1},
            },
            {"epochs": 1},
            {"epochs": 1},
        ],
    }
    run = Run.create(parse_experiment(values, "test"))
    prepare(run)
    demonstrate(run, 0)
    return run


def metrics(run: Run, epoch: int) -> list[dict[str, Any]]:
    lines = (run.checkpoint(0, epoch) / METRICS_FILE).read_text().splitlines()
    return [json.loads(line) | TIMELESS for line in lines]


def test_a_step_is_the_cross_entropy_of_the_answers_tokens_alone(tmp_path: Path, sharp_model: Path) -> None:
    """As transformers computes it with -100 at every token of the prompts."""
    run = shown_run(tmp_path, sharp_model)
    examples = read_examples(run.groups(0), UNKNOWN, sharp_model, recorded=False)
    model, job = AutoModelForCausalLM.from_pretrained(sharp_model), make_job(run, 0)
    engine = PlainEngine(Policy(copy.deepcopy(model), 1.0, 32), job.training)
    trainer = Trainer(engine, job.objective, examples, job.training, job.seed, 0, EPOCHS)
    assert [len(batch) for batch in trainer.batches(1)] == [BATCH] * 20 + [ROWS - 20 * BATCH]
    batch = trainer.batches(1)[0]
    step = trainer.step(batch, examples.lengths, 1e-3)
    rows = tables.read_table(run.groups(0), tables.GROUPS).to_pylist()
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


def test_the_next_round_starts_from_it_with_an_optimiser_of_its_own(tmp_path: Path, sharp_model: Path) -> None:
    run = shown_run(tmp_path, sharp_model)
    assert run.policy(1) == run.behavior(1) == run.root / "round_00" / "4_checkpoint" / "sft" / "epoch_03"
    assert (run.policy(0), run.policy(2)) == (sharp_model, run.checkpoint(1, 1))
    job = make_job(run, 0)
    assert (job.kept_state, job.start, job.lag, list(job.droppable(EPOCHS))) == (None, sharp_model, 0, [])
    assert (job.training.warmup_share, job.training.floor_share, job.training.adam_eps) == (0.1, 0.0, 1e-5)
    assert [run.config.continues_optimizer(number) for number in range(3)] == [False, False, True]
    with run.writing(run.policy(1), {}, {}) as draft:
        draft.path.mkdir()
        (draft.path / "model.safetensors").write_bytes(b"x")
    write_groups(run, made_groups(sharp_model), 1)
    assert "round_00/4_checkpoint/sft/epoch_03" in make_job(run, 1).inputs


def test_what_its_checkpoints_depend_on_are_its_own_settings(tmp_path: Path, sharp_model: Path) -> None:
    run = shown_run(tmp_path, sharp_model)
    write_groups(run, made_groups(sharp_model), 1)
    with run.writing(run.policy(1), {}, {}) as draft:
        draft.path.mkdir()
    shown, sampled = make_job(run, 0).settings, make_job(run, 1).settings
    assert (shown["objective"]["name"], sampled["objective"]["name"]) == ("sft", "oapl")
    assert (shown["training"]["learning_rate"], shown["training"]["batch_size"]) == (1e-3, BATCH)
    assert sampled["training"] == run.config.training.slice


def test_the_order_of_demonstrations_is_that_of_a_first_round_in_every_version(
    tmp_path: Path, sharp_model: Path
) -> None:
    """The first batches, and the first loss, of the stage that rounds took the place of (7727acf), of the same data."""
    run = shown_run(tmp_path, sharp_model)
    job, examples = make_job(run, 0), read_examples(run.groups(0), UNKNOWN, sharp_model, recorded=False)
    model = AutoModelForCausalLM.from_pretrained(sharp_model)
    engine = PlainEngine(Policy(model, 1.0, 32), job.training)
    trainer = Trainer(engine, job.objective, examples, job.training, job.seed, 0, EPOCHS)
    assert [list(batch) for batch in trainer.batches(1)[:3]] == FIRST_BATCHES
    assert trainer.step(trainer.batches(1)[0], examples.lengths, 1e-3)["loss"] == pytest.approx(FIRST_LOSS, rel=1e-5)


def test_a_round_that_samples_is_not_one(tmp_path: Path, sharp_model: Path) -> None:
    with pytest.raises(DataError, match=r"round 0: samples its rows"):
        demonstrate(make_run(tmp_path, sharp_model), 0)


def test_an_own_objective_that_compares_with_what_sampled_is_refused(
    tmp_path: Path, sharp_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_mine.py").write_text(
        "from oapl_core.objectives import Method\n\nclass Mine(Method):\n    name: str = 'of_mine:Mine'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = shown_run(tmp_path, sharp_model)
    own = run.config.model_dump(mode="json")
    own["rounds"][0]["objective"] = {"name": "of_mine:Mine"}
    with pytest.raises(ConfigError, match=r"`rounds.0.objective.name`: .* nobody sampled demonstrations"):
        train(Run(run.root, parse_experiment(own, "test")), 0)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, sharp_model: Path) -> Run:
    """Trained without an interruption."""
    run = shown_run(tmp_path_factory.mktemp("shown"), sharp_model)
    said = train_in_a_process(run)
    assert f"{EPOCHS * ROWS}/{EPOCHS * ROWS} sequences" in said
    assert "training round 0: ready" in said
    return run


@pytest.mark.slow
def test_it_learns_and_the_ledger_says_what_it_did(shown: Run, sharp_model: Path) -> None:
    losses = [step["loss"] for epoch in range(1, EPOCHS + 1) for step in metrics(shown, epoch)]
    assert len(losses) == EPOCHS * STEPS
    assert sum(losses[-STEPS:]) < 0.8 * sum(losses[:STEPS])
    entry = shown.ledger.artifacts()[shown.name(shown.policy(1))]
    assert entry.details["policy_hash"] == policy_hash(shown.policy(1)) != policy_hash(sharp_model)
    assert not {"kl", "log_ratio", "token_log_ratio_abs"} & entry.details.keys()
    assert sorted(entry.inputs) == sorted(["round_00/3_groups.parquet", shown.name(sharp_model)])
    names = ["epoch_01", "epoch_02", "epoch_03"]
    assert sorted(path.name for path in shown.checkpoints(0).iterdir()) == names
    assert list((shown.root / "logs" / "tensorboard" / "training").glob("events*"))


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_ended_at_random_steps_it_comes_to_the_same_bits(
    shown: Run, tmp_path: Path, sharp_model: Path, sent: signal.Signals
) -> None:
    run, draw = shown_run(tmp_path, sharp_model, save_steps=2, trackers=[]), random.Random(int(sent))
    for first in (3, STEPS + 5, 2 * STEPS + 3):
        wanted = first + draw.randrange(8)
        with started(train_command(run), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while _steps_saved(run) < wanted:
                assert process.poll() is None, process.communicate()
                time.sleep(0.001)
            process.send_signal(sent)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == (-sent if sent == signal.SIGKILL else Interrupted.exit_code), errors
    assert "within" not in train_in_a_process(run)
    for epoch in range(1, EPOCHS + 1):
        files = [r.checkpoint(0, epoch) / "model.safetensors" for r in (run, shown)]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert metrics(run, epoch) == metrics(shown, epoch)


def _steps_saved(run: Run) -> int:
    states = run.states(0).glob("epoch_*")
    return max(((int(p.name[6:8]) - 1) * STEPS + int(p.name[-6:]) for p in states), default=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [{"processes": 2}, {"processes": 2, "zero_stage": 3}, {"packing": "on"}],
    ids=["two ranks", "two ranks, ZeRO 3", "packed"],
)
def test_however_it_is_divided_the_weights_are_the_same(
    shown: Run, tmp_path: Path, sharp_model: Path, training: dict[str, Any]
) -> None:
    run = shown_run(tmp_path, sharp_model, **training)
    train_in_a_process(run)
    one, other = (load_file(r.policy(1) / "model.safetensors") for r in (run, shown))
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 2e-5


@pytest.mark.slow
def test_an_adapter_of_its_own_is_trained_and_merged(shown: Run, tmp_path: Path, sharp_model: Path) -> None:
    run = shown_run(tmp_path, sharp_model, adapter={"rank": 4}, optimizer_state="fresh")
    train_in_a_process(run)
    assert metrics(run, EPOCHS)[-1]["loss"] < metrics(run, 1)[0]["loss"]
    before, after = (load_file(folder / "model.safetensors") for folder in (sharp_model, run.policy(1)))
    assert before.keys() == after.keys()
    assert torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])
