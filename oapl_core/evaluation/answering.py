"""Checkpoints answer problems and the answers are judged: one engine for all checkpoints, part by part.

Reads problems and prompts; writes parts of tables.EVALUATIONS, each as soon as its last answer is judged, while answers
of the next are being sampled. A part holds whole problems and some 256 answers: what a crash costs at most, and how
many problems' tests are in memory. Nothing is started before it is needed, and nothing that is recorded is made again.

Every checkpoint gets the same seeds, so that what differs between two of them is less often luck.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from oapl_core.errors import StageFailed
from oapl_core.evaluation.machine import hardware
from oapl_core.evaluation.measures import Row
from oapl_core.evaluation.workers import AnswerVerifier, Workers
from oapl_core.progress import Progress
from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler
from oapl_core.rollouts.sampling import Prompts
from oapl_core.run_folder.recorded import Recorded
from oapl_core.seeds import derive_seed
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig
from oapl_core.tables import EVALUATIONS, PROBLEMS, PROMPTS, read_table, write_table
from oapl_core.verdicts.extraction import opens_thinking
from oapl_core.verdicts.verifier import Verdict

_PART_ANSWERS = 256
KEPT_COLUMNS = tuple(name for name, _ in EVALUATIONS if name != "text")
"""Of a judged answer, what stays in memory."""


@dataclass(frozen=True)
class Questions:
    """Problems of one split with their prompts, and how they are asked."""

    split: str
    table: Path
    """tables.PROBLEMS that has them."""
    prompts: Prompts
    thinking: frozenset[str]
    """Problems whose prompt ends inside of <think>."""
    config: EvaluationFolderConfig
    """samples, seed, temperature, top_p, max_tokens and stop."""

    @classmethod
    def read(cls, problems: Path, prompts: Path, config: EvaluationFolderConfig) -> Self:
        """What two tables hold, of the settings' split if they name one; perhaps nothing."""
        split = config.problems.split
        rows = read_table(prompts, PROMPTS, only=("split", [split]) if split else None).to_pylist()
        ids = {row["problem_id"]: row["prompt_ids"] for row in rows}
        thinking = frozenset(row["problem_id"] for row in rows if opens_thinking(row["prompt"]))
        return cls(split or rows[0]["split"], problems, ids, thinking, config)

    @property
    def answers(self) -> int:
        """How many one checkpoint gives."""
        return len(self.prompts) * self.config.samples

    def parts(self) -> list[list[str]]:
        """Its problems in their order, cut where there are enough answers."""
        # whole problems, since their tests are read once for a part
        names, size = list(self.prompts), max(1, _PART_ANSWERS // self.config.samples)
        return [names[start : start + size] for start in range(0, len(names), size)]

    def requests(self, problems: Sequence[str]) -> Iterator[Request]:
        """Every request for these problems; the seed is the hash of seed, split, problem and sample."""
        config = self.config
        for problem in problems:
            for sample in range(config.samples):
                # no checkpoint in it: all get the same seeds
                seed = derive_seed(config.seed, "evaluation", self.split, problem, sample)
                key, prompt = f"{problem}/s{sample}", self.prompts[problem]
                stop = config.stop or ()
                yield Request(key, prompt, seed, config.max_tokens, config.temperature, config.top_p, stop)

    def place(self, answer: SampledAnswer) -> tuple[str, int]:
        """Problem and number of the answer."""
        problem, _, sample = answer.request.key.rpartition("/s")
        assert problem in self.prompts
        return problem, int(sample)


@dataclass(frozen=True)
class Target:
    """A checkpoint that answers questions."""

    label: str
    folder: Path
    policy_hash: str
    questions: Questions
    beginning: Path
    """Of the names of its parts."""
    inputs: Mapping[str, str]
    settings: Mapping[str, Any]

    def part(self, number: int) -> Path:
        """File of part ``number``."""
        return self.beginning.with_name(f"{self.beginning.name}-{number:05d}.parquet")

    @property
    def files(self) -> list[Path]:
        """Of every part."""
        return [self.part(number) for number in range(len(self.questions.parts()))]


@dataclass(frozen=True)
class Answers:
    """Judged answers of a target, some of which may still be judged; without their texts."""

    target: Target
    _parts: "Sequence[Future[list[Row]]]"

    def rows(self) -> list[Row]:
        """Wait for them.

        Raises:
            StageFailed: too many could not be judged.
        """
        return [row for part in self._parts for row in part.result()]


class Answering:
    """Sampling here, judging and writing in one thread in parallel. Use as a context manager."""

    def __init__(self, folder: Recorded, config: EvaluationFolderConfig, total: int, workers: Workers) -> None:
        """``total``: answers of all targets there will be."""
        self._folder, self._config, self._workers = folder, config, workers
        self._progress = Progress("evaluation", total, "answers")
        self._stack = ExitStack()
        # one thread: the verifier uses every core by itself, and parts are written in the order in which they are whole
        self._thread = ThreadPoolExecutor(1, "verifier")
        self._verifier: AnswerVerifier | None = None
        self._startup_s: dict[str, float] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._thread.shutdown()  # what is sampled is judged and written, also when the engine broke afterwards
        self._stack.__exit__(*error)

    def ask(self, target: Target) -> Answers:
        """The answers of one checkpoint: from recorded parts, and the others sampled now and judged soon.

        Raises:
            DataError: the engine cannot run the checkpoint.
            StageFailed: too many answers could not be judged.
        """
        parts, missing = dict[int, Future[list[Row]]](), dict[int, list[str]]()
        for number, problems in enumerate(target.questions.parts()):
            path, parts[number] = target.part(number), Future()
            if self._folder.is_done(path, target.inputs, target.settings):
                self._progress.skip(len(problems) * target.questions.config.samples)
                parts[number].set_result(read_table(path, EVALUATIONS, KEPT_COLUMNS).to_pylist())
            else:
                missing[number] = problems
        if missing:
            parts |= self._sample(target, missing)
        return Answers(target, list(parts.values()))

    def _sample(self, target: Target, missing: Mapping[int, list[str]]) -> "dict[int, Future[list[Row]]]":
        # the verifier first: what it cannot do is known in seconds, an engine takes half a minute
        verifier, sampler = self._ready_verifier(), self._ready_sampler(target.folder)
        asked = target.questions
        owner = {problem: number for number, problems in missing.items() for problem in problems}
        held: dict[int, list[SampledAnswer]] = {number: [] for number in missing}
        requests = (request for problems in missing.values() for request in asked.requests(problems))
        judged = dict[int, Future[list[Row]]]()
        for answer in sampler.sample(requests, with_logprobs=False):
            number = owner[asked.place(answer)[0]]
            held[number].append(answer)
            self._progress.advance(note=f"{target.label}, {asked.split} problems")
            if len(held[number]) == len(missing[number]) * asked.config.samples:
                for part in judged.values():
                    if part.done():  # raises what it raised, before hours are spent on the rest
                        part.result()
                # answers come as they are finished; rows are in the order of problems and samples
                whole = sorted(held.pop(number), key=lambda a: _order(missing[number], asked.place(a)))
                judged[number] = self._thread.submit(self._finish, sampler, verifier, target, number, whole)
        assert not held, "every request is answered once"
        return judged

    def _ready_verifier(self) -> AnswerVerifier:
        if self._verifier is None:
            self._verifier = self._workers.verifier(self._config.verifier)
            self._verifier.check_canaries()
        return self._verifier

    def _ready_sampler(self, model: Path) -> Sampler:
        is_lent = self._workers.has_engine
        sampler = self._workers.sampler(model, self._config.engine)
        if self._startup_s is None:
            self._startup_s = {"shared with other arms": 0.0} if is_lent else dict(sampler.startup_s)
            self._stack.enter_context(self._progress)  # the rate does not count the start
        return sampler

    def _finish(
        self, sampler: Sampler, verifier: AnswerVerifier, target: Target, number: int, answers: Sequence[SampledAnswer]
    ) -> list[Row]:
        """Judge and write one part; runs in the thread."""
        asked, limit = target.questions, self._config.verifier.max_error_share
        places = [asked.place(answer) for answer in answers]
        known = _problems(asked, {problem for problem, _ in places})
        verdicts = verifier.stream(
            [known[problem] for problem, _ in places], [a.text for a in answers], [a.finish_reason for a in answers]
        )
        rows = [
            _row(target, known[problem], sample, answer, verdict)
            for answer, (problem, sample), verdict in zip(answers, places, verdicts, strict=True)
        ]
        # of each part, so that a verifier that breaks ends the stage at once and leaves no part to be believed
        errors = sum(row["reward"] is None for row in rows)
        if errors > limit * len(rows):
            raise StageFailed(
                f"{target.label}: {errors} of {len(rows)} answers could not be judged, more than verifier."
                f"max_error_share={limit} allows; run `oapl doctor`, then again"
            )
        with self._folder.writing(target.part(number), target.inputs, target.settings) as draft:
            draft.rows = write_table(draft.path, EVALUATIONS, rows)
            draft.details = {
                "policy_hash": target.policy_hash,
                "verifier_errors": errors,
                "engine": sampler.name,
                "dtype": sampler.dtype,
                "hardware": hardware(),
                "sandbox_level": verifier.sandbox_level,
                "startup_s": self._startup_s,
            }
        return [{name: row[name] for name in KEPT_COLUMNS} for row in rows]


def _row(target: Target, problem: Row, sample: int, answer: SampledAnswer, verdict: Verdict) -> Row:
    """A row of tables.EVALUATIONS."""
    request = answer.request
    return {
        "checkpoint": target.label,
        "policy_hash": target.policy_hash,
        **{name: problem[name] for name in ("split", "problem_id", "kind")},
        "sample": sample,
        "reward": verdict.reward,
        "outcome": verdict.outcome.value,
        "response_tokens": len(answer.response_ids),
        "finish_reason": answer.finish_reason,
        "text": answer.text,
        **{name: getattr(request, name) for name in ("temperature", "top_p", "max_tokens", "seed")},
    }


def _order(problems: Sequence[str], place: tuple[str, int]) -> tuple[int, int]:
    return problems.index(place[0]), place[1]


def _problems(asked: Questions, names: set[str]) -> dict[str, Row]:
    """These problems by id, with what the verifier must know of their prompts."""
    # read again for each part: the tests of a whole set may not fit into memory
    rows = read_table(asked.table, PROBLEMS, only=("problem_id", names)).to_pylist()
    return {row["problem_id"]: row | {"is_thinking": row["problem_id"] in asked.thinking} for row in rows}
