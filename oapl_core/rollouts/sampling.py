"""One process's work on a round: claim parts, sample the answers missing from them, record each when it is whole.

Rows go to ``in_flight.py`` as they come and to round_NN/1_rollouts/part-*.parquet when their part is whole. Training
rollouts are always sampled at T=1, top-p=1, top-k off and no penalties (paper, section 5); nothing changes that.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime

from oapl_core.progress import Progress, say
from oapl_core.rollouts.in_flight import InFlight
from oapl_core.rollouts.parts import Part, Row
from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler
from oapl_core.rollouts.sharing import Provenance, Sharing
from oapl_core.rollouts.turn_sampler import TurnSampler, turn_sampler
from oapl_core.run_folder.run import Run
from oapl_core.runner import Crew
from oapl_core.seeds import derive_seed
from oapl_core.tables import ROLLOUTS, ROUTES, write_table
from oapl_core.turns import spans

TEMPERATURE, TOP_P, TOP_K = 1.0, 1.0, 0

_WAIT_S = 0.25  # until free parts are looked for again: a dead process's part should not wait longer
_LOOK_EVERY_S = 2.0  # not after every answer: the ledger is read

Prompts = Mapping[str, Sequence[int]]
"""Prompt token ids by problem id, in the order of prompts.parquet."""


class Sampling:
    """One process's work on a round."""

    def __init__(
        self,
        run: Run,
        number: int,
        provenance: Provenance,
        sampler: Sampler,
        more: Crew,
        sharing: Sharing | None = None,
    ) -> None:
        """``sharing``: a queue that machines without the run folder take parts from, too."""
        self._run, self._number, self._provenance = run, number, provenance
        self._sampler, self._more, self._sharing = sampler, more, sharing
        environment = run.config.environment
        flush_s, queue = run.config.sampling.flush_s, sharing.queue if sharing else None
        made_of = provenance.inputs, provenance.settings
        self._in_flight = InFlight(run.rollouts(number), *made_of, flush_s, queue)
        self._open: dict[str, Part] = {}
        """Parts that are not recorded and that this process has not claimed, by their name in the ledger."""
        self._whole: list[Part] = []
        """Parts whose last answer is here."""
        self._place: dict[str, tuple[Part, int, int]] = {}
        self._start = self._looked = time.monotonic()
        self._tokens, self._answers, self._writing_s = 0, 0, 0.0
        self._turns: TurnSampler | None = None
        if environment:
            model, stop = run.behavior(number), run.config.sampling.stop
            prompts, engine = run.config.problems, run.config.engine
            where, again = (model, run.problems, self), f"--redo sampling --round {number}"
            self._turns = turn_sampler(sampler, environment, prompts, engine, stop, *where, again)
            self._sampler = self._turns

    def left(self, key: str) -> bytes | None:
        """What an earlier process left of a trajectory (turn_sampler.py: TurnStore)."""
        return self._in_flight.turns(self._place[key][0], key)

    def keep(self, key: str, state: bytes) -> None:
        """A trajectory after a finished turn."""
        self._in_flight.keep_turns(self._place[key][0], key, state)

    def finish(self, parts: Sequence[Part], prompts: Prompts, progress: Progress) -> None:
        """Claim, sample and write parts until all are recorded, by whomever.

        Raises:
            OSError: the disk is full or read-only.
        """
        self._open = {self._run.name(part.path): part for part in parts}
        with self._in_flight, self._turns or nullcontext():
            # One pass claims every part that is free. More are needed where other processes hold parts: if one of them
            # dies, its part is free, so this process stays until every part is recorded.
            while True:
                for answer in self._sampler.sample(self._requests(prompts, progress)):
                    self._keep(answer, progress)
                    self._write_whole()
                    self._look_around(progress)
                assert not self._place, f"{len(self._place)} requests were never answered"
                self._write_whole()
                if not self._open:
                    return
                time.sleep(_WAIT_S)
                self._look_around(progress)

    def _requests(self, prompts: Prompts, progress: Progress) -> Iterator[Request]:
        """One pass over the open parts: those that nobody else has are claimed as the engine has room."""
        run = self._run
        # Lazily: a part is claimed when the engine has room for its first request. Who claimed all parts at once would
        # leave nothing to the other processes.
        for name, part in list(self._open.items()):
            if not self._claim(name, part, progress):
                continue
            part.started_s = time.monotonic()
            for place, sample in part.missing:
                problem = part.problems[place]
                key = f"{problem}/r{self._number:02d}/s{sample}"
                assert key not in self._place, f"{key} is asked for twice"
                self._place[key] = part, place, sample
                seed = derive_seed(run.config.seed, "rollout", self._number, problem, sample)
                config = run.config.sampling
                how = config.max_tokens, TEMPERATURE, TOP_P, config.stop
                yield Request(key, prompts[problem], seed, *how, problem_id=problem)

    def _claim(self, name: str, part: Part, progress: Progress) -> bool:
        if name not in self._open or self._is_recorded(name, part, progress) or not self._in_flight.claim(part):
            return False
        # Look again, now that nobody else can finish it: another process may have done so just before we had the lock.
        if self._is_recorded(name, part, progress):
            self._in_flight.release(part)
            return False
        del self._open[name]
        if part.rows:
            say(f"{part.path.name}: {len(part.rows)} of its {part.answers} answers were sampled before")
            progress.skip(len(part.rows))
        if part.is_whole:
            self._whole.append(part)
        return True

    def _is_recorded(self, name: str, part: Part, progress: Progress) -> bool:
        """Whether another process has recorded an open part; then it is no longer open."""
        if self._provenance.has_made(self._run, part):
            tokens = self._run.ledger.artifacts()[name].details["response_tokens"]
        elif self._sharing is None or (tokens := self._sharing.settle(part)) is None:
            return False
        del self._open[name]
        self._answers += part.answers
        self._tokens += tokens
        progress.advance(part.answers)
        return True

    def _keep(self, answer: SampledAnswer, progress: Progress) -> None:
        part, place, sample = self._place.pop(answer.request.key)
        part.rows[place, sample] = row = self._row(answer, part.problems[place], sample)
        self._in_flight.add(part, row)
        if part.is_whole:
            self._whole.append(part)
        self._tokens += answer.sampled_tokens
        self._answers += 1
        progress.advance(note=f"{self._tokens / (time.monotonic() - self._start):,.0f} tokens/s")

    def _write_whole(self) -> None:
        while self._whole:
            self._write(self._whole.pop(0))

    def _look_around(self, progress: Progress) -> None:
        """Now and then: what others have recorded, and which of them died."""
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            self._more.report()
            recorded = self._run.ledger.artifacts().keys() & self._open.keys()
            if self._sharing:
                recorded |= self._sharing.finished(self._open)
            for name in sorted(recorded):
                self._is_recorded(name, self._open[name], progress)
            progress.advance(0)
            self._looked = time.monotonic()

    def _row(self, answer: SampledAnswer, problem: str, sample: int) -> Row:
        request = answer.request
        assert len(answer.logprobs) == len(answer.response_ids), "one log-prob for each sampled token"
        cut = answer.stop_tokens if self._run.config.sampling.stop_tokens == "cut" else 0
        kept = max(1, len(answer.response_ids) - cut)
        return {
            "run": self._run.root.name,
            "round": self._number,
            "problem_id": problem,
            "rollout_id": request.key,
            "sample": sample,
            "policy_hash": self._provenance.policy_hash,
            "response_ids": answer.response_ids[:kept],
            "logprobs": answer.logprobs[:kept],
            "logprobs_mode": self._sampler.logprobs_mode,
            "finish_reason": answer.finish_reason,
            "text": answer.text,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": TOP_K,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "engine": self._sampler.name,
            "sampled_at": datetime.now(UTC),
            **self._routes(answer, kept),
            **self._of_turns(answer),
        }

    def _of_turns(self, answer: SampledAnswer) -> Row:
        environment = self._run.config.environment
        if environment is None:
            return {}
        assert answer.turns is not None, "a trajectory says what of it was sampled"
        return {**asdict(answer.turns), "environment": environment.function}

    def _routes(self, answer: SampledAnswer, kept: int) -> Row:
        if not self._run.config.sampling.routes:
            return {}
        tokens = len(answer.request.prompt_ids) + kept - 1
        assert answer.routes is not None and len(answer.routes) >= tokens, "experts of every token but the last"
        return {ROUTES: answer.routes[:tokens].tobytes()}

    def _write(self, part: Part) -> None:
        """Write and record a whole part, problems and samples in order, and forget its rows."""
        start = time.monotonic()
        rows = [part.rows[key] for key in sorted(part.rows)]
        with self._run.writing(part.path, self._provenance.inputs, self._provenance.settings) as draft:
            draft.rows = write_table(draft.path, ROLLOUTS, rows)
            draft.details = {
                "policy_hash": self._provenance.policy_hash,
                "problems": len(part.problems),
                "response_tokens": sum(len(own) for row in rows for own, _ in spans(row)),
                "truncated": sum(row["finish_reason"] == "length" for row in rows),
                "engine": self._sampler.name,
                "dtype": self._sampler.dtype,
                "startup_s": dict(self._sampler.startup_s),
                "sampling_s": round(start - part.started_s, 3),
            }
        # After the ledger and before the lock goes: killed in between, the next start sends it (`send_recorded`).
        if self._sharing:
            self._sharing.send(part)
        self._in_flight.release(part)  # only now: killed before the ledger has the part, its answers are in the pieces
        part.rows.clear()
        self._writing_s += time.monotonic() - start

    def summary(self) -> str:
        """One line on what was sampled and how long it took."""
        seconds = time.monotonic() - self._start - self._writing_s
        turns = f" ({self._turns.summary()})" if self._turns else ""
        return (
            f"round {self._number}: {self._answers:,} rollouts, {self._tokens:,} tokens{turns}; sampling {seconds:.1f} "
            f"s ({self._tokens / max(seconds, 1e-9):,.0f} tokens/s), writing {self._writing_s:.1f} s"
        )
