"""Checkpoints answer problems and the answers are judged: one engine for all checkpoints, part by part.

Reads problems and prompts; writes parts of tables.EVALUATIONS, each as soon as its last answer is judged, while answers
of the next are being sampled. A part holds whole problems and some 256 answers: what a crash costs at most, and how
many problems' tests are in memory. Nothing is started before it is needed, and nothing that is recorded is made again.

Every checkpoint gets the same seeds, so that what differs between two of them is less often luck.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from oapl_core.errors import StageFailed
from oapl_core.evaluation.judging import Judge, Row, row_of
from oapl_core.evaluation.machine import hardware
from oapl_core.progress import Progress, say
from oapl_core.rollouts.generate import started
from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler
from oapl_core.rollouts.sampling import Prompts
from oapl_core.run_folder.recorded import Recorded
from oapl_core.seeds import derive_seed
from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.tables import EVALUATIONS, PROBLEMS, read_table, write_table

Start = Callable[[Path, EngineConfig], Sampler]
JudgeFactory = Callable[[VerifierConfig], AbstractContextManager[Judge]]

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
    samples: int
    seed: int
    max_tokens: int
    temperature: float
    top_p: float

    @property
    def answers(self) -> int:
        """How many one checkpoint gives."""
        return len(self.prompts) * self.samples

    def parts(self) -> list[list[str]]:
        """Its problems in their order, cut where there are enough answers."""
        names, size = list(self.prompts), max(1, _PART_ANSWERS // self.samples)
        return [names[start : start + size] for start in range(0, len(names), size)]

    def requests(self, problems: Sequence[str]) -> Iterator[Request]:
        """Every request for these problems; the seed is the hash of seed, split, problem and sample."""
        for problem in problems:
            for sample in range(self.samples):
                seed = derive_seed(self.seed, "evaluation", self.split, problem, sample)
                key = f"{problem}/s{sample}"
                yield Request(key, self.prompts[problem], seed, self.max_tokens, self.temperature, self.top_p)

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


@dataclass
class Answers:
    """Judged answers of a target, which may not be there yet; without their texts."""

    files: Sequence[Path]
    """Where they are written, in order."""
    _parts: list["Future[list[Row]]"] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """Wait for them.

        Raises:
            StageFailed: too many could not be judged.
        """
        return [row for part in self._parts for row in part.result()]

    def add(self, part: "Future[list[Row]]") -> None:
        """One part more."""
        self._parts.append(part)

    def check(self) -> None:
        """Raise what a part that is over has raised."""
        for part in self._parts:
            if part.done():
                part.result()


class Answering:
    """Sampling here, judging and writing in one thread beside it. Use as a context manager."""

    def __init__(
        self,
        folder: Recorded,
        engine: EngineConfig,
        verifier: VerifierConfig,
        total: int,
        start: Start,
        judge: JudgeFactory,
    ) -> None:
        """``total``: answers of all targets there will be."""
        self._folder, self._engine_config, self._verifier_config = folder, engine, verifier
        self._start, self._judge_factory = start, judge
        self._progress = Progress("evaluation", total, "answers")
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1, "judge")
        self._sampler: Sampler | None = None
        self._loaded: Path | None = None
        self._judge: Judge | None = None

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
        answers, missing = Answers(target.files), dict[int, list[str]]()
        futures: dict[int, Future[list[Row]]] = {}
        parts = target.questions.parts()
        for number, problems in enumerate(parts):
            path, futures[number] = target.part(number), Future()
            if self._folder.is_done(path, target.inputs, target.settings):
                self._progress.skip(len(problems) * target.questions.samples)
                futures[number].set_result(read_table(path, EVALUATIONS, KEPT_COLUMNS).to_pylist())
            else:
                missing[number] = problems
        if missing:
            self._sample(target, missing, futures)
        for number in range(len(parts)):
            answers.add(futures[number])
        return answers

    def _sample(self, target: Target, missing: Mapping[int, list[str]], futures: dict[int, Future[list[Row]]]) -> None:
        judge, sampler = self._judge_ready(), self._sampler_with(target.folder)
        asked = target.questions
        owner = {problem: number for number, problems in missing.items() for problem in problems}
        held: dict[int, list[SampledAnswer]] = {number: [] for number in missing}
        requests = (request for problems in missing.values() for request in asked.requests(problems))
        judging = Answers([])
        for answer in sampler.sample(requests, with_logprobs=False):
            number = owner[asked.place(answer)[0]]
            held[number].append(answer)
            self._progress.advance(note=f"{target.label}, {asked.split} problems")
            if len(held[number]) == len(missing[number]) * asked.samples:
                judging.check()
                whole = sorted(held.pop(number), key=lambda a: _order(missing[number], asked.place(a)))
                futures[number] = self._thread.submit(self._finish, sampler, judge, target, number, whole)
                judging.add(futures[number])
        assert not held, "every request is answered once"

    def _judge_ready(self) -> Judge:
        if self._judge is None:
            self._judge = self._stack.enter_context(self._judge_factory(self._verifier_config))
            self._judge.check_canaries()
        return self._judge

    def _sampler_with(self, folder: Path) -> Sampler:
        if self._sampler is None:
            self._sampler = self._stack.enter_context(self._start(folder, self._engine_config))
            say(started(self._sampler))
            self._stack.enter_context(self._progress)
        elif self._loaded != folder:
            self._sampler.load(folder)
        self._loaded = folder
        return self._sampler

    def _finish(
        self, sampler: Sampler, judge: Judge, target: Target, number: int, answers: Sequence[SampledAnswer]
    ) -> list[Row]:
        """Judge and write one part; runs in the thread."""
        asked, limit = target.questions, self._verifier_config.max_error_share
        places = [asked.place(answer) for answer in answers]
        known = _problems(asked, {problem for problem, _ in places})
        verdicts = judge.stream(
            [known[problem] for problem, _ in places], [a.text for a in answers], [a.finish_reason for a in answers]
        )
        rows = [
            row_of(target.label, target.policy_hash, known[problem], sample, answer, verdict)
            for answer, (problem, sample), verdict in zip(answers, places, verdicts, strict=True)
        ]
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
                "sandbox_level": judge.sandbox_level,
                "startup_s": dict(sampler.startup_s),
            }
        return [{name: row[name] for name in KEPT_COLUMNS} for row in rows]


def _order(problems: Sequence[str], place: tuple[str, int]) -> tuple[int, int]:
    return problems.index(place[0]), place[1]


def _problems(asked: Questions, names: set[str]) -> dict[str, Row]:
    """These problems by id, with what the verifier must know of their prompts."""
    rows = read_table(asked.table, PROBLEMS, only=("problem_id", names)).to_pylist()
    return {row["problem_id"]: row | {"is_thinking": row["problem_id"] in asked.thinking} for row in rows}
