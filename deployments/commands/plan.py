"""`oapl plan`: what an experiment will make and cost. Reads sizes of problem files and of the model, starts nothing."""

import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from deployments.arguments import ExperimentFile, Limit, Overrides
from deployments.terminal import tell
from oapl_core.errors import ConfigError
from oapl_core.model_folder import model_config, tensors
from oapl_core.planning.estimate import (
    NOTHING,
    Amount,
    Estimate,
    ModelSize,
    ProblemCounts,
    RoundEstimate,
    estimate,
    tokens_per_gpu_s,
)
from oapl_core.run_folder.opening import find
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.storage import readable
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.pretrain import PretrainConfig
from oapl_core.tables import count_rows

_SPLITS = {"train": "training", "validation": "validation", "heldout": "held-out"}
_COLUMNS = "{:<29}{:<46}{:>9}{:>9}{:>11}{:>9}"


def plan(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    parameters: Annotated[
        float | None, typer.Option("--model-parameters", help="Such as 14.8e9, where the model's folder is not there.")
    ] = None,
    limit: Limit = None,
) -> None:
    """Estimate what an experiment will make and cost: rollouts, tokens, steps, checkpoints, GPU-hours, disk."""
    given = [] if parameters is None else [f"estimate.model_parameters={parameters!r}"]
    for line in lines(_placed(find(experiment, [*(overrides or []), *given], limit))):
        tell(line)


def _placed(run: Run) -> Experiment:
    """Its settings, with what is read here as it is found from the current folder."""
    config = run.config
    files = {split: tuple(map(run.place, config.problems.files(split))) for split in _SPLITS}
    changes = {"problems": config.problems.model_copy(update=files), "model": config.model and run.place(config.model)}
    return config.model_copy(update=changes)


def lines(experiment: Experiment) -> list[str]:
    """What `oapl plan` prints."""
    model, origin = model_size(experiment)
    problems = problem_counts(experiment)
    found = estimate(experiment, model, problems)
    counted = ", ".join(f"{getattr(problems, split):,} {word}" for split, word in _SPLITS.items())
    return [
        f"{experiment.name}: estimates by [estimate], and at most: every answer max_tokens long, every group kept",
        f"model: {model.parameters / 1e9:.3g} billion parameters ({origin}); problems: {counted}",
        "",
        _COLUMNS.format("", "", "tokens", "at most", "GPU-hours", "at most").rstrip(),
        *_round_lines(experiment, found),
        *_evaluation_lines(experiment, found),
        "",
        *_disk_lines(found),
        *_assumed_lines(experiment, model, found),
    ]


def model_size(experiment: Experiment) -> tuple[ModelSize, str]:
    """The model's size, and where it is known from.

    Raises:
        ConfigError: its folder is not there and `estimate.model_parameters` is not given.
    """
    if experiment.pretrain is not None:
        return _pretrained(experiment.pretrain), "made by [pretrain], at most"
    folder, stated = experiment.model, experiment.estimate.model_parameters
    assert folder is not None, "an experiment has a model or makes one"
    if folder.is_dir():
        return _stored(folder), str(folder)
    if stated is None:
        raise ConfigError(f"`model`: {folder} is not there; say how large it is, for example --model-parameters 14.8e9")
    return ModelSize.like(stated), "estimate.model_parameters"


def _stored(folder: Path) -> ModelSize:
    config = model_config(folder)
    config = config.get("text_config", config)
    parameters = sum(math.prod(shape) for shape in tensors(folder).values())
    parameters = parameters or sum(file.stat().st_size for file in folder.glob("*.bin")) // 2  # pickles: not opened
    try:
        heads = config["num_attention_heads"]
        head = config.get("head_dim") or config["hidden_size"] // heads
        keys = config.get("num_key_value_heads") or heads
        return ModelSize(parameters, config["num_hidden_layers"], heads * head, keys * head)
    except (KeyError, TypeError):
        return ModelSize.like(max(1, parameters))


def _pretrained(made: PretrainConfig) -> ModelSize:
    width = made.hidden_size
    layer = 4 * width**2 + 3 * width * made.intermediate_size
    return ModelSize(made.vocabulary * width + made.layers * layer, made.layers, width, width)


def problem_counts(experiment: Experiment) -> ProblemCounts:
    """Problems of each split: counted where the files are, else as `[estimate]` says.

    Raises:
        ConfigError: neither.
    """
    found = {split: _count(experiment, split) for split in _SPLITS}
    size = sum(size for _, size in found.values())
    return ProblemCounts(found["train"][0], found["validation"][0], found["heldout"][0], size)


def _count(experiment: Experiment, split: str) -> tuple[int, float]:
    """Problems of a split, and their bytes."""
    files, limit = experiment.problems.files(split), experiment.problems.limit
    if all(file.is_file() for file in files):
        there = [count_rows(file) if file.suffix == ".parquet" else _lines_of(file) for file in files]
        taken = [count if limit is None else min(count, limit) for count in there]
        sizes = [
            file.stat().st_size * part / max(1, whole) for file, part, whole in zip(files, taken, there, strict=True)
        ]
        return sum(taken), sum(sizes)
    stated: int | None = getattr(experiment.estimate, f"{split}_problems")
    if stated is None:
        missing = next(file for file in files if not file.is_file())
        raise ConfigError(f"`problems.{split}`: {missing} is not there; make it, or give estimate.{split}_problems=N")
    count = stated if limit is None else min(stated, limit * len(files))
    return count, 1000 * experiment.estimate.problem_kb * count


def _lines_of(file: Path) -> int:
    import gzip

    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
        return sum(not line.isspace() for line in stream)


def _round_lines(experiment: Experiment, found: Estimate) -> Iterator[str]:
    number = 0
    for one, equal in groupby(found.rounds):
        count = len(list(equal))
        label = f"round {number}" if count == 1 else f"rounds {number}-{number + count - 1}, each"
        number += count
        yield _line(
            f"{label}: sampling", f"{one.rollouts:,} answers to {one.problems:,} problems", one.tokens, one.sampling_h
        )
        hours = one.rollouts * experiment.estimate.verification_s / 3600
        yield _line("  verification", f"{hours:,.2g} core-hours" if hours < 1 else f"{hours:,.0f} core-hours")
        yield _line("  training", f"{_range(one.sequences)} sequences", hours=one.training_h)
        yield _line("", _steps(one))


def _steps(one: RoundEstimate) -> str:
    return f"{_range(one.steps)} steps, {_plural(one.checkpoints, 'checkpoint')}"


def _evaluation_lines(experiment: Experiment, found: Estimate) -> Iterator[str]:
    evaluation = found.evaluation
    what = f"{evaluation.answers:,} answers, {_plural(evaluation.checkpoints, 'checkpoint')} measured"
    yield _line("evaluation", what, evaluation.tokens, evaluation.sampling_h)
    tokens = sum((one.tokens for one in found.rounds), evaluation.tokens)
    checkpoints = sum(one.checkpoints for one in found.rounds)
    steps = sum((one.steps for one in found.rounds), NOTHING)
    yield _line("in all", f"{found.rollouts + evaluation.answers:,} answers", tokens, found.hours)
    yield _line("", f"{_range(steps)} steps, {_plural(checkpoints, 'checkpoint')}")
    gpus = experiment.estimate.gpus
    yield f"hours on {gpus} GPUs: {found.hours.expected / gpus:,.1f}, at most {found.hours.most / gpus:,.1f}"


def _line(label: str, what: str, tokens: Amount | None = None, hours: Amount | None = None) -> str:
    counts = [_short(tokens.expected), _short(tokens.most)] if tokens else ["", ""]
    times = [f"{hours.expected:,.1f}", f"{hours.most:,.1f}"] if hours else ["", ""]
    return _COLUMNS.format(label, what, *counts, *times).rstrip()


def _disk_lines(found: Estimate) -> Iterator[str]:
    kinds = [f"{kind} {_bytes(amount)}" for kind, amount in found.disk.items()]
    yield f"disk: {', '.join(kinds[:3])},"
    yield f"  {', '.join(kinds[3:])},"
    total = sum(found.disk.values(), NOTHING)
    yield f"  in all {_bytes(total)}, and {readable(found.states)} of states while a round trains"


def _assumed_lines(experiment: Experiment, model: ModelSize, found: Estimate) -> Iterator[str]:
    assumed = experiment.estimate
    lengths = [min(assumed.answer_tokens, experiment.sampling.max_tokens), experiment.sampling.max_tokens]
    speeds = [f"{tokens_per_gpu_s(experiment, model, length):,.0f}" for length in lengths]
    yield (
        f"assumed (oapl_core/settings/estimate.py has the sources; override with estimate.KEY=VALUE): "
        f"prompt_tokens {assumed.prompt_tokens:g},"
    )
    yield (
        f"  answer_tokens {assumed.answer_tokens:g}, kept_share {assumed.kept_share:g}, verification_s "
        f"{assumed.verification_s:g}, GPUs of {assumed.gpu_gb:g} GB, {assumed.gpu_tb_per_s:g} TB/s and "
        f"{assumed.gpu_tflops:g} TFLOP/s;"
    )
    yield (
        f"  sampling_share {assumed.sampling_share:g} gives {speeds[0]} tokens/s per GPU ({speeds[1]} at max_tokens); "
        f"training_share {assumed.training_share:g}"
    )


def _range(amount: Amount) -> str:
    if amount.expected == amount.most:
        return f"{amount.expected:,.0f}"
    return f"{amount.expected:,.0f} (at most {amount.most:,.0f})"


def _bytes(amount: Amount) -> str:
    if amount.expected == amount.most:
        return readable(amount.expected)
    return f"{readable(amount.expected)} (at most {readable(amount.most)})"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _short(number: float) -> str:
    """``1.94 G``: three digits."""
    for unit in ("", " k", " M", " G", " T"):
        if number < 999.5 or unit == " T":
            return f"{number:.3g}{unit}"
        number /= 1000
    raise AssertionError("T is the last")
