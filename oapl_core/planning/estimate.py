"""What a run will make and cost, from its settings and a few sizes: counts, tokens, GPU-hours, bytes. Pure.

    rollouts    problems x G
    steps       epochs x ceil(kept sequences / batch)
    training    6 N T + 6 L A T^2 FLOPs for a sequence of T tokens (training/speed.py), 4/3 of it with recomputation
    sampling    a decoding step reads the weights and the key-value cache of all sequences in it; as many are in it as
                the GPU's memory holds at their mean length, at most engine.max_num_seqs

N weights, L layers, A width of the queries. Each number comes twice: as expected from ``[estimate]``, and at most:
every answer as long as `max_tokens`, every group kept. Prefill, starts of engines and lost time are not in it.
"""

import math
from dataclasses import dataclass

from oapl_core.planning.preflight import EVALUATION_BYTES_PER_TOKEN, ROLLOUT_BYTES_PER_TOKEN
from oapl_core.settings.experiment import Experiment, RoundConfig

_GROUP_BYTES_PER_TOKEN = 5.76
"""Ids and log-probs in row groups of 64 K tokens (docs/benchmarks/store.md)."""
_VERDICT_BYTES = 2000
"""A program and what is said of it, compressed (a guess; maths less)."""
_OPTIMISER_BYTES = 12
"""Of a parameter, in a state to resume from; its weight in the trainer's type comes on top (training/disk.py)."""


@dataclass(frozen=True)
class ModelSize:
    """As far as speed and memory depend on it."""

    parameters: float
    layers: int
    query_width: int
    """Heads x head size."""
    key_width: int
    """Key-value heads x head size."""

    @classmethod
    def like(cls, parameters: float) -> "ModelSize":
        """The usual shape of so many weights: width 110 x layers, 12 x width^2 weights in a layer, keys of 1024."""
        layers = max(1, round((parameters / (12 * 110**2)) ** (1 / 3)))
        return cls(parameters, layers, 110 * layers, min(1024, 110 * layers))


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
    rounds = tuple(_round(experiment, model, one, problems.train) for one in experiment.rounds)
    evaluation = _evaluation(experiment, model, problems)
    tokens = sum((one.tokens for one in rounds), NOTHING)
    trained = sum((_trained_tokens(experiment, one) for one in rounds), NOTHING)
    width = 2 if experiment.training.dtype == "bfloat16" else 4
    verdicts = float(sum(one.rollouts for one in rounds) * _VERDICT_BYTES)
    disk = {
        "problems": Amount(problems.bytes, problems.bytes),
        "rollouts": tokens * ROLLOUT_BYTES_PER_TOKEN,
        "verdicts": Amount(verdicts, verdicts),
        "groups": trained * _GROUP_BYTES_PER_TOKEN,
        "checkpoints": _kept_checkpoints(experiment) * (model.parameters * width),
        "evaluation": evaluation.tokens * (2 * EVALUATION_BYTES_PER_TOKEN),
    }
    states = 3 if any(experiment.continues_optimizer(number) for number in range(len(rounds))) else 2
    bytes_of_states = states * model.parameters * (width + _OPTIMISER_BYTES)
    return Estimate(rounds, evaluation, disk, bytes_of_states, _warm_start(experiment, model, problems))


def _warm_start(experiment: Experiment, model: ModelSize, problems: ProblemCounts) -> WarmStartEstimate | None:
    settings, sequences = experiment.warm_start, problems.demonstrations
    if settings is None:
        return None
    answer = _answer(experiment, experiment.sampling.max_tokens)  # as long as those that are sampled
    seconds = (
        _training_s(experiment, model, _prompt(experiment) + tokens) for tokens in (answer.expected, answer.most)
    )
    steps = settings.epochs * math.ceil(sequences / settings.batch_size)
    hours = Amount(*seconds) * (settings.epochs * sequences / 3600)
    return WarmStartEstimate(sequences, Amount(steps, steps), settings.epochs, hours)


def _round(experiment: Experiment, model: ModelSize, one: RoundConfig, train: int) -> RoundEstimate:
    sampling, batch = experiment.sampling, experiment.training.batch_size
    problems = min(train, one.problems or train)
    rollouts = problems * sampling.group_size
    answer = _answer(experiment, sampling.max_tokens)
    share = 1.0 if one.keep == "all" else experiment.estimate.kept_share
    sequences = Amount(round(problems * share) * sampling.group_size, rollouts)
    steps = Amount(*(one.epochs * math.ceil(n / batch) for n in (sequences.expected, sequences.most)))
    length = Amount(*(_prompt(experiment) + tokens for tokens in (answer.expected, answer.most)))
    training_h = Amount(
        one.epochs * sequences.expected * _training_s(experiment, model, length.expected) / 3600,
        one.epochs * sequences.most * _training_s(experiment, model, length.most) / 3600,
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


def _training_s(experiment: Experiment, model: ModelSize, tokens: float) -> float:
    """GPU-seconds for a sequence."""
    flops = 6 * model.parameters * tokens + 6 * model.layers * model.query_width * tokens**2
    again = 4 / 3 if experiment.training.gradient_checkpointing else 1.0
    assumed = experiment.estimate
    peak = experiment.training.peak_tflops or assumed.gpu_tflops
    return again * flops / (1e12 * peak * assumed.training_share)


def _sampling_hours(experiment: Experiment, model: ModelSize, answers: int, answer: Amount) -> Amount:
    """GPU-hours for so many answers."""
    speeds = (tokens_per_gpu_s(experiment, model, length) for length in (answer.expected, answer.most))
    expected, most = speeds
    return Amount(answers * answer.expected / expected / 3600, answers * answer.most / most / 3600)


def tokens_per_gpu_s(experiment: Experiment, model: ModelSize, answer_tokens: float) -> float:
    """Sampled tokens per second and GPU at this mean length of an answer, in bfloat16.

    Where not even one such sequence fits beside the weights, as if it did.
    """
    assumed, engine = experiment.estimate, experiment.engine
    gpus = engine.tensor_parallel_size * engine.pipeline_parallel_size
    context = _prompt(experiment) + answer_tokens / 2  # while it grows
    cache = 2 * model.layers * model.key_width * 2 * context
    weights = 2 * model.parameters
    room = gpus * assumed.gpu_gb * 1e9 * engine.gpu_memory_utilization - weights
    sequences = min(engine.max_num_seqs, max(1.0, room / cache))
    step_s = (weights + sequences * cache) / (gpus * assumed.gpu_tb_per_s * 1e12 * assumed.sampling_share)
    return sequences / step_s / gpus


def _evaluation(experiment: Experiment, model: ModelSize, problems: ProblemCounts) -> EvaluationEstimate:
    settings, epochs = experiment.evaluation, experiment.rounds[-1].epochs
    checkpoints = experiment.earlier_checkpoints + (epochs if settings.choose_on == "heldout" else 1)
    answers = problems.heldout * settings.heldout_samples * checkpoints
    answers += problems.validation * settings.validation_samples * epochs
    answer = _answer(experiment, settings.max_tokens)
    return EvaluationEstimate(
        checkpoints, answers, answer * answers, _sampling_hours(experiment, model, answers, answer)
    )


def _kept_checkpoints(experiment: Experiment) -> Amount:
    """Whose weights are there at the end, and at most before: with `training.keep_checkpoints`."""
    keep, last = experiment.training.keep_checkpoints, experiment.rounds[-1].epochs
    earlier = [one.epochs for one in experiment.rounds[:-1]]
    earlier += [experiment.warm_start.epochs] if experiment.warm_start else []
    most = max(earlier, default=0) if keep == "all" else 1 if keep == "last" else keep
    kept = last + sum(min(epochs, most) for epochs in earlier)
    return Amount(kept, kept)
