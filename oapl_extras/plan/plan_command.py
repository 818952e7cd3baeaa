"""`oapl plan`: what an experiment will make and cost. Reads problem files and the model's size, starts nothing."""

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer
from rich.console import Console

from deployments.arguments import ExperimentFile, Limit, Overrides
from deployments.terminal import numbers_table, tell
from oapl_core.errors import ConfigError
from oapl_core.planning.fitting import Fit, planned
from oapl_core.planning.model_size import ModelSize, known_size
from oapl_core.planning.warnings import batch_too_large, repeated_statements
from oapl_core.plugins.own_function import check_environment
from oapl_core.pretraining.solutions import check_solutions
from oapl_core.problems.prepare import problems_of
from oapl_core.problems.problem_set import SPLITS
from oapl_core.problems.raw_rows import raw_rows, row_count
from oapl_core.problems.repeated import Repeated
from oapl_core.run_folder.opening import find
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.storage import readable
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.problems import ProblemsConfig
from oapl_core.settings.rounds import RoundConfig
from oapl_extras.plan.estimate import NOTHING, Amount, Estimate, ProblemCounts, estimate, tokens_per_gpu_s
from oapl_extras.plan.speeds import with_speeds

_SPLITS = {"train": "training", "validation": "validation", "heldout": "held-out"}
_ASSUMED = (
    "prompt_tokens answer_tokens answer_spread engine_start_s kept_share verification_s gpu_gb gpu_tb_per_s gpu_tflops "
    "sampling_share training_share"
).split()
_WIDTH = 112
_CHECKED_BYTES = 32 * 2**20  # of problem files: seconds; whoever plans with gigabytes of tests does not wait for them
Row = tuple[str, str, Amount | None, Amount | None]
"""What, how much of it, tokens, GPU-hours."""


def plan(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    parameters: Annotated[
        float | None,
        typer.Option(
            "--model-parameters", help="Number of weights, for example 14.8e9, where there is no model folder."
        ),
    ] = None,
    limit: Limit = None,
) -> None:
    """Estimate what an experiment will make and cost: rollouts, tokens, steps, checkpoints, GPU-hours, disk."""
    given = [] if parameters is None else [f"estimate.model_parameters={parameters!r}"]
    found = find(experiment, [*(overrides or []), *given], limit)
    check_solutions(found)
    # a module of one's own is looked for where the run is started
    if found.config.environment and found.origin.absolute() == Path.cwd():
        check_environment(found.config.environment.model_dump(mode="json"), found.config.engine_python)
    for line in lines(_placed(found)):
        tell(line)


def _placed(run: Run) -> Experiment:
    """Its settings, with what is read here as it is found from the current folder."""
    config = run.config
    files = {split: tuple(map(run.place, config.problems.files(split))) for split in _SPLITS}
    files["exclude"] = tuple(map(run.place, config.problems.exclude))
    changes: dict[str, Any] = {"problems": config.problems.model_copy(update=files)}
    if config.model and config.hub_model is None:
        changes["model"] = run.place(config.model)
    changes["rounds"] = tuple(_round_placed(run, one) for one in config.rounds)
    return config.model_copy(update=changes)


def _round_placed(run: Run, one: RoundConfig) -> RoundConfig:
    if one.demonstrations is None:
        return one
    files = tuple(map(run.place, one.demonstrations.demonstrations))
    return one.model_copy(update={"rows": one.demonstrations.model_copy(update={"demonstrations": files})})


def lines(experiment: Experiment) -> list[str]:
    """What `oapl plan` prints."""
    model, origin = model_size(experiment)
    problems = problem_counts(experiment)
    made = estimate(experiment, model, problems)
    counted = ", ".join(f"{getattr(problems, split):,} {word}" for split, word in _SPLITS.items())
    gpus = experiment.estimate.gpus
    return [
        f"{experiment.name}: estimates by [estimate], and at most: every answer max_tokens long, every group kept",
        f"model: {model.parameters / 1e9:.3g} billion parameters ({origin}); problems: {counted}",
        "",
        *_table(_rows(experiment, made)),
        f"hours on {gpus} GPUs: {made.wall_h.expected:,.1f}, at most {made.wall_h.most:,.1f}",
        "",
        *_fit(Fit(experiment, model, planned(experiment))),
        *_warned(experiment, made, problems),
        "",
        *_disk(made),
        *_assumed(experiment, model),
    ]


def model_size(experiment: Experiment) -> tuple[ModelSize, str]:
    """The model's size, and where it is known from.

    Raises:
        ConfigError: its folder is not there and `estimate.model_parameters` is not given.
    """
    known = known_size(experiment)
    if known is None:
        folder = experiment.model
        raise ConfigError(f"`model`: {folder} is not there; say how large it is, for example --model-parameters 14.8e9")
    return known


def problem_counts(experiment: Experiment) -> ProblemCounts:
    """Problems of each split: counted where the files are, else as `[estimate]` says.

    Raises:
        ConfigError: neither.
        DataError: a file that is there is not what a run accepts.
    """
    (train, train_bytes), (validation, validation_bytes), (heldout, heldout_bytes) = (
        _count(experiment, split) for split in _SPLITS
    )
    repeated = _check(experiment.problems)
    size = train_bytes + validation_bytes + heldout_bytes
    return ProblemCounts(train, validation, heldout, size, _demonstrations(experiment), repeated)


def _check(sets: ProblemsConfig) -> dict[str, Any]:
    """Read the splits that are there as a run does, which refuses what is no problem, unless they are large.

    Returns what of the measured ones is trained on.
    """
    repeated, there = Repeated(), [split for split in SPLITS if all(file.is_file() for file in sets.files(split))]
    if sum(file.stat().st_size for split in there for file in sets.files(split)) <= _CHECKED_BYTES:
        deque(repeated.watched(problems_of(sets, there)), maxlen=0)
    return repeated.details


def _demonstrations(experiment: Experiment) -> dict[int, int]:
    """Rows of each round of demonstrations."""
    found = {}
    for number, one in enumerate(experiment.rounds):
        if (shown := one.demonstrations) is None:
            continue
        missing = next((file for file in shown.demonstrations if not file.is_file()), None)
        if missing is not None:
            raise ConfigError(f"`rounds.{number}.rows`: {missing} is not there; make it, or plan without that round")
        counts = [row_count(file) for file in shown.demonstrations]
        found[number] = sum(count if shown.limit is None else min(count, shown.limit) for count in counts)
    return found


def _count(experiment: Experiment, split: str) -> tuple[int, float]:
    """Problems of a split, and their bytes."""
    files, limit = experiment.problems.files(split), experiment.problems.limit
    if all(file.is_file() for file in files):
        counts = [row_count(file) for file in files]
        taken = [count if limit is None else min(count, limit) for count in counts]
        if split == "train" and (excluded := _excluded(experiment)):
            # by name: a list may name problems of other files, too
            taken = [sum(name not in excluded for name in islice(_names(file), limit)) for file in files]
        sizes = [
            file.stat().st_size * part / max(1, whole) for file, part, whole in zip(files, taken, counts, strict=True)
        ]
        return sum(taken), sum(sizes)
    # a limit holds for each file of a split, as when problems are read
    stated: int | None = getattr(experiment.estimate, f"{split}_problems")
    if stated is None:
        missing = next(file for file in files if not file.is_file())
        raise ConfigError(f"`problems.{split}`: {missing} is not there; make it, or give estimate.{split}_problems=N")
    count = stated if limit is None else min(stated, limit * len(files))
    return count, 1000 * experiment.estimate.problem_kb * count


def _excluded(experiment: Experiment) -> set[str]:
    missing = next((file for file in experiment.problems.exclude if not file.is_file()), None)
    if missing is not None:
        raise ConfigError(f"`problems.exclude`: {missing} is not there; make it with `oapl problems --screen`")
    return {name for file in experiment.problems.exclude for name in _names(file)}


def _names(file: Path) -> Iterator[str]:
    """`problem_id` of each row."""
    import pyarrow.parquet as pq

    if file.suffix != ".parquet":
        yield from (str(row.get("problem_id")) for _, row in raw_rows(file) if isinstance(row, dict))
        return
    # a column alone: the tests beside it may be gigabytes
    yield from map(str, pq.read_table(file, columns=["problem_id"])["problem_id"].to_pylist())


def _rows(experiment: Experiment, made: Estimate) -> Iterator[Row]:
    number = 0
    # rounds of equal settings follow each other in their fifties (`repeat`): one row for all of them
    for one, equal in groupby(made.rounds):
        count, settings = len(list(equal)), experiment.rounds[number]
        label = f"round {number}" if count == 1 else f"rounds {number}-{number + count - 1}, each"
        number += count
        if settings.demonstrations:
            yield f"{label}: training", f"{_amount(one.sequences)} demonstrations", None, one.training_h
            yield "", _steps(one.steps, one.checkpoints), None, None
            continue
        drawn = f", drawn by {settings.draw}" if settings.draw == "difficulty" else ""
        what = f"{one.rollouts:,} answers to {one.problems:,} problems{drawn}"
        yield f"{label}: sampling", what, one.tokens, one.sampling_h
        yield (
            "  verification",
            f"{one.rollouts * experiment.estimate.verification_s / 3600:,.2f} core-hours",
            None,
            None,
        )
        yield "  training", f"{_amount(one.sequences)} sequences", None, one.training_h
        yield "", _steps(one.steps, one.checkpoints), None, None
    measured = made.evaluation
    what = f"{measured.answers:,} answers; checkpoints measured: {measured.checkpoints}"
    yield "evaluation", what, measured.tokens, measured.sampling_h
    tokens = sum((one.tokens for one in made.rounds), measured.tokens)
    yield "in all", f"{made.rollouts + measured.answers:,} answers", tokens, made.hours
    steps, checkpoints = sum((one.steps for one in made.rounds), NOTHING), sum(one.checkpoints for one in made.rounds)
    yield "", _steps(steps, checkpoints), None, None


def _steps(steps: Amount, checkpoints: int) -> str:
    return f"{_amount(steps)} steps; checkpoints: {checkpoints:,}"


def _table(rows: Iterable[Row]) -> list[str]:
    table = numbers_table("", "what", "M tokens", "at most", "GPU-hours", "at most", text=["what"], pad_edge=False)
    for label, what, tokens, hours in rows:
        counts = [f"{number / 1e6:,.1f}" for number in (tokens.expected, tokens.most)] if tokens else ["", ""]
        times = [f"{number:,.1f}" for number in (hours.expected, hours.most)] if hours else ["", ""]
        table.add_row(label, what, *counts, *times)
    # not the terminal's width: headers of experiments hold this table, and a narrow one would cut it
    wide = Console(width=160, file=io.StringIO())
    with wide.capture() as shown:
        wide.print(table, highlight=False)
    return [line.rstrip() for line in shown.get().splitlines()]


def _disk(made: Estimate) -> list[str]:
    kinds = ", ".join(f"{kind} {_amount(amount, readable)}" for kind, amount in made.disk.items())
    total = _amount(sum(made.disk.values(), NOTHING), readable)
    states = f"and {readable(made.states)} of states while a round trains"
    return wrap(f"disk: {kinds}, in all {total}, {states}", _WIDTH, subsequent_indent="  ")


def _fit(fit: Fit) -> list[str]:
    """What a GPU would hold, and what stands against starting."""
    told = [*fit.lines(), *(f"{'refused' if found.refuses else 'warning'}: {found.line}" for found in fit.findings())]
    return [line for text in told for line in wrap(text, _WIDTH, subsequent_indent="  ")]


def _warned(experiment: Experiment, made: Estimate, problems: ProblemCounts) -> list[str]:
    """What could be started and is hardly meant."""
    found = [repeated_statements(problems.repeated)]
    seen = set[int]()
    for number, one in enumerate(made.rounds):
        batch = experiment.training_of(number).batch_size
        line = batch_too_large(f"round {number}", round(one.sequences.expected), batch)
        # rounds of equal settings follow each other in their fifties: the first stands for all
        found += [line] if line and batch not in seen else []
        seen |= {batch} if line else set()
    return [line for text in found if text for line in wrap(f"warning: {text}", _WIDTH, subsequent_indent="  ")]


def _assumed(experiment: Experiment, model: ModelSize) -> list[str]:
    most = experiment.sampling.max_tokens
    assumed, sources = with_speeds(experiment.estimate, model.parameters)
    values = ", ".join(
        f"{key} {getattr(assumed, key):g}" + (f" ({sources[key]})" if key in sources else "") for key in _ASSUMED
    )
    lengths = (min(assumed.answer_tokens, most), most)
    usual, slowest = (f"{tokens_per_gpu_s(experiment, model, length, most):,.0f}" for length in lengths)
    speed = f"which gives {usual} sampled tokens/s per GPU ({slowest} at max_tokens)"
    text = f"assumed (sources: oapl_core/settings/estimate.py; override with estimate.KEY=VALUE): {values}, {speed}"
    return wrap(text, _WIDTH, subsequent_indent="  ")


def _amount(amount: Amount, write: Callable[[float], str] = "{:,.0f}".format) -> str:
    if amount.expected == amount.most:
        return write(amount.expected)
    return f"{write(amount.expected)} (at most {write(amount.most)})"
