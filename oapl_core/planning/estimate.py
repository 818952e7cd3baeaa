"""What a run will make and cost, from its settings and a few sizes: counts, tokens, GPU-hours, bytes. Pure.

    rollouts    problems x G
    steps       epochs x ceil(kept sequences / batch)
    training    6 N T + 6 L A T^2 FLOPs for a sequence of T tokens (training/speed.py), up to 4/3 of it where layers are
                recomputed (recomputation.py)
    sampling    a decoding step reads the weights and the key-value cache of all sequences in it; as many are in it as
                the GPU's memory holds at their mean length so far, at most engine.max_num_seqs; and each stage that
                samples starts its engines

N weights, L layers, A width of the queries. Lengths of answers have the mean and the spread that ``[estimate]`` says,
with E[T^2] = mean^2 (1 + spread^2): a place in the engine is held by an answer for as long as it is, so what is read at
a moment has the mean length E[T^2] / 2 E[T], not half of the mean. Each number comes twice: as expected from
``[estimate]``, and at most: every answer as long as `max_tokens`, every group kept. Prefill, and the time in which the
last answers leave the other places empty, are not in it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oapl_core.planning.memory import engine_memory, planned_training
from oapl_core.planning.model_size import OPTIMISER_BYTES, ModelSize
from oapl_core.planning.preflight import ANSWER_BYTES_PER_TOKEN, EVALUATION_BYTES_PER_TOKEN, ROLLOUT_BYTES_PER_TOKEN
from oapl_core.planning.recomputation import recomputed_share
from oapl_core.planning.speeds import with_speeds
from oapl_core.planning.stages import EVALUATION, SAMPLING
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.rounds import RoundConfig

_GROUP_BYTES_PER_TOKEN = 5.76
"""Ids and log-probs in row groups of 64 K tokens (docs/benchmarks/store.md)."""
_VERDICT_BYTES = 2000
"""A program and what is said of it, compressed (a guess; maths less)."""


@dataclass(frozen=True)
class ProblemCounts:
    """Problems of each split."""

    train: int
    validation: int
    heldout: int
    bytes: float = 0.0
    """Of all of them with their tests."""
    demonstrations: int = 0
    """Rows that the warm start may train on."""
    repeated: Mapping[str, Any] = field(default_factory=dict)
    """Measured problems that have the statement of a training problem, as the ledger counts them."""


@dataclass(frozen=True)
class Amount:
    """A number as expected, and the most it can be."""

    expected: float
    most: float

    def __add__(self, other: "Amount") -> "Amount":
        """Both."""
        return Amount(self.expected + other.expected, self.most + other.most)

    def __mul__(self, factor: float) -> "Amount":
        """Both."""
        return Amount(self.expected * factor, self.most * factor)


NOTHING = Amount(0, 0)


@dataclass(frozen=True)
class RoundEstimate:
    """One round."""

    problems: int
    rollouts: int
    tokens: Amount
    """Sampled."""
    sequences: Amount
    """Kept for training."""
    steps: Amount
    """Of the optimiser, over all epochs."""
    checkpoints: int
    sampling_h: Amount
    """GPU-hours."""
    training_h: Amount
    """GPU-hours."""


@dataclass(frozen=True)
class WarmStartEstimate:
    """What precedes round 0."""

    sequences: int
    """Demonstrations."""
    steps: Amount
    """Of the optimiser, over all epochs."""
    checkpoints: int
    training_h: Amount
    """GPU-hours."""


@dataclass(frozen=True)
class EvaluationEstimate:
    """All of it."""

    checkpoints: int
    """Measured on the held-out problems."""
    answers: int
    """Held-out and validation."""
    tokens: Amount
    sampling_h: Amount
    """GPU-hours."""


@dataclass(frozen=True)
class Estimate:
    """A whole run."""

    rounds: tuple[RoundEstimate, ...]
    evaluation: EvaluationEstimate
    disk: dict[str, Amount]
    """Bytes at the end, by kind (run_folder/storage.py)."""
    states: float
    """Bytes beside them while a round trains: two of its own; with `training.optimizer_state` the one before's."""
    warm_start: WarmStartEstimate | None = None

    wall_h: Amount = NOTHING
    """Hours, one stage after the other, each on the GPUs that it uses of `estimate.gpus`."""

    @property
    def rollouts(self) -> int:
        """Of all rounds."""
        return sum(one.rollouts for one in self.rounds)

    @property
    def hours(self) -> Amount:
        """GPU-hours of everything."""
        before = self.warm_start.training_h if self.warm_start else NOTHING
        return sum((one.sampling_h + one.training_h for one in self.rounds), before + self.evaluation.sampling_h)


def estimate(experiment: Experiment, model: ModelSize, problems: ProblemCounts) -> Estimate:
    """What the run comes to."""
    experiment = with_every_speed(experiment, model)
    rounds = tuple(_round(experiment, model, one, problems.train) for one in experiment.rounds)
    evaluation = _evaluation(experiment, model, problems)
    tokens = sum((one.tokens for one in rounds), NOTHING)
    trained = sum((_trained_tokens(experiment, one) for one in rounds), NOTHING)
    routes = model.route_bytes * experiment.sampling.routes
    prompts = routes * _prompt(experiment) * sum(one.rollouts for one in rounds)
    width = 2 if experiment.training.dtype == "bfloat16" else 4
    verdicts = float(sum(one.rollouts for one in rounds) * _VERDICT_BYTES)
    disk = {
        "problems": Amount(problems.bytes, problems.bytes),
        "rollouts": tokens * (ROLLOUT_BYTES_PER_TOKEN + routes) + Amount(prompts, prompts),
        "verdicts": Amount(verdicts, verdicts),
        "groups": trained * (_GROUP_BYTES_PER_TOKEN + routes),
        "checkpoints": _kept_checkpoints(experiment) * (model.parameters * width),
        "evaluation": evaluation.tokens * (ANSWER_BYTES_PER_TOKEN + EVALUATION_BYTES_PER_TOKEN),
    }
    states = 3 if any(experiment.continues_optimizer(number) for number in range(len(rounds))) else 2
    bytes_of_states = states * model.parameters * (width + OPTIMISER_BYTES)
    warm = _warm_start(experiment, model, problems)
    sampled_h = sum((one.sampling_h for one in rounds), NOTHING) * (1 / _engine_gpus(experiment, SAMPLING.verb))
    measured_h = evaluation.sampling_h * (1 / _engine_gpus(experiment, EVALUATION.verb))
    trained_h = sum((one.training_h for one in rounds), warm.training_h if warm else NOTHING)
    wall_h = sampled_h + measured_h + trained_h * (1 / _training_gpus(experiment))
    return Estimate(rounds, evaluation, disk, bytes_of_states, warm, wall_h)


def with_every_speed(experiment: Experiment, model: ModelSize) -> Experiment:
    """Fill the speeds that ``[estimate]`` leaves out, for a model of this size."""
    return experiment.model_copy(update={"estimate": with_speeds(experiment.estimate, model.parameters)[0]})


def _engine_gpus(experiment: Experiment, verb: str) -> int:
    engine = experiment.engine
    each = engine.replicas * engine.tensor_parallel_size * engine.pipeline_parallel_size
    used = each * experiment.fleet.shares(verb)
    has_servers = experiment.sampler and verb == SAMPLING.verb
    return experiment.estimate.gpus if has_servers else min(experiment.estimate.gpus, used)


def _training_gpus(experiment: Experiment) -> int:
    training = experiment.training
    return experiment.estimate.gpus if training.has_nodes else min(experiment.estimate.gpus, training.processes)


def _warm_start(experiment: Experiment, model: ModelSize, problems: ProblemCounts) -> WarmStartEstimate | None:
    settings, sequences = experiment.warm_start, problems.demonstrations
    if settings is None:
        return None
    answer = _answer(experiment, experiment.sampling.max_tokens)  # as long as those that are sampled
    seconds = (_training_s(experiment, model, tokens, answer.most) for tokens in (answer.expected, answer.most))
    steps = settings.epochs * math.ceil(sequences / settings.batch_size)
    hours = Amount(*seconds) * (settings.epochs * sequences / 3600)
    return WarmStartEstimate(sequences, Amount(steps, steps), settings.epochs, hours)


def _round(experiment: Experiment, model: ModelSize, one: RoundConfig, train: int) -> RoundEstimate:
    sampling, batch = experiment.sampling, experiment.training.batch_size
    problems = min(train, one.problems or train)
    rollouts = problems * sampling.group_size
    answer = _answer(experiment, sampling.max_tokens)
    share = 1.0 if one.keep == "all" else experiment.estimate.kept_share
    more = 1.0 / (1.0 - one.replay.share) if one.replay else 1.0
    sequences = Amount(round(round(problems * share) * sampling.group_size * more), round(rollouts * more))
    steps = Amount(*(one.epochs * math.ceil(n / batch) for n in (sequences.expected, sequences.most)))
    training_h = Amount(
        one.epochs * sequences.expected * _training_s(experiment, model, answer.expected, answer.most) / 3600,
        one.epochs * sequences.most * _training_s(experiment, model, answer.most, answer.most) / 3600,
    )
    hours = _sampling_hours(experiment, model, rollouts, answer)
    return RoundEstimate(problems, rollouts, answer * rollouts, sequences, steps, one.epochs, hours, training_h)


def _prompt(experiment: Experiment) -> float:
    return min(experiment.estimate.prompt_tokens, experiment.problems.max_prompt_tokens)


def _answer(experiment: Experiment, max_tokens: int) -> Amount:
    return Amount(min(experiment.estimate.answer_tokens, max_tokens), max_tokens)


def _trained_tokens(experiment: Experiment, one: RoundEstimate) -> Amount:
    """Tokens of a round's groups file, prompts included."""
    prompt, answer = _prompt(experiment), _answer(experiment, experiment.sampling.max_tokens)
    kept = one.sequences
    return Amount(kept.expected * (prompt + answer.expected), kept.most * (prompt + answer.most))


def _square(experiment: Experiment, tokens: float, longest: float) -> float:
    """Mean square of the answers' lengths, whose mean is ``tokens`` and of which none is longer than ``longest``."""
    return tokens * min(longest, tokens * (1 + experiment.estimate.answer_spread**2))


def _training_s(experiment: Experiment, model: ModelSize, answer_tokens: float, longest: float) -> float:
    """GPU-seconds for a sequence whose answer has this mean length."""
    prompt = _prompt(experiment)
    squared = prompt**2 + 2 * prompt * answer_tokens + _square(experiment, answer_tokens, longest)
    flops = 6 * model.parameters * (prompt + answer_tokens) + 6 * model.layers * model.query_width * squared
    assumed, training = experiment.estimate, experiment.training
    ranks = assumed.gpus if training.has_nodes else training.processes
    choice = planned_training(experiment, model, ranks, assumed.gpu_gb * 1e9).recompute
    assert choice != "auto", "a plan has decided"
    again = 1 + recomputed_share(choice, model, prompt + answer_tokens) / 3
    peak = training.peak_tflops or assumed.gpu_tflops
    assert assumed.training_share is not None, "filled"
    return again * flops / (1e12 * peak * assumed.training_share)


def _sampling_hours(
    experiment: Experiment, model: ModelSize, answers: int, answer: Amount, verb: str = SAMPLING.verb
) -> Amount:
    """GPU-hours for so many answers, from the start of the engines on."""
    if not answers:
        return NOTHING
    has_servers = experiment.sampler and verb == SAMPLING.verb
    # every GPU of every replica waits for its engine
    start_s = experiment.estimate.engine_start_s
    assert start_s is not None, "filled"
    start = 0.0 if has_servers else _engine_gpus(experiment, verb) * start_s / 3600
    speeds = (tokens_per_gpu_s(experiment, model, length, answer.most) for length in (answer.expected, answer.most))
    expected, most = speeds
    hours = answers * answer.expected / expected / 3600, answers * answer.most / most / 3600
    return Amount(start + hours[0], start + hours[1])


def context(experiment: Experiment, answer_tokens: float, longest: float = math.inf) -> float:
    """Mean tokens of a sequence at a moment of its decoding."""
    return _prompt(experiment) + _square(experiment, answer_tokens, longest) / (2 * answer_tokens)


def tokens_per_gpu_s(
    experiment: Experiment, model: ModelSize, answer_tokens: float, longest: float = math.inf
) -> float:
    """Sampled tokens per second and GPU where answers have this mean length, and at most the longest.

    Where not even one such sequence fits beside the weights, as if it did.
    """
    assumed, each = with_every_speed(experiment, model).estimate, context(experiment, answer_tokens, longest)
    assert assumed.sampling_share is not None, "filled"
    memory = engine_memory(experiment.engine, model, assumed.gpu_gb * 1e9)
    sequences = min(experiment.engine.at_once(model.parameters), max(1.0, memory.tokens / each))
    read = memory.weights + sequences * memory.token * each
    step_s = read / (memory.gpus * assumed.gpu_tb_per_s * 1e12 * assumed.sampling_share)
    return sequences / step_s / memory.gpus


def _evaluation(experiment: Experiment, model: ModelSize, problems: ProblemCounts) -> EvaluationEstimate:
    settings, epochs = experiment.evaluation, experiment.rounds[-1].epochs
    checkpoints = experiment.earlier_checkpoints + (epochs if settings.choose_on == "heldout" else 1)
    answers = problems.heldout * settings.heldout_samples * checkpoints
    answers += problems.validation * settings.validation_samples * epochs
    answer = _answer(experiment, settings.max_tokens)
    return EvaluationEstimate(
        checkpoints, answers, answer * answers, _sampling_hours(experiment, model, answers, answer, EVALUATION.verb)
    )


def _kept_checkpoints(experiment: Experiment) -> Amount:
    """Whose weights are there at the end, and at most before: with `training.keep_checkpoints`."""
    keep, last = experiment.training.keep_checkpoints, experiment.rounds[-1].epochs
    earlier = [one.epochs for one in experiment.rounds[:-1]]
    earlier += [experiment.warm_start.epochs] if experiment.warm_start else []
    most = max(earlier, default=0) if keep == "all" else 1 if keep == "last" else keep
    kept = last + sum(min(epochs, most) for epochs in earlier)
    return Amount(kept, kept)
