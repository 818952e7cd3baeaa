"""``python -m oapl_core.rollouts.generate RUN_DIR --round N``: samples a round.

Reads prompts.parquet and the round's policy; writes round_NN/1_rollouts/part-*.parquet (tables.ROLLOUTS), G answers for
each of the round's training problems, at T=1 (paper, section 5). A part is written as soon as its last answer is
finished, while answers of the next are being sampled already; a second run samples only the parts that are missing.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oapl_core.artifacts import Run
from oapl_core.config import EngineConfig
from oapl_core.errors import DataError
from oapl_core.progress import Progress, say
from oapl_core.rollouts.engine import Engine
from oapl_core.rollouts.model_folder import identity
from oapl_core.rollouts.requests import Completion, Request, Sampler
from oapl_core.seeds import derive_seed
from oapl_core.stage import run_verb
from oapl_core.tables import PROMPTS, ROLLOUTS, read_table, write_table

TEMPERATURE, TOP_P, TOP_K = 1.0, 1.0, 0

Prompts = Mapping[str, Sequence[int]]
"""Prompt token ids by problem id, in the order of prompts.parquet."""


@dataclass
class _Part:
    """Consecutive problems of the round and the rows that they have so far."""

    path: Path
    problems: list[str]
    answers: int
    rows: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """By place of the problem in the part, and sample."""
    started_s: float = 0.0


def generate(run: Run, number: int, start: Callable[[Path, EngineConfig], Sampler] = Engine) -> None:
    """Sample every part of round ``number`` that is not finished.

    Args:
        run: the run folder.
        number: round, counted from 0.
        start: what to sample with; tests give a made-up sampler.

    Raises:
        DataError: no such round, no prompts, the policy's folder is missing, broken or not the recorded one.
    """
    if not 0 <= number < len(run.config.rounds):
        raise DataError(f"round {number}: the experiment has rounds 0..{len(run.config.rounds) - 1}")
    prompts = read_prompts(run, "train")
    policy = run.policy(number)
    policy_hash = identity(run, policy)
    inputs, settings = run.inputs([run.prompts, policy]), _settings(run, number)
    parts = _parts(run, number, choose_problems(run, number, prompts))
    missing = [part for part in parts if not run.is_done(part.path, inputs, settings)]
    total = sum(part.answers for part in parts)
    if not missing:
        say(f"round {number}: {total:,} rollouts are done")
        return
    with start(policy, run.config.engine) as sampler:
        say(started(sampler))
        with Progress(f"round {number}: sampling", total, "rollouts") as progress:
            progress.skip(total - sum(part.answers for part in missing))
            round_ = _Round(run, number, sampler, policy_hash, progress)
            for part in round_.finish(missing, prompts):
                round_.write(part, inputs, settings)
        say(round_.summary())


def read_prompts(run: Run, split: str) -> Prompts:
    """The prompts of one split.

    Raises:
        DataError: there are none.
    """
    rows = read_table(run.prompts, PROMPTS, ["problem_id", "split", "prompt_ids"]).to_pylist()
    prompts = {row["problem_id"]: row["prompt_ids"] for row in rows if row["split"] == split}
    if not prompts:
        what = f"has no {split} prompts; look at problems.{split} and problems.max_prompt_tokens"
        raise DataError(f"{run.prompts}: {what}")
    return prompts


def started(sampler: Sampler) -> str:
    """One line on how long the start took."""
    parts = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in sampler.startup_s.items())
    return f"{sampler.name} started in {sum(sampler.startup_s.values()):.1f} s ({parts})"


def choose_problems(run: Run, number: int, prompts: Prompts) -> list[str]:
    """The round's problems in the order of prompts.parquet: all, or a random subset that depends on the run's seed."""
    wanted = run.config.rounds[number].problems
    if wanted is None or wanted >= len(prompts):
        if wanted is not None and wanted > len(prompts):
            say(f"round {number}: {wanted} problems asked for, {len(prompts)} there are: all of them are sampled")
        return list(prompts)
    chosen = set(random.Random(derive_seed(run.config.seed, "problems", number)).sample(sorted(prompts), wanted))
    return [problem for problem in prompts if problem in chosen]


def _parts(run: Run, number: int, problems: Sequence[str]) -> list[_Part]:
    size, group = run.config.sampling.problems_per_part, run.config.sampling.group_size
    cuts = [list(problems[i : i + size]) for i in range(0, len(problems), size)]
    folder = run.rollouts(number)
    return [_Part(folder / f"part-{i:05d}.parquet", cut, len(cut) * group) for i, cut in enumerate(cuts)]


def _settings(run: Run, number: int) -> dict[str, Any]:
    """What a part depends on besides its inputs; the engine's speed settings do not belong to it."""
    return {
        "seed": run.config.seed,
        "round": number,
        "problems": run.config.rounds[number].problems,
        **run.config.sampling.model_dump(mode="json"),
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "top_k": TOP_K,
        "dtype": run.config.engine.dtype,
    }


class _Round:
    """One process's work on a round."""

    def __init__(self, run: Run, number: int, sampler: Sampler, policy_hash: str, progress: Progress) -> None:
        self._run, self._number, self._sampler = run, number, sampler
        self._policy_hash, self._progress = policy_hash, progress
        self._place: dict[str, tuple[_Part, int, int]] = {}
        self._start, self._tokens, self._answers, self._writing_s = time.monotonic(), 0, 0, 0.0

    def finish(self, parts: Sequence[_Part], prompts: Prompts) -> Iterator[_Part]:
        """Sample all parts in one stream of requests; yield each when its last row is there."""
        for completion in self._sampler.sample(self._requests(parts, prompts)):
            part, place, sample = self._place.pop(completion.request.key)
            part.rows[place, sample] = self._row(completion, part.problems[place], sample)
            self._tokens += len(completion.response_ids)
            self._answers += 1
            self._progress.advance(note=f"{self._tokens / (time.monotonic() - self._start):,.0f} tokens/s")
            if len(part.rows) == part.answers:
                yield part
        assert not self._place, f"{len(self._place)} requests were never answered"

    def _requests(self, parts: Sequence[_Part], prompts: Prompts) -> Iterator[Request]:
        run = self._run
        for part in parts:
            part.started_s = time.monotonic()
            for place, problem in enumerate(part.problems):
                for sample in range(run.config.sampling.group_size):
                    key = f"{problem}/r{self._number:02d}/s{sample}"
                    assert key not in self._place, f"{key} is asked for twice"
                    self._place[key] = part, place, sample
                    seed = derive_seed(run.config.seed, "rollout", self._number, problem, sample)
                    yield Request(key, prompts[problem], seed, run.config.sampling.max_tokens, TEMPERATURE, TOP_P)

    def _row(self, completion: Completion, problem: str, sample: int) -> dict[str, Any]:
        request = completion.request
        assert len(completion.logprobs) == len(completion.response_ids), "one log-prob for each sampled token"
        return {
            "run": self._run.root.name, "round": self._number, "problem_id": problem, "rollout_id": request.key,
            "sample": sample, "policy_hash": self._policy_hash, "response_ids": completion.response_ids,
            "logprobs": completion.logprobs, "logprobs_mode": self._sampler.logprobs_mode,
            "finish_reason": completion.finish_reason, "text": completion.text, "temperature": request.temperature,
            "top_p": request.top_p, "top_k": TOP_K, "max_tokens": request.max_tokens, "seed": request.seed,
            "engine": self._sampler.name, "sampled_at": datetime.now(UTC),
        }  # fmt: skip

    def write(self, part: _Part, inputs: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        """Write a finished part, problems and samples in order, and forget its rows."""
        start = time.monotonic()
        rows = [part.rows[key] for key in sorted(part.rows)]
        with self._run.writing(part.path, inputs, settings) as draft:
            draft.rows = write_table(draft.path, ROLLOUTS, rows)
            draft.details = {
                "policy_hash": self._policy_hash,
                "problems": len(part.problems),
                "response_tokens": sum(len(row["response_ids"]) for row in rows),
                "truncated": sum(row["finish_reason"] == "length" for row in rows),
                "engine": self._sampler.name,
                "startup_s": dict(self._sampler.startup_s),
                "sampling_s": round(start - part.started_s, 3),
            }
        part.rows.clear()
        self._writing_s += time.monotonic() - start

    def summary(self) -> str:
        """One line on what was sampled and how long it took."""
        seconds = time.monotonic() - self._start - self._writing_s
        return (
            f"round {self._number}: {self._answers:,} rollouts, {self._tokens:,} tokens; sampling {seconds:.1f} s "
            f"({self._tokens / max(seconds, 1e-9):,.0f} tokens/s), writing {self._writing_s:.1f} s"
        )


if __name__ == "__main__":
    raise SystemExit(run_verb(generate, has_round=True))
