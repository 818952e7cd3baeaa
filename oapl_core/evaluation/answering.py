"""Checkpoints answer problems and the answers are judged: one engine for all checkpoints, part by part.

Reads problems and prompts; writes parts of tables.EVALUATIONS, each as soon as its last answer is judged, while answers
of the next are being sampled. Nothing is started before it is needed, and nothing that is recorded is made again.

The parts are a queue that processes share, as those of a round are (rollouts/in_flight.py): each is claimed by a lock,
and an answer does not depend on who samples it.
"""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Self

from oapl_core.devices import hardware
from oapl_core.errors import ConfigError, StageFailed
from oapl_core.evaluation.measures import Row
from oapl_core.evaluation.questions import Questions, Target
from oapl_core.evaluation.workers import AnswerVerifier, Workers
from oapl_core.progress import Progress
from oapl_core.rollouts.in_flight import lock, unlock
from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler
from oapl_core.rollouts.turn_sampler import turn_sampler
from oapl_core.run_folder.recorded import Recorded
from oapl_core.run_folder.run import IN_FLIGHT
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig
from oapl_core.settings.reward import threshold
from oapl_core.tables import EVALUATIONS, PROBLEMS, is_correct, read_table, write_table
from oapl_core.turns import FAILED
from oapl_core.verdicts.environment_rewards import Played, by_environment
from oapl_core.verdicts.rewards import Rewarder
from oapl_core.verdicts.verifier import Verdict

_AGAIN = "--redo evaluation"
_WAIT_S = 0.25  # until free parts are looked for again: a dead process's part should not wait longer
KEPT_COLUMNS = tuple(name for name, _ in EVALUATIONS if name != "text")
"""Of a judged answer, what stays in memory."""


@dataclass(frozen=True)
class Answers:
    """Judged answers of a target, some of which may still be sampled or judged; without their texts."""

    target: Target
    _answering: "Answering"

    def rows(self) -> list[Row]:
        """Wait for them.

        Raises:
            StageFailed: too many could not be judged.
        """
        return self._answering.rows(self.target)


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
        self._rewarder = Rewarder(config.reward, config.max_tokens, config.verifier.workers)
        self._startup_s: dict[str, float] | None = None
        self._left = total
        self._parts: dict[Path, Future[list[Row]]] = {}
        """What is recorded, by whomever, or being judged here."""
        self._locks: dict[Path, IO[str]] = {}
        """Of the parts that this process has claimed."""

    def __enter__(self) -> Self:
        self._stack.enter_context(self._rewarder)
        return self

    def __exit__(self, *error: Any) -> None:
        self._thread.shutdown()  # what is sampled is judged and written, also when the engine broke afterwards
        for file in self._locks.values():
            file.close()
        self._stack.__exit__(*error)

    def ask(self, target: Target) -> Answers:
        """The answers of one checkpoint: from recorded parts, and the others sampled now and judged soon.

        What other processes have claimed they sample, while this one continues with the next checkpoint.

        Raises:
            DataError: the engine cannot run the checkpoint.
            StageFailed: too many answers could not be judged.
        """
        self._sample_free_parts(target)
        return Answers(target, self)

    def rows(self, target: Target) -> list[Row]:
        """Every row of ``target``, when all its parts are recorded; those of a process that died are sampled here.

        Raises:
            StageFailed: too many answers could not be judged.
        """
        # one pass is not enough where others hold parts: if one of them dies, its part is free
        while any(path not in self._parts for path in target.files):
            if not self._sample_free_parts(target):
                self._workers.look_around()
                time.sleep(_WAIT_S)
        return [row for path in target.files for row in self._parts[path].result()]

    def _sample_free_parts(self, target: Target) -> bool:
        """Sample what is neither recorded nor claimed by another process; whether there was anything."""
        claimed = self._claimed(target)
        first = next(claimed, None)  # before an engine is started, or weights are loaded, for nothing
        if first is not None:
            self._sample(target, chain([first], claimed))
        return first is not None

    def _claimed(self, target: Target) -> Iterator[tuple[int, list[str]]]:
        """Parts that were free, each claimed when the engine has room for its first request."""
        for number, problems in enumerate(target.questions.parts()):
            path = target.part(number)
            if path in self._parts or path in self._locks or self._is_recorded(target, path, len(problems)):
                continue
            file = lock(_in_flight(path))
            if file is None:
                continue
            self._locks[path] = file  # held until the part is recorded, so longer than it is sampled
            # look again, now that nobody else can finish it: another process may have done so just before
            if self._is_recorded(target, path, len(problems)):
                self._release(path)
            else:
                yield number, problems

    def _is_recorded(self, target: Target, path: Path, problems: int) -> bool:
        if not self._folder.is_done(path, target.inputs, target.settings):
            return False
        answers = problems * target.questions.config.samples
        self._left -= answers
        self._progress.skip(answers)
        self._parts[path] = part = Future[list[Row]]()
        part.set_result(read_table(path, EVALUATIONS, KEPT_COLUMNS).to_pylist())
        return True

    def _release(self, path: Path) -> None:
        unlock(_in_flight(path), self._locks.pop(path))
        with suppress(OSError):  # other parts are in flight
            _in_flight(path).parent.rmdir()

    def _sample(self, target: Target, claimed: Iterator[tuple[int, list[str]]]) -> None:
        # the verifier first: what it cannot do is known in seconds, an engine takes half a minute
        verifier, sampler = self._ready_verifier(), self._ready_sampler(target)
        asked = target.questions
        taken, owner = dict[int, list[str]](), dict[str, int]()
        held = dict[int, list[SampledAnswer]]()

        def requests() -> Iterator[Request]:
            for number, problems in claimed:
                taken[number], held[number] = problems, []
                owner.update(dict.fromkeys(problems, number))
                yield from asked.requests(problems)

        with self._in_turns(sampler, target) as asking:
            for answer in asking.sample(requests(), with_logprobs=False):
                number = owner[asked.place(answer)[0]]
                held[number].append(answer)
                self._progress.advance(note=f"{target.label}, {asked.split} problems")
                if len(held[number]) == len(taken[number]) * asked.config.samples:
                    for part in self._parts.values():
                        if part.done():  # raises what it raised, before hours are spent on the rest
                            part.result()
                    # answers come as they are finished; rows are in the order of problems and samples
                    whole = sorted(held.pop(number), key=lambda a: _order(taken[number], asked.place(a)))
                    judged = self._thread.submit(self._finish, sampler, verifier, target, number, whole)
                    self._parts[target.part(number)] = judged
        assert not held, "every request is answered once"

    def _in_turns(self, sampler: Sampler, target: Target) -> AbstractContextManager[Sampler]:
        """The engine, with the environment between its turns if there is one."""
        config, asked = self._config, target.questions
        if config.environment is None:
            return nullcontext(sampler)
        where = config.stop or (), target.folder, asked.table
        return turn_sampler(sampler, config.environment, config, config.engine, *where, again=_AGAIN)

    def _ready_verifier(self) -> AnswerVerifier:
        if self._verifier is None:
            self._verifier = self._workers.verifier(self._config.verifier, self._config.engine.replicas)
            self._verifier.check_canaries()
        return self._verifier

    def _ready_sampler(self, target: Target) -> Sampler:
        is_lent = self._workers.has_engine
        sampler = self._workers.sampler(target.folder, self._config.engine, self._parts_left(target))
        if self._startup_s is None:
            self._startup_s = {"shared with other arms": 0.0} if is_lent else dict(sampler.startup_s)
            self._stack.enter_context(self._progress)  # the rate does not count the start
        return sampler

    def _parts_left(self, target: Target) -> int:
        """About how many there are still, as large as those of ``target``: more replicas have nothing to do."""
        return math.ceil(self._left * len(target.files) / target.questions.answers)

    def _judged(
        self, verifier: AnswerVerifier, problems: Sequence[Row], answers: Sequence[SampledAnswer]
    ) -> Iterator[Verdict]:
        reasons = [answer.finish_reason for answer in answers]
        if self._config.environment is None:
            return verifier.stream(problems, [answer.text for answer in answers], reasons)
        played = [Played.of(a.finish_reason, asdict(a.turns) if a.turns else {}) for a in answers]
        texts = [one.text(answer.text) for one, answer in zip(played, answers, strict=True)]
        return by_environment(verifier.stream(problems, texts, reasons), played, threshold(self._config.reward))

    def _finish(
        self, sampler: Sampler, verifier: AnswerVerifier, target: Target, number: int, answers: Sequence[SampledAnswer]
    ) -> list[Row]:
        """Judge and write one part; runs in the thread."""
        asked, limit = target.questions, self._config.verifier.max_error_share
        places = [asked.place(answer) for answer in answers]
        known = _problems(asked, {problem for problem, _ in places})
        problems, texts = [known[problem] for problem, _ in places], [a.text for a in answers]
        verdicts, unusable_before = self._judged(verifier, problems, answers), self._rewarder.unusable
        verdicts = self._rewarder.stream(problems, texts, [a.sampled_tokens for a in answers], verdicts)
        rows = [
            _row(target, known[problem], sample, answer, verdict, threshold(self._config.reward))
            for answer, (problem, sample), verdict in zip(answers, places, verdicts, strict=True)
        ]
        # of each part, so that a verifier that breaks ends the stage at once and leaves no part to be believed
        errors = sum(row["reward"] is None for row in rows)
        if errors - (self._rewarder.unusable - unusable_before) > limit * len(rows):
            said = (
                f"{target.label}: {errors} of {len(rows)} answers could not be judged, more than verifier."
                f"max_error_share={limit} allows{self._rewarder.said}"
            )
            failed = sum(answer.finish_reason == FAILED for answer in answers)
            if self._config.environment and failed == errors:  # a person's own class: no machine does better
                raise ConfigError(f"{said}; {self._config.environment.advice(_AGAIN)}")
            raise StageFailed(f"{said}; {self._rewarder.advice(errors)}, then again")
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
        self._release(target.part(number))
        return [{name: row[name] for name in KEPT_COLUMNS} for row in rows]


def _row(target: Target, problem: Row, sample: int, answer: SampledAnswer, verdict: Verdict, right_from: float) -> Row:
    """Make a row of tables.EVALUATIONS."""
    request = answer.request
    return {
        "checkpoint": target.label,
        "policy_hash": target.policy_hash,
        **{name: problem[name] for name in ("split", "problem_id", "kind")},
        "sample": sample,
        "reward": verdict.reward,
        "correct": is_correct(verdict.reward, right_from),
        "outcome": verdict.outcome.value,
        "response_tokens": answer.sampled_tokens,
        "finish_reason": answer.finish_reason,
        "text": answer.text,
        **{name: getattr(request, name) for name in ("temperature", "top_p", "max_tokens", "seed")},
    }


def _in_flight(part: Path) -> Path:
    """Where the lock of a part lies while it is sampled and judged."""
    return part.parent / IN_FLIGHT / part.stem


def _order(problems: Sequence[str], place: tuple[str, int]) -> tuple[int, int]:
    return problems.index(place[0]), place[1]


def _problems(asked: Questions, names: set[str]) -> dict[str, Row]:
    """These problems by id, with what the verifier must know of their prompts."""
    # read again for each part: the tests of a whole set may not fit into memory
    rows = read_table(asked.table, PROBLEMS, only=("problem_id", names)).to_pylist()
    return {row["problem_id"]: row | {"is_thinking": row["problem_id"] in asked.thinking} for row in rows}
