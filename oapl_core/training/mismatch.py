"""The engine's log-probs against the trainer's, for the weights that sampled, before the first update.

Scores a seeded sample of the round's examples once with the policy that the trainer has just loaded, and encodes the
decoded responses again. Writes 4_checkpoint/<objective>/engine_mismatch.parquet (tables.MISMATCHES), one row for each
rollout of the sample; the ledger has the sums. Differences are rescored - recorded of a token, in nats: 0 but for
rounding, if both programs hold the same weights and compute alike. The log-ratios of the loss start from this error.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from oapl_core import plugins, tables
from oapl_core.errors import StageFailed
from oapl_core.model_files.model_folder import load_tokenizer
from oapl_core.progress import say
from oapl_core.seeds import derive_seed
from oapl_core.training.job import Job
from oapl_core.training.scoring import scored

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import Examples

_COLUMNS = ("response_tokens", "mean_difference", "max_difference", "sum_difference", "k3")


def compare_with_engine(job: Job, engine: "TrainingEngine", examples: "Examples") -> None:
    """Measure, record and judge; every rank calls it, before the first update or a state is loaded.

    Left out where the comparison would say nothing. The round starts from other weights than those that sampled, or no
    rollout of these weights has log-probs of its engine.

    Raises:
        StageFailed: the mean difference per token is more than ``training.max_mismatch`` or rounding allows.
    """
    run, is_first = job.run, engine.rank == 0
    if job.lag:
        if is_first:
            say(f"round {job.round_number}: sampled by an older checkpoint, so engine and trainer are not compared")
        return
    own = [row for row in examples.own_rows if examples.recorded_S[row]]
    if not own:
        return
    training, path = job.training, run.mismatch(job.round_number)
    settings = job.mismatch_settings
    # the first looks for all: what others see of a shared disk may be a minute old
    if not engine.of_first(lambda: run.is_done(path, job.inputs, settings)):
        drawn = chosen(len(own), training.trust_sequences, run.config.seed, job.round_number)
        rows = [own[place] for place in drawn]  # replayed and imported rows are of other weights
        measured = _measured(engine, examples, rows, training.tokens_per_micro_batch)
        rounding: float | None = 0.0
        if _rounds(job):
            measure = plugins.resolve("training", "dtype")
            rounding = measure(engine, examples, rows, training.tokens_per_micro_batch)
        if is_first:
            drifts = first_drifts(run.policy(job.round_number), [_response(examples, row) for row in rows])
            lines = [
                {"rollout_id": str(examples.rollout_ids[row]), **line, "first_drift": drift}
                for row, line, drift in zip(rows, measured, drifts, strict=True)
            ]
            with run.writing(path, job.inputs, settings) as draft:
                draft.rows = tables.write_table(draft.path, tables.MISMATCHES, lines)
                draft.details = summary(lines, len(examples.lengths)) | {"rounding": rounding}
    details = engine.of_first(lambda: run.ledger.artifacts()[run.name(path)].details)
    judge(details, training.allowed_mismatch(details.get("rounding")), path, is_first)


def chosen(sequences: int, wanted: int, seed: int, round_number: int) -> list[int]:
    """Return the rows to score: ``wanted`` of them, or all; they depend on nothing but the arguments."""
    draw = random.Random(derive_seed(seed, "engine mismatch", round_number))
    return sorted(draw.sample(range(sequences), min(wanted, sequences)))


def _measured(
    engine: "TrainingEngine", examples: "Examples", rows: Sequence[int], token_budget: int
) -> list[dict[str, float]]:
    """Measure for each of ``rows``, in order, the _COLUMNS of tables.MISMATCHES; the same on every rank."""
    differences = torch.zeros(len(rows), len(_COLUMNS), dtype=torch.float64, device=engine.device)
    place = {row: i for i, row in enumerate(rows)}
    for part in scored(engine, examples, rows, token_budget):
        recorded_ST = part.batch.compared_ST.to(engine.device).double()  # nothing is rescored yet
        difference_ST = (part.logprob_ST.double() - recorded_ST) * part.mask_ST
        tokens_S, size_ST = part.mask_ST.sum(1), difference_ST.abs()
        # k3 estimates KL(b || policy): exp(d) - d - 1, which is 0 outside the response
        k3_S = (difference_ST.expm1() - difference_ST).sum(1) / tokens_S
        columns = [tokens_S, size_ST.sum(1) / tokens_S, size_ST.amax(1), difference_ST.sum(1), k3_S]
        lines = torch.stack([column.double() for column in columns], dim=1)
        for line, row in zip(lines, part.rows, strict=False):  # a rank without work scored a stand-in
            differences[place[row]] = line
    # every row was scored by one rank and is 0 on the others, so the sum over ranks is exact
    table = engine.total(differences).tolist()
    return [
        {name: int(v) if name == "response_tokens" else v for name, v in zip(_COLUMNS, line, strict=True)}
        for line in table
    ]


def _rounds(job: Job) -> bool:
    """Return whether engine or trainer computes in 16 bits; assumed of a server, whose type nobody knows."""
    engine = job.run.config.engine.dtype
    if engine == "auto":
        stored = json.loads((job.behavior / "config.json").read_text(encoding="utf-8"))
        engine = stored.get("dtype") or stored.get("torch_dtype")
    return (engine, job.training.dtype) != ("float32", "float32") or job.run.config.sampler is not None


def first_drifts(model_dir: Path, responses: Sequence[Sequence[int]]) -> list[int | None]:
    """Find for each response the place of the first token that decoding and encoding again changes; None if all stay.

    Nothing is trained on encoded text, so drift does no harm here; it says what a pipeline that stores text would lose.

    Raises:
        DataError: the folder has no usable tokenizer.
    """
    tokenizer = load_tokenizer(model_dir)
    texts = [tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) for ids in responses]
    again = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return [_first_difference(ids, other) for ids, other in zip(responses, again, strict=True)]


def _first_difference(ids: Sequence[int], other: Sequence[int]) -> int | None:
    if list(ids) == list(other):
        return None
    same = (i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b)
    return next(same, min(len(ids), len(other)))


def _response(examples: "Examples", row: int) -> list[int]:
    batch = examples.batch([row])
    ids: list[int] = batch.id_ST[0, int(batch.prompt_length_S) : int(batch.length_S)].tolist()
    return ids


def summary(lines: Sequence[Mapping[str, Any]], sequences: int) -> dict[str, Any]:
    """Summarise for the ledger: means over tokens (``mean``, ``k3``) and over rollouts (``sequence_sum_mean``),
    extremes, counts.

    ``worst`` is the rollout with the largest mean difference.
    """
    tokens = sum(line["response_tokens"] for line in lines)

    def per_token(key: str) -> float:
        return float(sum(line[key] * line["response_tokens"] for line in lines) / tokens)

    return {
        "sequences": len(lines),
        "share": len(lines) / sequences,
        "tokens": tokens,
        "mean": per_token("mean_difference"),
        "max": max(line["max_difference"] for line in lines),
        "k3": per_token("k3"),
        "sequence_sum_mean": sum(line["sum_difference"] for line in lines) / len(lines),
        "sequence_sum_max": max(abs(line["sum_difference"]) for line in lines),
        "worst": max(lines, key=lambda line: float(line["mean_difference"]))["rollout_id"],
        "drifted": sum(line["first_drift"] is not None for line in lines),
    }


def judge(measured: Mapping[str, Any], allowed: float, path: Path, aloud: bool) -> None:
    """Say what was measured; fail if it is more than rounding explains.

    Raises:
        StageFailed: the mean is above ``allowed`` nats per token, or not a number.
    """
    mean, sequences = measured["mean"], measured["sequences"]
    if not mean <= allowed:  # also where it is not a number
        raise StageFailed(
            f"{path}: log-probs of engine and trainer differ by {mean:.2g} nats per token over "
            f"{sequences} rollouts (worst: {measured['worst']}), more than the {allowed:.2g} that rounding explains or "
            "training.max_mismatch allows; look whether both load the same weights, and at engine.dtype, "
            "engine.options and training.dtype"
        )
    if aloud:
        say(
            f"log-probs of trainer and engine differ by {mean:.2g} nats per token, {measured['max']:.2g} at most "
            f"({sequences} rollouts); encoding their text again changes {measured['drifted']} of them"
        )
