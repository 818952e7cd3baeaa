"""Trains the round's policy on its groups with DeepSpeed: ``python -m oapl_core.training.train RUN_DIR --round N``.

Reads round_NN/3_groups.parquet and the checkpoint that sampled it. Writes one Hugging Face folder for each epoch,
4_checkpoint/<objective>/epoch_NN, with ``training_metrics.jsonl`` (one line for each optimiser step) in it, and before
them what engine and trainer say of the same rollouts (``mismatch.py``). A killed round goes on after its last finished
epoch and ends with the same bits. The objective is the config's (docs/objectives.md).
"""

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.artifacts import Run, policy_hash
from oapl_core.errors import DataError
from oapl_core.objectives import make_objective
from oapl_core.progress import Progress, say
from oapl_core.seeds import derive_seed
from oapl_core.stage import run_verb
from oapl_core.training.examples import Examples, read_examples
from oapl_core.training.state import delete_states, load_state, save_state, saved_epoch
from oapl_core.training.tracking import Tracking, check_trackers

if TYPE_CHECKING:
    from oapl_core.training.checkpoint import StoredModel
    from oapl_core.training.metrics import Metrics
    from oapl_core.training.steps import Trainer

METRICS_FILE = "training_metrics.jsonl"


@dataclass(frozen=True)
class _Job:
    """One round's training and what its artifacts depend on."""

    run: Run
    round_number: int
    epochs: int
    inputs: Mapping[str, str]
    settings: Mapping[str, Any]

    @property
    def start(self) -> Path:
        """The policy that the round starts from."""
        return self.run.policy(self.round_number)

    @property
    def states(self) -> Path:
        return self.run.checkpoints(self.round_number) / "state"

    @property
    def owner(self) -> dict[str, Any]:
        """What a saved state must belong to."""
        return {"inputs": dict(self.inputs), "settings": dict(self.settings)}

    def checkpoint(self, epoch: int) -> Path:
        return self.run.checkpoint(self.round_number, epoch)

    def is_done(self, epoch: int) -> bool:
        return self.run.is_done(self.checkpoint(epoch), self.inputs, self.settings)

    def finished_epochs(self) -> int:
        """Epochs that need not be trained again: checkpoints are there, and the state to go on from."""
        saved = saved_epoch(self.states, self.epochs, self.owner)
        return saved if all(self.is_done(epoch) for epoch in range(1, saved + 1)) else 0


def train(run: Run, round_number: int) -> None:
    """Train every epoch of the round that is not there yet.

    Raises:
        DataError: groups or model are missing, damaged, or do not belong together.
        StageFailed: engine and trainer disagree about the rollouts, or the loss or the gradient became infinite or not
            a number.
    """
    job = _job(run, round_number)
    if all(job.is_done(epoch) for epoch in range(1, job.epochs + 1)):
        delete_states(job.states)
        say(f"round {round_number}: all {job.epochs} epochs are trained")
        return
    check_trackers(run.config.training.trackers)
    _refuse_unknown_logprobs(run, round_number)
    examples = read_examples(run.groups(round_number), policy_hash(job.start), job.start)
    if run.config.training.processes > 1 and "RANK" not in os.environ:
        _launch_ranks(run, round_number)
    else:
        _train_rank(job, examples)


def _job(run: Run, round_number: int) -> _Job:
    config = run.config
    if not 0 <= round_number < len(config.rounds):
        raise DataError(f"round {round_number}: the experiment has rounds 0..{len(config.rounds) - 1}")
    epochs = config.rounds[round_number].epochs
    settings = {
        "training": config.training.slice, "objective": config.objective.model_dump(mode="json"),
        "seed": config.seed, "round": round_number, "epochs": epochs,
    }  # fmt: skip
    return _Job(run, round_number, epochs, run.inputs([run.groups(round_number), run.policy(round_number)]), settings)


def _refuse_unknown_logprobs(run: Run, round_number: int) -> None:
    entry = run.ledger.artifacts().get(run.name(run.groups(round_number)))
    unknown = entry.details.get("trust", {}).get("without_logprobs", 0) if entry else 0
    if unknown:
        raise DataError(
            f"{run.groups(round_number)}: {unknown} rollouts have no log-probs of the policy that sampled them, with "
            "which the objective compares; import a data set that has them, or sample the round here"
        )


def _launch_ranks(run: Run, round_number: int) -> None:
    """Run this verb again in ``training.processes`` ranks; a failed rank has said why on standard error."""
    processes = run.config.training.processes
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // processes)), **os.environ}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    verb = ["-m", "oapl_core.training.train", str(run.root), "--round", str(round_number)]
    code = subprocess.call([*launcher, *verb], env=environment)
    if code:
        raise SystemExit(code)  # no line of our own: the rank's error line must stay the last one


def _train_rank(job: _Job, examples: Examples) -> None:
    import torch

    from oapl_core.training.checkpoint import load_model
    from oapl_core.training.engine import Engine
    from oapl_core.training.logprobs import Policy
    from oapl_core.training.mismatch import check_mismatch
    from oapl_core.training.speed import ModelFlops, Speedometer, peak_tflops
    from oapl_core.training.steps import Trainer

    began, config = time.monotonic(), job.run.config
    stored = load_model(job.start)
    model = stored.model.to(getattr(torch, config.training.dtype))
    if config.training.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    flops = ModelFlops.of(model)
    engine = Engine(Policy(model, examples.temperature, config.training.logprob_chunk), config.training)
    objective = make_objective(config.objective)
    reward_S = torch.from_numpy(examples.reward_S)
    finished = job.finished_epochs()
    steps = math.ceil(len(examples.reward_S) / config.training.batch_size)
    peak = peak_tflops(config.training.peak_tflops, config.training.dtype, engine.device)
    trainer = Trainer(
        engine=engine,
        objective=objective,
        examples=examples,
        reward_S=reward_S,
        advantage_S=objective.advantages(reward_S, torch.from_numpy(examples.group_S)),
        training=config.training,
        seed=config.seed,
        round_number=job.round_number,
        epochs=job.epochs,
        speed=Speedometer(flops, peak, engine.ranks, job.epochs * steps),
    )
    check_mismatch(job.run, job.round_number, engine, examples, job.inputs)
    if finished:
        load_state(engine, job.states, finished)
    started_s = time.monotonic() - began
    if engine.rank == 0:
        say(f"training round {job.round_number}: ready in {started_s:.0f} s, epochs done: {finished} of {job.epochs}")
    _train_epochs(job, trainer, stored, finished, started_s)
    engine.close()


def _train_epochs(job: _Job, trainer: "Trainer", stored: "StoredModel", finished: int, started_s: float) -> None:
    import torch

    from oapl_core.training.logprobs import Policy

    engine, sequences = trainer.engine, len(trainer.examples.reward_S)
    name = f"round_{job.round_number:02d}_{job.run.config.objective.name}"
    tracking = Tracking(trainer.training.trackers if engine.rank == 0 else (), job.run.root, name, job.settings)
    with (
        closing(tracking),
        Progress(f"training round {job.round_number}", job.epochs * sequences, "sequences") as progress,
    ):
        progress.skip(finished * sequences)

        def report(step: "Metrics") -> None:
            tracking.log(step)
            if engine.rank == 0:
                progress.advance(step["sequences"], f"epoch {step['epoch']} loss {step['loss']:.4f}")

        for epoch in range(finished + 1, job.epochs + 1):
            # nothing draws from it today; a model with dropout would, and must draw the same after a resume
            torch.manual_seed(derive_seed(trainer.seed, "training", job.round_number, epoch, engine.rank))
            began = time.monotonic()
            steps = trainer.epoch(epoch, report)
            seconds, weights = time.monotonic() - began, Policy.model_weights(engine.weights())
            if engine.rank == 0 and not job.is_done(epoch):
                with job.run.writing(job.checkpoint(epoch), job.inputs, job.settings) as draft:
                    stored.export(weights, draft.path)
                    lines = "".join(json.dumps(step) + "\n" for step in steps)
                    (draft.path / METRICS_FILE).write_text(lines, encoding="utf-8")
                    draft.rows = sequences
                    draft.details = _details(steps, seconds, started_s, policy_hash(draft.path))
            if epoch < job.epochs:
                save_state(engine, job.states, epoch, job.owner)
    if engine.rank == 0:
        delete_states(job.states)


def _details(steps: "Sequence[Metrics]", seconds: float, started_s: float, identity: str) -> dict[str, Any]:
    """What the ledger says about an epoch: sums, and means weighted by sequences or tokens."""

    def mean(key: str, weight: str = "sequences") -> float:
        rows = [(float(s[key]), int(s[weight])) for s in steps if s[key] is not None]
        return sum(value * w for value, w in rows) / max(1, sum(w for _, w in rows))

    tokens, sequences = sum(s["tokens"] for s in steps), sum(s["sequences"] for s in steps)
    return {
        "policy_hash": identity,
        "epoch": steps[0]["epoch"],
        "steps": len(steps),
        "sequences": sequences,
        "tokens": tokens,
        "response_tokens": sum(s["response_tokens"] for s in steps),
        "loss": mean("loss"),
        "last_learning_rate": steps[-1]["learning_rate"],
        "grad_norm": mean("grad_norm"),
        "log_ratio": mean("log_ratio"),
        "log_ratio_right": mean("log_ratio_right"),
        "log_ratio_wrong": mean("log_ratio_wrong"),
        "token_log_ratio_abs": mean("token_log_ratio_abs", "response_tokens"),
        "kl": mean("kl", "response_tokens"),
        "token_entropy": mean("token_entropy", "response_tokens"),
        "clipped_share": sum(s["clipped"] for s in steps) / len(steps),
        "mfu": mean("mfu", "tokens") if steps[0].get("mfu") is not None else None,
        "start_up_s": round(started_s, 3),
        "epoch_s": round(seconds, 3),
        "tokens_per_s": round(tokens / seconds, 1),
        "sequences_per_s": round(sequences / seconds, 1),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


if __name__ == "__main__":
    raise SystemExit(run_verb(train, has_round=True))
