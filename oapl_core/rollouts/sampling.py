"""One checkpoint answers prompts, for a round or an evaluation: claim parts, sample what is missing, record them whole.

Rows go to ``in_flight.py`` as they come and to 1_rollouts/part-*.parquet (tables.ROLLOUTS) when their part is whole.
Training rollouts are always sampled at top-p=1, top-k off and no penalties, at T=1 by default (paper, section 5).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from oapl_core import plugins
from oapl_core.devices import hardware
from oapl_core.progress import Progress, say
from oapl_core.rollouts.in_flight import InFlight
from oapl_core.rollouts.parts import Part, Provenance, Row
from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler
from oapl_core.run_folder.parts import Parts
from oapl_core.run_folder.recorded import Recorded
from oapl_core.seeds import derive_seed
from oapl_core.settings.environment import EnvironmentConfig
from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.problems import PromptConfig
from oapl_core.tables import ROLLOUTS, write_table
from oapl_core.turns import spans

TOP_P, TOP_K = 1.0, 0

_WAIT_S = 0.25  # until free parts are looked for again: a dead process's part should not wait longer
_LOOK_EVERY_S = 2.0  # not after every answer: the ledger is read

Prompts = Mapping[str, Sequence[int]]
"""Prompt token ids by problem id, in the order of prompts.parquet."""


@dataclass(frozen=True)
class Asking:
    """The answers that one checkpoint is to give: to which prompts, how they are sampled, and where they go."""

    title: str
    """For people: ``round 3``."""
    folder: Recorded
    """Run or evaluation folder, whose ledger names the parts."""
    rollouts: Path
    """Folder of the parts."""
    provenance: Provenance
    model: Path
    """Folder of the checkpoint."""
    prompts: Prompts
    seed_words: tuple[int, str, str | int]
    """Words that, with problem and sample, an answer's seed is the hash of; the first is the run's seed."""
    mark: str
    """Word between problem and sample in a rollout's id."""
    problems: Path
    """File of the problems (tables.PROBLEMS)."""
    words: PromptConfig
    """Settings of the prompts: an environment's observations are worded alike."""
    engine: EngineConfig
    max_tokens: int
    flush_s: float
    """Seconds after which a finished answer is on the disk."""
    again: str
    """Options of `oapl run` that sample anew, for advice."""
    round: int | None = None
    """Round that is sampled; None: an evaluation."""
    temperature: float = 1.0
    top_p: float = TOP_P
    stop: tuple[str, ...] = ()
    stop_tokens: Literal["trained", "cut"] = "trained"
    columns: Sequence[str] = ()
    """Names of the optional columns of tokens that answers have."""
    environment: EnvironmentConfig | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the ledger's line of each part, in place of the engine's."""

    def request(self, problem: str, sample: int) -> Request:
        """Ask for one answer; its seed depends on neither part nor checkpoint."""
        seed = derive_seed(*self.seed_words, problem, sample)
        how = self.max_tokens, self.temperature, self.top_p, self.stop
        return Request(f"{problem}/{self.mark}/s{sample}", self.prompts[problem], seed, *how, problem_id=problem)


class Sampling:
    """One process's work on an asking."""

    def __init__(
        self,
        asking: Asking,
        engine: Callable[[], Sampler],
        look: Callable[[], None],
        parts: Parts,
        written: Callable[[Part], None] | None = None,
    ) -> None:
        """Prepare; nothing is claimed yet.

        Args:
            asking: which answers.
            engine: gives the started engine with the checkpoint's weights; called when the first part is claimed.
            look: called now and then, to look after other processes.
            parts: store in which parts are claimed; its context is around this work.
            written: called with each part that was sampled and recorded here.
        """
        self._asking, self._folder, self._provenance = asking, asking.folder, asking.provenance
        self._engine, self._look, self._parts, self._written = engine, look, parts, written
        self._in_flight = InFlight(parts, asking.provenance.inputs, asking.provenance.settings, asking.flush_s)
        self._stack = ExitStack()
        self._sampler: Sampler | None = None
        self._open: dict[Path, Part] = {}
        """Parts that are not settled and that this process has not claimed."""
        self._whole: list[Part] = []
        """Parts whose last answer is here."""
        self._place: dict[str, tuple[Part, int, int]] = {}  # of each request in the engine: part, problem, sample
        self._start = self._looked = time.monotonic()
        self._tokens, self._answers, self._writing_s = 0, 0, 0.0
        self._told: Callable[[], str] | None = None
        """Says what an environment did."""

    def left(self, key: str) -> bytes | None:
        """Return the state that an earlier process left of a trajectory (TurnStore)."""
        return self._in_flight.state(self._place[key][0], key)

    def keep(self, key: str, state: bytes) -> None:
        """Keep a trajectory after a finished turn."""
        self._in_flight.keep_state(self._place[key][0], key, state)

    def finish(self, parts: Sequence[Part], progress: Progress) -> None:
        """Claim, sample and write parts until all are settled, by whomever.

        Raises:
            OSError: the disk is full or read-only.
        """
        self._open = {part.path: part for part in parts}
        with self._in_flight, self._stack:
            # One pass claims every part that is free. More are needed where other processes hold parts: if one of them
            # dies, its part is free, so this process stays until every part is settled.
            self._sample_free(progress)
            while self._open:
                time.sleep(_WAIT_S)
                self._look()
                self._sample_free(progress)

    def sample_free(self, parts: Sequence[Part], progress: Progress) -> list[Part]:
        """Sample and write those of ``parts`` that no other process has; return the others.

        Raises:
            OSError: the disk is full or read-only.
        """
        self._open = {part.path: part for part in parts}
        with self._in_flight, self._stack:
            self._sample_free(progress)
        return list(self._open.values())

    def _sample_free(self, progress: Progress) -> None:
        self._settle(progress)
        requests = self._requests(progress)
        # before an engine is started, or weights are loaded, for nothing
        first = next(requests, None)
        if first is None and not self._whole:
            return
        for answer in self._ready().sample(chain([first] if first else [], requests)):
            self._keep(answer, progress)
            self._write_whole()
            self._look_around(progress)
        assert not self._place, f"{len(self._place)} requests were never answered"
        self._write_whole()

    def _ready(self) -> Sampler:
        """Return the engine, with the environment between its turns if there is one."""
        if self._sampler is None:
            asking, self._sampler = self._asking, self._engine()
            self._start = time.monotonic()
            if asking.environment:
                how = asking.environment, asking.words, asking.engine, asking.stop, asking.model, asking.problems
                # by name: only a run with an environment loads it
                begin = plugins.resolve("sampler", "turns")
                turns = self._stack.enter_context(begin(self._sampler, *how, self, asking.again))
                self._sampler, self._told = turns, turns.summary
        assert self._sampler
        return self._sampler

    def _requests(self, progress: Progress) -> Iterator[Request]:
        """Pass once over the open parts: those that nobody else has are claimed as the engine has room."""
        # Lazily: a part is claimed when the engine has room for its first request. Who claimed all parts at once would
        # leave nothing to the other processes.
        for part in list(self._open.values()):
            if not self._claim(part, progress):
                continue
            self._ready()  # a start of the engine is not the part's time
            part.started_s = time.monotonic()
            for place, sample in part.missing:
                request = self._asking.request(part.problems[place], sample)
                assert request.key not in self._place, f"{request.key} is asked for twice"
                self._place[request.key] = part, place, sample
                yield request

    def _claim(self, part: Part, progress: Progress) -> bool:
        if part.path not in self._open or not self._in_flight.claim(part):
            return False
        del self._open[part.path]
        if part.rows:
            say(f"{part.path.name}: {len(part.rows)} of its {part.answers} answers were sampled before")
            progress.skip(len(part.rows))
        if part.is_whole:
            self._whole.append(part)
        return True

    def _settle(self, progress: Progress) -> None:
        """Count open parts that others have finished meanwhile; they are no longer open."""
        for path, details in self._parts.settled(self._open).items():
            part = self._open.pop(path)
            self._answers += part.answers
            self._tokens += details["response_tokens"]
            progress.advance(part.answers)

    def _keep(self, answer: SampledAnswer, progress: Progress) -> None:
        part, place, sample = self._place.pop(answer.request.key)
        part.rows[place, sample] = row = self._row(answer, part.problems[place], sample)
        self._in_flight.add(part, row)
        if part.is_whole:
            self._whole.append(part)
        self._tokens += answer.sampled_tokens
        self._answers += 1
        title = f"{self._asking.title}, " if self._asking.round is None else ""
        progress.advance(note=f"{title}{self._tokens / (time.monotonic() - self._start):,.0f} tokens/s")

    def _write_whole(self) -> None:
        while self._whole:
            self._write(self._whole.pop(0))

    def _look_around(self, progress: Progress) -> None:
        """Look now and then for parts that others have finished, and for others that died."""
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._look()
            self._settle(progress)
            progress.advance(0)
            self._looked = time.monotonic()

    def _row(self, answer: SampledAnswer, problem: str, sample: int) -> Row:
        request, sampler = answer.request, self._ready()
        assert len(answer.logprobs) == len(answer.response_ids), "one log-prob for each sampled token"
        cut = answer.stop_tokens if self._asking.stop_tokens == "cut" else 0
        kept = max(1, len(answer.response_ids) - cut)
        return {
            "run": self._folder.root.name,
            "round": self._asking.round,
            "problem_id": problem,
            "rollout_id": request.key,
            "sample": sample,
            "policy_hash": self._provenance.policy_hash,
            "response_ids": answer.response_ids[:kept],
            "logprobs": answer.logprobs[:kept],
            "logprobs_mode": sampler.logprobs_mode,
            "finish_reason": answer.finish_reason,
            "text": answer.text,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": TOP_K,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "engine": sampler.name,
            "sampled_at": datetime.now(UTC),
            **self._columns(answer, kept),
            **answer.row,
        }

    def _columns(self, answer: SampledAnswer, kept: int) -> Row:
        tokens = len(answer.request.prompt_ids) + kept - 1
        found = {name: answer.columns[name] for name in self._asking.columns}
        assert all(len(numbers) >= tokens for numbers in found.values()), "numbers of every token but the last"
        return {name: numbers[:tokens].tobytes() for name, numbers in found.items()}

    def _write(self, part: Part) -> None:
        """Write and record a whole part, problems and samples in order, and forget its rows."""
        start, sampler = time.monotonic(), self._ready()
        rows = [part.rows[key] for key in sorted(part.rows)]
        with self._folder.writing(part.path, self._provenance.inputs, self._provenance.settings) as draft:
            draft.rows = write_table(draft.path, ROLLOUTS, rows)
            draft.details = {
                "policy_hash": self._provenance.policy_hash,
                "problems": len(part.problems),
                "response_tokens": sum(len(own) for row in rows for own, _ in spans(row)),
                "truncated": sum(row["finish_reason"] == "length" for row in rows),
                "engine": sampler.name,
                "dtype": sampler.dtype,
                "hardware": hardware(),
                "startup_s": dict(sampler.startup_s),
                "sampling_s": round(start - part.started_s, 3),
                **self._asking.details,
            }
        self._in_flight.release(part)  # only now: killed before the ledger has the part, its answers are in the pieces
        part.rows.clear()
        self._writing_s += time.monotonic() - start
        if self._written:
            self._written(part)

    def summary(self) -> str:
        """Return one line on what was sampled and how long it took."""
        seconds = time.monotonic() - self._start - self._writing_s
        turns = f" ({self._told()})" if self._told else ""
        return (
            f"{self._asking.title}: {self._answers:,} rollouts, {self._tokens:,} tokens{turns}; sampling {seconds:.1f} "
            f"s ({self._tokens / max(seconds, 1e-9):,.0f} tokens/s), writing {self._writing_s:.1f} s"
        )
