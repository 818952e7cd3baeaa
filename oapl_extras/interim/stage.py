"""The row of the table of stages: when a run is evaluated before its end, what that makes, costs and measures.

Found by name. The verb is interim.py.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from oapl_core.planning.room import Need, answered, answers, heldout_answers, problems_of
from oapl_core.planning.stage_row import Stage, unfinished_answers
from oapl_core.run_folder.measurement import Measurement
from oapl_core.run_folder.run import EVALUATION_DIR, Run
from oapl_core.settings.experiment import Experiment

SAMPLER = "rollouts.generate"
"""Verb that samples rounds; the table of stages, which looks this row up, has it, too."""


def results(run: Run, number: int) -> Path:
    """Return the file of what was measured after round ``number``."""
    return run.evaluations(number).with_suffix(".json")


def first_of(config: Experiment) -> int:
    """Return the round of the first evaluation, with which the base model answers, too."""
    return config.evaluated_rounds[0]


def _after(config: Experiment) -> tuple[int, ...]:
    # the last is the end of the run, which has a stage of its own
    return config.evaluated_rounds[:-1]


def epochs_after(config: Experiment, number: int) -> tuple[int, ...]:
    """Return the epochs of round ``number``, from 1, that are measured after it: the last, or every one."""
    last = config.rounds[number].epochs
    return tuple(range(1, last + 1)) if config.evaluation.every_rounds == "epoch" else (last,)


def measured_after(config: Experiment, number: int) -> dict[str, tuple[int, int]]:
    """Return round and epoch of the checkpoints that are measured after round ``number``, by the names of results."""
    last = config.rounds[number].epochs
    names = {epoch: f"round {number}" + (f" epoch {epoch}" if epoch < last else "") for epoch in range(1, last + 1)}
    return {names[epoch]: (number, epoch) for epoch in epochs_after(config, number)}


def earlier(run: Run) -> dict[str, tuple[int, int]]:
    """Return round and epoch of every checkpoint that the run measures before its end, by the names of results."""
    return {name: place for k in _after(run.config) for name, place in measured_after(run.config, k).items()}


def room(run: Run, number: int) -> Need | None:
    """Estimate the answers of the evaluation after round ``number``; None where there is none."""
    settings = run.config.evaluation
    if number not in _after(run.config):
        return None
    asked = problems_of(run, "heldout")
    heldout = min(asked, settings.heldout_problems or asked) * heldout_answers(settings)
    checkpoints = len(epochs_after(run.config, number))
    rows = heldout * (checkpoints + (number == first_of(run.config)))
    rows += problems_of(run, "validation") * settings.validation_samples * checkpoints
    what = f"round {number}: {rows:,} answers of the evaluation need"
    return answers(run, number, what, max(0, rows - answered(run, number)))


def _answers(config: Experiment, problems: Mapping[str, int]) -> int:
    settings, checkpoints = config.evaluation, len(_after(config))
    every = sum(len(epochs_after(config, number)) for number in _after(config))
    # held-out answers of a round's last epoch are used again at the end
    heldout = min(problems["heldout"], settings.heldout_problems or problems["heldout"]) * heldout_answers(settings)
    return every * problems["validation"] * settings.validation_samples + (every - checkpoints) * heldout


def _measured(run: Run) -> Iterator[Measurement]:
    made, by_epoch = run.ledger.artifacts(), run.config.evaluation.every_rounds == "epoch"
    kind = "_by_epoch" if by_epoch else ""
    axes = {
        "heldout": f"heldout{'_subset' if run.config.evaluation.heldout_problems else ''}{kind}",
        "validation": f"validation{kind or '_by_round'}",
    }
    epochs = [one.epochs for one in run.config.rounds]
    for number in _after(run.config):
        entry = made.get(run.name(results(run, number)))
        details = entry.details if entry else {}
        for split in ("validation", "heldout"):
            is_deciding = split == details.get("deciding", {}).get("split")
            found, places = details.get(split, {}), measured_after(run.config, number)
            # the ledger has names in the order of the alphabet
            for checkpoint in sorted(found, key=lambda name: places.get(name, (-1, 0))):
                of_round, epoch = places.get(checkpoint, (-1, 0))
                trained = sum(epochs[:number]) + epoch if by_epoch else number + 1
                place = (axes[split], trained if epoch else 0, number, checkpoint, split)
                yield Measurement(*place, found[checkpoint], is_deciding and epoch == epochs[of_round])


def gpus_of_both(config: Experiment) -> int:
    """Count the GPUs that engines of a round's sampling and of an evaluation use together on one machine."""
    return config.engine_gpus(SAMPLER) + config.engine_gpus(INTERIM.verb)


def fits_beside(config: Experiment, gpus: int) -> bool:
    """Tell whether an evaluation has room during a round's sampling, on a machine with so many ``gpus``.

    It has where they are on different machines ([fleet]), servers sample, or there are GPUs for the engines of both.
    """
    places = {_place(config, verb) for verb in (SAMPLER, INTERIM.verb)}
    if len(places) > 1:
        return True
    if places != {None}:
        return False  # other machines, whose GPUs nobody sees from here
    # Ray places engines by what is free in its cluster, and not by what this machine has
    is_counted = config.engine.distributed_executor_backend != "ray"
    return not config.engine_gpus(SAMPLER) or (is_counted and gpus >= gpus_of_both(config))


def _place(config: Experiment, verb: str) -> tuple[str, str | None] | None:
    """Return who starts processes of ``verb`` and where; None: this machine."""
    machines = config.machines(verb)
    return (machines.runner, machines.at) if machines and config.is_elsewhere(verb) else None


def planned(config: Experiment) -> tuple[str, str] | None:
    """Say for `oapl plan` when evaluations before the end are made; None where there is none, or no sampling beside."""
    sampled = [number for number in _after(config) if config.rounds[number + 1].source.is_sampled]
    if not sampled or config.pipeline:
        return None
    does = "the hours count one after the other"
    if fits_beside(config, 0):
        return INTERIM.title, f"during the next round's sampling, which its engines leave room for; {does}"
    if _place(config, SAMPLER) is not None or config.engine.distributed_executor_backend == "ray":
        return INTERIM.title, "before the next round's sampling, with which it shares machines"
    least = f"during the next round's sampling where a machine has at least {gpus_of_both(config)} GPUs"
    return INTERIM.title, f"{least}, else before it; {does}"


INTERIM = Stage(
    "interim-evaluation",
    "evaluation.interim",
    (f"{EVALUATION_DIR}/",),
    of_round=True,
    reads=lambda run, number: tuple(run.checkpoint(number, epoch) for epoch in epochs_after(run.config, number)),
    decided_by=(
        *("evaluation", "seed", "verifier", "reward", "environment"),
        *("engine.dtype", "engine.options", "sampling.stop", "sampling.max_tokens"),
    ),
    scratch=unfinished_answers,
    retries=2,
    needs=("gpu", "sandbox"),
    room="interim-evaluation",
    measured=_measured,
    after=_after,
    answers=_answers,
    place="oapl_extras.interim.interim",
)
