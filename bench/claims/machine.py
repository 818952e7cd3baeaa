"""What the arms of one process share: the engine, the verifier, prompts and problems, and what is known already.

Kept beside the results, so that arms that continue after a kill, and the next arms, need not ask again: verdicts whose
outcome can be repeated (the verifier's own rule for equal answers, over all calls), and what a base model answered to a
seed's first requests, which is the same for every arm of that seed.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from oapl_core.model_files.model_folder import policy_hash
from oapl_core.rollouts.requests import Request, Sampler
from oapl_core.seeds import derive_seed
from oapl_core.verdicts.verifier import VERIFIER_VERSION, Verifier

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """A request to come."""

    problem: str
    key: str
    seed: int


@dataclass(frozen=True)
class Answer:
    """What is trained on and counted of an answer."""

    response_ids: list[int]
    logprobs: list[float]
    reward: float | None
    is_cut: bool


@dataclass
class Machine:
    """Engine, verifier and problems of a run folder."""

    sampler: Sampler
    verifier: Verifier
    prompts: Mapping[str, Mapping[str, Sequence[int]]]
    """By split and problem."""
    problems: Mapping[str, Row]
    base: Path
    base_hash: str
    max_tokens: int
    kept: Path
    """Folder of what is known already."""
    _verdicts: dict[str, float] = field(default_factory=dict)
    _known: dict[tuple[str, int], tuple[Answer, float]] | None = None

    def __post_init__(self) -> None:
        self.kept.mkdir(parents=True, exist_ok=True)
        # what is measured with may not change below the verdicts that are kept
        facts: list[Any] = [VERIFIER_VERSION, sorted((k, repr(v)) for k, v in self.problems.items())]
        self._file = self.kept / f"verdicts-{_hash(facts)}.jsonl"
        # answers are kept with their rewards, and each sampler has numbers of its own
        facts += [type(self.sampler).__name__, self.base_hash, self.max_tokens]
        self._answers_file = self.kept / f"answers-{_hash(facts)}.jsonl"
        self._verdicts.update(_lines(self._file))

    @property
    def train(self) -> Mapping[str, Sequence[int]]:
        """Prompts of training problems."""
        return self.prompts["train"]

    def answers(
        self, folder: Path, identity: str, asked: Sequence[Asked], split: str = "train"
    ) -> tuple[list[Answer], float]:
        """What the policy in ``folder`` answers to problems of a split, and the CPU seconds of this process for it."""
        known = self._of_base() if identity == self.base_hash else {}
        new = [one for one in asked if (one.key, one.seed) not in known]
        if new:
            start = time.process_time()
            self.sampler.load(folder)
            answers = self._answers(split, new)
            each = (time.process_time() - start) / len(new)
            found = {(one.key, one.seed): (answer, each) for one, answer in zip(new, answers, strict=True)}
            if identity == self.base_hash:
                self._keep(found)
            known.update(found)
        rows = [known[one.key, one.seed] for one in asked]
        return [answer for answer, _ in rows], sum(each for _, each in rows)

    def _of_base(self) -> dict[tuple[str, int], tuple[Answer, float]]:
        """What the base has answered so far, and the CPU seconds of each answer."""
        if self._known is None:
            rows = _lines(self._answers_file)
            self._known = {(key, seed): (Answer(*answer), each) for key, seed, each, *answer in rows}
        return self._known

    def _keep(self, found: Mapping[tuple[str, int], tuple[Answer, float]]) -> None:
        with _appended(self._answers_file) as file:
            for (key, seed), (a, each) in found.items():
                row = [key, seed, each, a.response_ids, a.logprobs, a.reward, a.is_cut]
                file.write(json.dumps(row) + "\n")

    def measured(self, folder: Path, split: str, n: int, seed: int, problems: int | None = None) -> dict[str, Any]:
        """``n`` answers to each problem of a split: right ones by problem, entropy and length."""
        names = list(self.prompts[split])[:problems]
        asked = [Asked(name, f"{name}#{s}", derive_seed(seed, split, name, s)) for name in names for s in range(n)]
        answers, _ = self.answers(folder, policy_hash(folder), asked, split)
        groups = [answers[i : i + n] for i in range(0, len(answers), n)]
        right = [sum(a.reward == 1 for a in group) for group in groups]
        tokens = sum(len(a.response_ids) for a in answers)
        ended = [a for a in answers if not a.is_cut]
        return {
            "n": n,
            "right": right,
            "judged": [sum(a.reward is not None for a in group) for group in groups],
            "right_share": sum(right) / len(answers),
            "distinct_right": [len({tuple(a.response_ids) for a in group if a.reward == 1}) for group in groups],
            # -ln pi of what was sampled, per token: of all answers, and of those that ended
            "entropy": -sum(sum(a.logprobs) for a in answers) / tokens,
            "entropy_ended": -sum(sum(a.logprobs) for a in ended) / max(1, sum(len(a.response_ids) for a in ended)),
            "tokens": tokens / len(answers),
            "cut_share": 1 - len(ended) / len(answers),
        }

    def _answers(self, split: str, asked: Sequence[Asked]) -> list[Answer]:
        prompts = self.prompts[split]
        requests = (Request(one.key, prompts[one.problem], one.seed, self.max_tokens, 1.0, 1.0) for one in asked)
        by_key = {answer.request.key: answer for answer in self.sampler.sample(requests, True)}
        found = [by_key[one.key] for one in asked]
        rewards = self._rewards([one.problem for one in asked], [(a.text, a.finish_reason) for a in found])
        return [
            Answer(list(a.response_ids), list(a.logprobs or ()), reward, a.finish_reason == "length")
            for a, reward in zip(found, rewards, strict=True)
        ]

    def _rewards(self, names: Sequence[str], given: Sequence[tuple[str, str | None]]) -> list[float | None]:
        keys = [
            hashlib.sha256(json.dumps([name, text, reason == "length"]).encode()).hexdigest()[:24]
            for name, (text, reason) in zip(names, given, strict=True)
        ]
        new = list({key: i for i, key in enumerate(keys) if key not in self._verdicts}.values())
        problems = [self.problems[names[i]] for i in new]
        verdicts = self.verifier.verify(problems, [given[i][0] for i in new], [given[i][1] for i in new])
        once: dict[str, float | None] = {}
        with _appended(self._file) as file:
            for i, verdict in zip(new, verdicts, strict=True):
                once[keys[i]] = verdict.reward
                if verdict.outcome.is_repeatable and verdict.reward is not None:
                    self._verdicts[keys[i]] = verdict.reward
                    file.write(json.dumps([keys[i], verdict.reward]) + "\n")
        return [once[key] if key in once else self._verdicts[key] for key in keys]


def _hash(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _lines(path: Path) -> list[Any]:
    """What a file has; a line that a kill has cut is left out."""
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return [row for row in found if isinstance(row, list)]


@contextmanager
def _appended(path: Path) -> Iterator[TextIO]:
    """A file to append lines to: behind a line that a kill has cut a new one begins."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        if end and file.read(1) != b"\n":
            file.write(b"\n")
    with path.open("a") as text:
        yield text


def machine_of(run_dir: Path, sampler: Sampler, verifier: Verifier, kept: Path) -> Machine:
    """Prompts and problems of a run folder, its base model and its answers' length."""
    from oapl_core.rollouts.generate import read_prompts
    from oapl_core.run_folder.run import Run
    from oapl_core.tables import PROBLEMS, read_table

    run = Run.open(run_dir)
    rows = read_table(run.problems, PROBLEMS).to_pylist()
    problems = {row["problem_id"]: row | {"is_thinking": False} for row in rows}
    prompts = {name: read_prompts(run, name) for name in ("train", "heldout", "validation")}
    base = run.base_model()
    return Machine(sampler, verifier, prompts, problems, base, policy_hash(base), run.config.sampling.max_tokens, kept)
