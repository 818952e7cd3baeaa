"""Checkpoints answer problems and the answers are judged: one engine for all checkpoints, part by part.

Sampling is that of rounds (rollouts/sampling.py): claimed parts, pieces of unfinished ones, several processes. So is
judging (verdicts/verify.py), in a thread, while answers of the next part are being sampled. Reads problems and prompts;
writes parts of tables.ROLLOUTS and tables.VERDICTS. Nothing is started before it is needed, or made again.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from oapl_core.evaluation.questions import Target
from oapl_core.evaluation.scores import Row
from oapl_core.evaluation.workers import Workers
from oapl_core.progress import Progress
from oapl_core.rollouts.parts import Part
from oapl_core.rollouts.requests import Sampler
from oapl_core.rollouts.sampling import Sampling
from oapl_core.run_folder.parts import store_of
from oapl_core.run_folder.run_record import verdicts_on
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig
from oapl_core.verdicts.judges import Judges
from oapl_core.verdicts.verify import judge_part

_STAGE = "evaluation"
_WAIT_S = 0.25  # until free parts are looked for again: a dead process's part should not wait longer


@dataclass(frozen=True)
class Answers:
    """Judged answers of a target, some of which may still be sampled or judged; without their texts."""

    target: Target
    _answering: "Answering"

    def rows(self) -> Sequence[Row]:
        """Wait for the target's rows.

        Raises:
            StageFailed: too many could not be judged.
        """
        return self._answering.rows(self.target)

    @property
    def others(self) -> dict[str, "Answers"]:
        """Answers of the same checkpoint decoded otherwise, by the words for it."""
        return {one.questions.config.decoding: Answers(one, self._answering) for one in self.target.others}


class Answering:
    """Sampling here, judging in one thread in parallel. Use as a context manager."""

    def __init__(self, config: EvaluationFolderConfig, total: int, workers: Workers) -> None:
        """Take ``total``, the answers of all targets there will be."""
        self._config, self._workers = config, workers
        self._progress = Progress("evaluation", total, "answers")
        self._stack = ExitStack()
        # one thread: the verifier uses every core by itself
        self._thread = ThreadPoolExecutor(1, "verifier")
        self._judges: Judges | None = None
        self._outcomes = Counter[str]()
        self._is_begun, self._is_lent, self._left = False, workers.has_engine, total
        self._missing: dict[Path, list[Part]] = {}
        """Parts of each target that are not recorded, as far as it is known, by the folder of its parts."""
        self._judging: dict[Path, Future[None]] = {}
        """Parts that are being judged here, or that this process believes to be judged."""
        self._rows: dict[Path, Sequence[Row]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._thread.shutdown()  # what is sampled is judged and written, also when the engine broke afterwards
        self._stack.__exit__(*error)

    def ask(self, target: Target) -> Answers:
        """Ask one checkpoint: answers from recorded parts, and the others sampled now and judged soon.

        What other processes have claimed they sample, while this one continues with the next checkpoint.

        Raises:
            DataError: the engine cannot run the checkpoint.
            StageFailed: too many answers could not be judged.
        """
        for one in (target, *target.others):
            self._sample(one)
        return Answers(target, self)

    def rows(self, target: Target) -> Sequence[Row]:
        """Return every row of ``target``, when all its parts are judged; those of a process that died are made here.

        Raises:
            StageFailed: too many answers could not be judged.
        """
        place = target.asking.rollouts
        if place not in self._rows:
            # one pass is not enough where others hold parts: if one of them dies, its part is free
            while not self._is_over(target):
                self._workers.look_around()
                time.sleep(_WAIT_S)
            if self._workers.replica.concludes:  # what still lies there belongs to nobody
                for wanted in (target.wanted_rollouts, target.wanted_verdicts):
                    store_of(wanted, _STAGE).close()
            self._rows[place] = list(target.rows())
            for one in target.others:  # so that nothing is concluded before they are there, too
                self.rows(one)
        return self._rows[place]

    def _is_over(self, target: Target) -> bool:
        """Do what nobody else does; whether that leaves nothing."""
        self._sample(target)
        for part in target.rollouts:
            if part in self._judging:
                self._judging[part].result()
        left = [part for part in target.rollouts if target.is_sampled(part) and not target.is_judged(part)]
        for part in left:  # another process judges it, or died as it did
            self._judge_later(target, part)
        return not left and not self._missing[target.asking.rollouts]

    def _sample(self, target: Target) -> None:
        """Sample the parts that are neither recorded nor claimed by another process."""
        asking = target.asking
        missing = self._missing.setdefault(asking.rollouts, target.parts())
        for part in [part for part in missing if target.is_sampled(part.path)]:
            missing.remove(part)
            self._left -= part.answers
            self._progress.skip(part.answers)
            self._judge_later(target, part.path)
        if missing:
            if self._is_lent:
                asking = replace(asking, details={"startup_s": {"shared with other arms": 0.0}})
            with store_of(target.wanted_rollouts, _STAGE) as parts:
                sampling = Sampling(
                    asking,
                    lambda: self._ready(target),
                    self._workers.look_around,
                    parts,
                    written=lambda part: self._judge_later(target, part.path),
                )
                self._missing[asking.rollouts] = sampling.sample_free(missing, self._progress)

    def _ready(self, target: Target) -> Sampler:
        """Return the engine with the target's weights."""
        # the verifier first: what it cannot do is known in seconds, an engine takes half a minute
        self._ready_judges(target)
        parts = math.ceil(self._left / (target.questions.problems_per_part * target.questions.config.samples))
        sampler = self._workers.sampler(target.folder, self._config.engine, parts)
        if not self._is_begun:
            self._is_begun = True
            self._stack.enter_context(self._progress)  # the rate does not count the start
        return sampler

    def _ready_judges(self, target: Target) -> Judges:
        if self._judges is None:
            verifier = self._workers.verifier(self._config.verifier, self._config.engine.replicas)
            verifier.check_canaries(target.judging.kinds)
            self._judges = self._stack.enter_context(target.judging.judges(verifier))
        return self._judges

    def _judge_later(self, target: Target, part: Path) -> None:
        """Judge a recorded part in the thread, unless it is judged.

        Raises:
            StageFailed: too many answers of a part before could not be judged.
        """
        for judged in self._judging.values():
            if judged.done():  # raises what it raised, before hours are spent on the rest
                judged.result()
        if target.is_judged(part):
            return
        self._judging[part] = self._thread.submit(self._judge, target, part, self._ready_judges(target))

    def _judge(self, target: Target, part: Path, judges: Judges) -> None:
        """Judge one part and record its verdicts, unless another process has it; runs in the thread."""
        verdicts = verdicts_on(part)
        with store_of(target.wanted_verdicts, _STAGE) as parts:
            if parts.claim(verdicts):
                judged = judge_part(target.judging, judges, part, self._outcomes)
                target.judging.record(part, verdicts, judged, judges.spent())
                parts.finish(verdicts)
