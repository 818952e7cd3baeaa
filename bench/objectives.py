"""Step time of every objective against OAPL's: ``python -m bench.objectives [--rounds N] [--only WORD ...]``.

One process, one model, one batch of rollouts (lengths log-normal), the real engine; a whole optimiser step of each
objective in turn, several rounds of that, the order turned by one each round. Prints one JSON line for each objective:
the least CPU time of a step over OAPL's, and what the objective itself takes (advantages are made once a round and not
counted): statistics, loss and its derivative by the log-probs, as a share of OAPL's step. The first says what is paid,
the second is precise: everything else of a step is the same code on the same numbers.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bench.trainer import SHAPE, make_rollouts, write_model
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.objectives import Inputs, Method, Objective, shipped

SEQUENCES, BUDGET, RATE = 8, 1024, 1e-7
TAPERED = {"name": "oapl_variant", "divergence": "tapered"}
FORMS: list[dict[str, Any]] = [
    TAPERED,
    {"name": "oapl_variant", "divergence": "asymmetric", "regression_temperature_below": 0.3},
    {"name": "oapl_variant", "anchors_good": False},
    {"name": "oapl_variant", "learns_from_bad": False},
    {**TAPERED, "anchors_good": False},
    {**TAPERED, "taper_margin": 1.0},
    {**TAPERED, "taper_length_exponent": 0.5},
    {**TAPERED, "taper_of": "token"},
    {**TAPERED, "value": "tapered"},
    {"name": "topr", "value": "log_mean_exp"},
    {"name": "oapl", "masks": [{"low": 0.5, "high": 5.0}, {"of": "mean", "low": 0.97, "answers": "negative"}]},
    {"name": "oapl", "start_anchor": {}},
    {"name": "oapl", "effective_rate": {}},
    {"name": "oapl", "slow_fast": {}},
]
"""Forms of one objective that compute something else."""


def measured(words: list[str]) -> dict[str, Method]:
    """OAPL, every objective with its defaults, and the forms, by label; some words choose those that have one."""
    every = [*({"name": name} for name in shipped()), *FORMS]
    labels = {" ".join([one["name"], *(f"{k}={v}" for k, v in one.items() if k != "name")]): one for one in every}
    chosen = [label for label in labels if label == "oapl" or not words or any(word in label for word in words)]
    made = TypeAdapter(Objective)
    return {label: made.validate_python(labels[label]).loaded("behavior") for label in chosen}


def trainers(folder: Path, objectives: dict[str, Method]) -> dict[str, Any]:
    """One for each objective, around one engine."""
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import read_examples
    from oapl_core.training.job import make_job
    from oapl_core.training.model.checkpoint import load_model
    from oapl_core.training.model.logprobs import Policy
    from oapl_core.training.reference import reference_rows
    from oapl_core.training.steps import trainer_of
    from tests.core.training.made_round import make_run, write_groups

    model_dir = write_model(folder / "model", **SHAPE)
    run = make_run(folder, model_dir, tokens_per_micro_batch=BUDGET, logprob_chunk=1024)
    write_groups(run, make_rollouts(model_dir, SEQUENCES))
    examples = read_examples(run.groups(0), policy_hash(model_dir), model_dir)
    training = run.config.training
    engine = TrainingEngine(Policy(load_model(model_dir).model, 1.0, training.logprob_chunk), training)
    with_start = replace(examples, start=reference_rows(make_job(run, 0), engine, examples))
    return {
        label: trainer_of(objective)(
            engine=engine,
            objective=objective,
            examples=with_start if objective.needs_start else examples,
            training=training,
            seed=0,
            round_number=0,
            epochs=1,
        )
        for label, objective in objectives.items()
    }


def made_inputs(trainer: Any) -> Inputs:
    """The step as one micro-batch, with log-ratios as after some updates."""
    import torch

    rows = list(range(SEQUENCES))
    lengths = torch.from_numpy(trainer.examples.response_length_S)
    mask_ST = torch.arange(int(lengths.max())) < lengths[:, None]
    log_ratio_ST = torch.randn(mask_ST.shape, generator=torch.Generator().manual_seed(0)) * 0.2 * mask_ST
    inputs: Inputs = trainer.inputs(log_ratio_ST.requires_grad_(), mask_ST, rows, trainer.sizes(rows))
    zeros_ST = torch.zeros_like(log_ratio_ST)
    return replace(inputs, old_log_ratio_ST=zeros_ST, behavior_ST=zeros_ST - 1.0)


def own_time(trainer: Any, repetitions: int = 15) -> float:
    """CPU seconds of statistics, loss and derivative, the least of some."""
    times = []
    for _ in range(repetitions):
        inputs = made_inputs(trainer)
        began = time.process_time()
        trainer.objective.loss_of_step(inputs).value.backward()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="those whose label has one of the words")
    given = parser.parse_args()
    rounds: int = given.rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        made = trainers(Path(folder), measured(given.only))
        names, batch = list(made), list(range(SEQUENCES))
        lengths = made["oapl"].examples.lengths
        seconds: dict[str, list[float]] = {name: [] for name in names}
        # the first step of a process is slow, and a moving average has nothing to score before it
        for name in names:
            if name == "oapl" or made[name].objective.trainers:
                made[name].step(batch, lengths, RATE)
        for number in range(rounds):
            for name in names[number:] + names[:number]:
                began = time.process_time()
                made[name].step(batch, lengths, RATE)
                seconds[name].append(time.process_time() - began)
        oapl, base = min(seconds["oapl"]), own_time(made["oapl"])
        print(json.dumps({"sequences": SEQUENCES, "tokens": sum(lengths), "oapl_step_s": round(oapl, 3)}))
        for name in names:
            own = own_time(made[name])
            line = {
                "name": name,
                "scope": made[name].objective.scope,
                "step": round(min(seconds[name]) / oapl, 3),
                "own_share": round(own / oapl, 4),
                "more_than_oapl": round((own - base) / oapl, 4),
            }
            print(json.dumps(line))
        made["oapl"].engine.close()


if __name__ == "__main__":
    main()
