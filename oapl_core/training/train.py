"""Trains the round's policy on its groups with DeepSpeed: ``python -m oapl_core.training.train RUN_DIR --round N``.

Reads round_NN/3_groups.parquet and the checkpoint that sampled it. Writes one Hugging Face folder for each epoch,
4_checkpoint/<objective>/epoch_NN, with ``training_metrics.jsonl`` (one line for each optimiser step) in it, and before
them what engine and trainer say of the same rollouts (``mismatch.py``). A killed round goes on after the last step
whose state was saved and ends with the same bits. The objective is the config's (docs/objectives.md).
"""

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from oapl_core.errors import DataError, Interrupted
from oapl_core.model_folder import policy_hash
from oapl_core.progress import say
from oapl_core.run_folder.run import Run
from oapl_core.seeds import derive_seed
from oapl_core.stage import run_verb
from oapl_core.training.continuation import drop_unfinished, go_on, goes_on, let_go, refuse_lost, refuse_other_layout
from oapl_core.training.disk import check_room
from oapl_core.training.epochs import train_epochs
from oapl_core.training.examples import Examples, read_examples
from oapl_core.training.interruption import StopRequest, listening
from oapl_core.training.job import Job, make_job
from oapl_core.training.ranks import launch_ranks
from oapl_core.training.retention import drop_weights
from oapl_core.training.state import delete_states, load_state
from oapl_core.training.tracking import check_trackers

if TYPE_CHECKING:
    from oapl_core.training.checkpoint import StoredModel
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.logprobs import Policy
    from oapl_core.training.speed import ModelFlops
    from oapl_core.training.steps import Trainer


def train(run: Run, round_number: int) -> None:
    """Train every epoch of the round that is not there yet.

    Raises:
        DataError: groups or model are missing, damaged, or do not belong together.
        StageFailed: engine and trainer disagree about the rollouts, the loss or the gradient became infinite or not a
            number, a rank was lost, or the disk is too small.
        Interrupted: a signal asked to stop; the state is saved.
    """
    job = make_job(run, round_number)
    if job.is_trained:
        delete_states(job.states)
        drop_weights(job, job.epochs)
        let_go(job)
        say(f"round {round_number}: all {job.epochs} epochs are trained")
        return
    refuse_lost(run, round_number)
    check_trackers(run.config.training.trackers)
    recorded = run.config.training.reference == "behavior"
    if recorded:
        _refuse_unknown_logprobs(run, round_number)
    examples = read_examples(run.groups(round_number), policy_hash(job.behavior), job.behavior, recorded)
    is_rank = "RANK" in os.environ
    if not is_rank:
        drop_unfinished(job)
        check_room(job)
        job.stop_file.unlink(missing_ok=True)
    if not is_rank and (run.config.training.processes > 1 or run.config.training.hostfile):
        launch_ranks(run, round_number, job.stop_file)
    else:
        request = StopRequest(job.stop_file)
        with listening(request.ask):
            _train_rank(job, examples, request)


def _refuse_unknown_logprobs(run: Run, round_number: int) -> None:
    entry = run.ledger.artifacts().get(run.name(run.groups(round_number)))
    unknown = entry.details.get("trust", {}).get("without_logprobs", 0) if entry else 0
    if unknown:
        raise DataError(
            f"{run.groups(round_number)}: {unknown} rollouts have no log-probs of the policy that sampled them, with "
            "which the objective compares; import a data set that has them, sample the round here, or compare with the "
            "trainer's own: training.reference = 'reference'"
        )


def _load(job: Job, examples: Examples) -> "tuple[StoredModel, Policy, ModelFlops]":
    """The round's start, ready to be trained; says how much memory that will need."""
    import torch

    from oapl_core.training.adapters import add_adapter
    from oapl_core.training.checkpoint import load_model
    from oapl_core.training.logprobs import Policy
    from oapl_core.training.memory import estimate_memory
    from oapl_core.training.packing import use_packing
    from oapl_core.training.sequence_parallel import SharedPolicy
    from oapl_core.training.speed import ModelFlops

    config = job.run.config
    stored = load_model(job.start)
    model = stored.model.to(getattr(torch, config.training.dtype))
    if config.training.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    if config.training.adapter:
        seed = derive_seed(config.seed, "adapter", job.round_number)
        add_adapter(model, config.training.adapter, seed)
    flops = ModelFlops.of(model)
    packed = use_packing(model, config.training.packing, model.dtype)
    estimate = estimate_memory(model, config.training, int(os.environ.get("WORLD_SIZE", "1")), max(examples.lengths))
    if os.environ.get("RANK", "0") == "0":
        say(estimate.line())
    kind = SharedPolicy if config.training.sequence_parallel > 1 else Policy
    policy = kind(model, examples.temperature, config.training.logprob_chunk, packed)
    return stored, policy, flops


def _trainer(job: Job, engine: "TrainingEngine", examples: Examples, flops: "ModelFlops", packed: bool) -> "Trainer":
    from oapl_core.training.speed import Speedometer, peak_tflops
    from oapl_core.training.steps import Trainer

    config = job.run.config
    trainer = Trainer(
        engine=engine,
        objective=config.objective,
        examples=examples,
        training=config.training,
        seed=config.seed,
        round_number=job.round_number,
        epochs=job.epochs,
        lag_steps=job.lag_steps,
        packed=packed,
    )
    peak = peak_tflops(config.training.peak_tflops, config.training.dtype, engine.device)
    return replace(trainer, speed=Speedometer(flops, peak, engine.ranks, job.epochs * trainer.steps_per_epoch))


def _train_rank(job: Job, examples: Examples, request: StopRequest) -> None:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.mismatch import check_mismatch
    from oapl_core.training.packing import refuse_leaks
    from oapl_core.training.reference import reference_rows
    from oapl_core.training.sequence_parallel import SharedPolicy

    began, config = time.monotonic(), job.run.config
    continued = goes_on(config, job.round_number)
    if continued:
        refuse_other_layout(job, int(os.environ.get("WORLD_SIZE", "1")))
    stored, policy, flops = _load(job, examples)
    engine = TrainingEngine(policy, config.training)
    packed = policy.packed
    if isinstance(policy, SharedPolicy):
        policy.share(engine)
    if packed:
        refuse_leaks(engine, policy.model.config.get_text_config().vocab_size)
    # before a state is loaded: these look at the weights that the round starts from
    if job.lag and engine.rank == 0:
        say(f"round {job.round_number}: sampled by an older checkpoint, so engine and trainer are not compared")
    if examples.recorded_S.all() and not job.lag:
        check_mismatch(job.run, job.round_number, engine, examples, job.inputs, packed)
    reference = config.training.reference == "reference"
    if reference or config.objective.needs_start:
        scored = reference_rows(job.run, job.round_number, engine, examples, job.inputs, packed)
        examples = replace(examples, rescored=scored) if reference else replace(examples, start=scored)
    reached = job.reached(engine.ranks)
    trainer = _trainer(job, engine, examples, flops, packed)
    if reached.steps or reached.epoch > 1:
        load_state(engine, job.states, reached)
    elif continued:
        go_on(job, engine)
    started_s = time.monotonic() - began
    if engine.rank == 0:
        done = f"epochs done: {reached.epoch - 1} of {job.epochs}" + (
            f", and {reached.steps} steps" * bool(reached.rows)
        )
        say(f"training round {job.round_number}: ready in {started_s:.0f} s, {done}")
    try:
        train_epochs(job, trainer, stored, reached, started_s, request)
    except Interrupted:
        engine.close()
        raise
    engine.close()


if __name__ == "__main__":
    raise SystemExit(run_verb(train, has_round=True))
