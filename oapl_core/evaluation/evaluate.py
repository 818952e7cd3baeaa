"""``python -m oapl_core.evaluation.evaluate RUN_DIR``: chooses the last round's epoch, then measures what was gained.

Reads problems.parquet, prompts.parquet and the checkpoints; writes a part for each checkpoint and split, then
5_evaluation/<objective>.parquet of all parts (tables.EVALUATIONS). Validation problems decide between the last round's
epochs (highest mean reward; of equal ones the earlier); base, the end of each earlier round and the chosen epoch answer
the held-out problems. One engine process for all checkpoints; while one set is judged the next is sampled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from oapl_core.artifacts import Run
from oapl_core.config import EngineConfig
from oapl_core.errors import StageFailed
from oapl_core.evaluation.choice import best, measures
from oapl_core.progress import Progress, say
from oapl_core.rollouts.engine import Engine
from oapl_core.rollouts.generate import read_prompts, started
from oapl_core.rollouts.model_folder import identity
from oapl_core.rollouts.requests import Completion, Request, Sampler
from oapl_core.rollouts.sampling import Prompts
from oapl_core.seeds import derive_seed
from oapl_core.stage import run_verb
from oapl_core.tables import EVALUATIONS, PROBLEMS, PROMPTS, read_table, write_table
from oapl_core.verdicts.extraction import opens_thinking
from oapl_core.verdicts.verifier import VERIFIER_VERSION, Verifier
from oapl_core.verifier_config import VerifierConfig

Row = Mapping[str, Any]


class Judged(Protocol):
    """A verdict, as far as it matters here."""

    @property
    def reward(self) -> float | None:
        """1, 0, or None if the answer could not be judged."""
        ...

    @property
    def outcome(self) -> str:
        """Why."""
        ...


class Judge(Protocol):
    """What grades answers; ``oapl_core.verdicts.verifier.Verifier`` is one."""

    def check_canaries(self) -> None:
        """Raise StageFailed if known answers are misjudged."""
        ...

    def stream(
        self, problems: Sequence[Row], texts: Sequence[str], finish_reasons: Sequence[str | None]
    ) -> Iterator[Judged]:
        """One verdict for each text, in order."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """A policy to be measured."""

    label: str
    folder: Path


@dataclass(frozen=True)
class _Target:
    """One artifact: a checkpoint on a split."""

    checkpoint: Checkpoint
    split: str
    path: Path
    inputs: Mapping[str, str]
    settings: Mapping[str, Any]


def evaluate(
    run: Run,
    start: Callable[[Path, EngineConfig], Sampler] = Engine,
    judge: Callable[[VerifierConfig], AbstractContextManager[Judge]] = Verifier,
) -> None:
    """Evaluate the run, or what of its evaluation is missing.

    Args:
        run: the run folder.
        start: what to sample with; tests give a made-up sampler.
        judge: what to grade with.

    Raises:
        DataError: a checkpoint is missing, broken or not the recorded one.
        StageFailed: too many answers could not be judged.
    """
    last = len(run.config.rounds) - 1
    epochs = {e: Checkpoint(f"round {last} epoch {e}", run.checkpoint(last, e)) for e in _epochs(run, last)}
    earlier = [Checkpoint("base", run.base_model())]
    earlier += [Checkpoint(f"round {n}", run.policy(n + 1)) for n in range(last)]
    with _Evaluation(run, len(epochs), len(earlier) + 1, start, judge) as evaluation:
        validation = {c.label: evaluation.rows(c, "validation") for c in epochs.values()}
        heldout = {c.label: evaluation.rows(c, "heldout") for c in earlier}
        chosen = best({label: rows.result() for label, rows in validation.items()})
        epoch = next(e for e, c in epochs.items() if c.label == chosen)
        say(f"chosen on validation problems: epoch {epoch} of {len(epochs)}")
        heldout[chosen] = evaluation.rows(epochs[epoch], "heldout")
        splits = {"heldout": heldout, "validation": validation}
        found = {s: {label: rows.result() for label, rows in sets.items()} for s, sets in splits.items()}
        _conclude(run, evaluation.written, found, epoch, chosen)


def _epochs(run: Run, number: int) -> range:
    return range(1, run.config.rounds[number].epochs + 1)


class _Evaluation:
    """Sampling here, judging and writing in one thread beside it; nothing is started before it is needed."""

    def __init__(
        self,
        run: Run,
        validations: int,
        heldouts: int,
        start: Callable[[Path, EngineConfig], Sampler],
        judge: Callable[[VerifierConfig], AbstractContextManager[Judge]],
    ) -> None:
        config = run.config.evaluation
        self.written: list[Path] = []
        self._run, self._start, self._judge_factory = run, start, judge
        self._samples = {"validation": config.validation_samples, "heldout": config.heldout_samples}
        self._prompts: dict[str, Prompts] = {split: read_prompts(run, split) for split in self._samples}
        self._problems = _problems(run, set(self._samples))
        sets = {"validation": validations, "heldout": heldouts}
        total = sum(n * self._answers(split) for split, n in sets.items())
        self._progress = Progress("evaluation", total, "answers")
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1, "judge")
        self._sampler: Sampler | None = None
        self._loaded: Path | None = None
        self._judge: Judge | None = None

    def __enter__(self) -> "_Evaluation":
        return self

    def __exit__(self, *error: Any) -> None:
        self._thread.shutdown()  # what is sampled is judged and written, also when the engine broke afterwards
        self._stack.__exit__(*error)

    def _answers(self, split: str) -> int:
        return len(self._prompts[split]) * self._samples[split]

    def rows(self, checkpoint: Checkpoint, split: str) -> "Future[list[Row]]":
        """The rows of one checkpoint on one split: from the ledger's artifact, or sampled now and judged soon."""
        target = self._target(checkpoint, split)
        policy_hash = identity(self._run, checkpoint.folder)
        self.written.append(target.path)
        if self._run.is_done(target.path, target.inputs, target.settings):
            self._progress.skip(self._answers(split))
            rows: Future[list[Row]] = Future()
            rows.set_result(read_table(target.path, EVALUATIONS).to_pylist())
            return rows
        judge, sampler = self._judge_ready(), self._sampler_with(checkpoint.folder)
        answers = []
        for answer in sampler.sample(self._requests(split), with_logprobs=False):
            answers.append(answer)
            self._progress.advance(note=f"{checkpoint.label}, {split} problems")
        assert len(answers) == self._answers(split), "every request is answered once"
        answers.sort(key=lambda answer: self._place(answer, split))
        return self._thread.submit(self._finish, sampler, judge, target, policy_hash, answers)

    def _target(self, checkpoint: Checkpoint, split: str) -> _Target:
        run, config = self._run, self._run.config.evaluation
        settings = {
            "seed": run.config.seed, "split": split, "samples": self._samples[split], "temperature": config.temperature,
            "top_p": config.top_p, "max_tokens": config.max_tokens, "dtype": run.config.engine.dtype,
            "verifier_version": VERIFIER_VERSION, **run.config.verifier.slice,
        }  # fmt: skip
        path = run.evaluations() / f"{checkpoint.label.replace(' ', '_')}_{split}.parquet"
        return _Target(checkpoint, split, path, run.inputs([run.problems, run.prompts, checkpoint.folder]), settings)

    def _requests(self, split: str) -> Iterator[Request]:
        """Every checkpoint gets the same seeds, so that what differs between two of them is less often luck."""
        run, config = self._run, self._run.config.evaluation
        for problem, prompt_ids in self._prompts[split].items():
            for sample in range(self._samples[split]):
                seed = derive_seed(run.config.seed, "evaluation", split, problem, sample)
                key = f"{problem}/s{sample}"
                yield Request(key, prompt_ids, seed, config.max_tokens, config.temperature, config.top_p)

    def _place(self, answer: Completion, split: str) -> tuple[str, int]:
        problem, _, sample = answer.request.key.rpartition("/s")
        assert problem in self._prompts[split]
        return problem, int(sample)

    def _judge_ready(self) -> Judge:
        if self._judge is None:
            self._judge = self._stack.enter_context(self._judge_factory(self._run.config.verifier))
            self._judge.check_canaries()
        return self._judge

    def _sampler_with(self, folder: Path) -> Sampler:
        if self._sampler is None:
            self._sampler = self._stack.enter_context(self._start(folder, self._run.config.engine))
            say(started(self._sampler))
            self._stack.enter_context(self._progress)
        elif self._loaded != folder:
            self._sampler.load(folder)
        self._loaded = folder
        return self._sampler

    def _finish(
        self, sampler: Sampler, judge: Judge, target: _Target, policy_hash: str, answers: Sequence[Completion]
    ) -> list[Row]:
        """Judge and write one set; runs in the thread."""
        places = [self._place(answer, target.split) for answer in answers]
        problems = [self._problems[problem] for problem, _ in places]
        verdicts = judge.stream(problems, [a.text for a in answers], [a.finish_reason for a in answers])
        rows: list[Row] = []
        for answer, (problem, sample), verdict in zip(answers, places, verdicts, strict=True):
            kind = self._problems[problem]["kind"]
            rows.append(_row(target, policy_hash, answer, problem, kind, sample, verdict))
        errors = sum(row["reward"] is None for row in rows)
        if errors > self._run.config.verifier.max_error_share * len(rows):
            raise StageFailed(
                f"{target.checkpoint.label}: {errors} of {len(rows)} answers could not be judged, more than verifier."
                f"max_error_share={self._run.config.verifier.max_error_share} allows; run `oapl doctor`, then again"
            )
        with self._run.writing(target.path, target.inputs, target.settings) as draft:
            draft.rows = write_table(draft.path, EVALUATIONS, rows)
            draft.details = {
                "policy_hash": policy_hash,
                "verifier_errors": errors,
                "engine": sampler.name,
                "startup_s": dict(sampler.startup_s),
            }
        return rows


def _problems(run: Run, splits: set[str]) -> dict[str, Row]:
    """The problems of these splits by id, with what the verifier must know of their prompts."""
    rows = read_table(run.problems, PROBLEMS, only=("split", splits)).to_pylist()
    prompts = read_table(run.prompts, PROMPTS, ["problem_id", "split", "prompt"], only=("split", splits)).to_pylist()
    thinking = {row["problem_id"] for row in prompts if opens_thinking(row["prompt"])}
    return {row["problem_id"]: row | {"is_thinking": row["problem_id"] in thinking} for row in rows}


def _row(
    target: _Target, policy_hash: str, answer: Completion, problem: str, kind: str, sample: int, verdict: Judged
) -> Row:
    request = answer.request
    return {
        "checkpoint": target.checkpoint.label, "policy_hash": policy_hash, "split": target.split, "problem_id": problem,
        "kind": kind, "sample": sample, "reward": verdict.reward, "outcome": str(verdict.outcome),
        "response_tokens": len(answer.response_ids), "finish_reason": answer.finish_reason, "text": answer.text,
        "temperature": request.temperature, "top_p": request.top_p, "max_tokens": request.max_tokens,
        "seed": request.seed,
    }  # fmt: skip


def _conclude(
    run: Run, parts: Sequence[Path], found: Mapping[str, Mapping[str, list[Row]]], epoch: int, chosen: str
) -> None:
    """Write every row into one file, and the measures into its line of the ledger."""
    resamples = run.config.evaluation.bootstrap_resamples
    inputs, settings = run.inputs(parts), {"seed": run.config.seed, "bootstrap_resamples": resamples}
    if run.is_done(run.evaluation(), inputs, settings):
        say("evaluation: done")
        return
    seed = derive_seed(run.config.seed, "bootstrap")
    details = {s: {label: measures(r, resamples, seed) for label, r in sets.items()} for s, sets in found.items()}
    with run.writing(run.evaluation(), inputs, settings) as draft:
        rows = [row for sets in found.values() for rows in sets.values() for row in rows]
        draft.rows = write_table(draft.path, EVALUATIONS, rows)
        draft.details = {"chosen": chosen, "chosen_epoch": epoch, **details}
    for label, measured in details["heldout"].items():
        mean, low, high = measured["pass_at_k"]["1"]
        say(f"held-out pass@1 of {label}: {mean:.1%} (95 % interval {low:.1%} to {high:.1%})")


if __name__ == "__main__":
    raise SystemExit(run_verb(evaluate, has_round=False))
