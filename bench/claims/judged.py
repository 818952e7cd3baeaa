"""Judge what the arms of `many_arms.py` answered: ``python -m bench.claims.judged ANSWERS --runs DIR --to DATA``.

ANSWERS has the jobs' files, DIR/BASE the run folders that the bases came from. First the validation answers of every
arm are judged, at T = 0.6, and each method gets the setting with the most right ones, over all bases (``choose``). Then
the held-out answers of those arms alone. DATA/factorial_BED.parquet has a row for each (method, base, step, way):
right answers of each problem and how many different ones they are. DATA/factorial_BED.json says what was chosen, from
what. A bed's programs run in the sandbox, once for each different answer; Countdown's are read (`diversity.py`).
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl

from bench.claims.sampled import WAYS
from oapl_core.progress import say

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHOSEN_BY = "t06"
"""Way of the validation answers that settings are chosen by."""


@dataclass(frozen=True)
class Job:
    """A job's file."""

    about: Mapping[str, Any]
    answers: "NDArray[np.int16]"
    """Problem and tokens of each different answer."""
    rows: Mapping[str, "NDArray[Any]"]

    @classmethod
    def read(cls, path: Path) -> "Job":
        """Read it."""
        with np.load(path) as found:
            about = json.loads(str(found["about"]))
            return cls(about, found["answers"], {n: found[n] for n in ("arm", "step", "way", "answer", "count")})

    @property
    def plan(self) -> str:
        return str(self.about["job"].split(".")[1])

    def of(self, split: str, ways: Iterable[str], arms: Iterable[str] | None = None) -> "NDArray[np.bool_]":
        """Which rows are of a split, of some ways and of some arms."""
        numbers = [number for number, way in enumerate(WAYS) if way.name in ways]
        names = self.about["problems"]
        is_split = np.array([name.startswith(split) for name in names])[self.answers[:, 0]]
        found = is_split[self.rows["answer"]] & np.isin(self.rows["way"], numbers)
        if arms is not None:
            found &= np.isin(self.rows["arm"], [i for i, name in enumerate(self.about["arms"]) if name in set(arms)])
        chosen: NDArray[np.bool_] = found
        return chosen


Key = tuple[str, bytes]
"""Problem, and tokens of an answer."""


class Judge(Protocol):
    """Says of answers whether they are right; what is none of the two is not there."""

    def judge(self, texts: Mapping[Key, tuple[str, bool]]) -> dict[Key, str]:
        """Right ones alone: the text by which two answers are one, of each. A text comes with whether it was cut."""
        ...


class InSandbox:
    """Runs an answer's program against its problem's tests."""

    def __init__(self, run: Any, verifier: Any) -> None:
        from oapl_core.tables import PROBLEMS, read_table

        rows = read_table(run.problems, PROBLEMS).to_pylist()
        self._problems = {row["problem_id"]: row | {"is_thinking": False} for row in rows}
        self._verifier = verifier

    def judge(self, texts: Mapping[Key, tuple[str, bool]]) -> dict[Key, str]:
        """Right ones, as they were written."""
        keys = list(texts)
        reasons = ["length" if texts[key][1] else "stop" for key in keys]
        verdicts = self._verifier.verify([self._problems[p] for p, _ in keys], [texts[key][0] for key in keys], reasons)
        unjudged = sum(verdict.reward is None for verdict in verdicts)
        if unjudged:
            say(f"{unjudged} of {len(keys)} answers could not be judged; they count as not right")
        return {key: texts[key][0] for key, verdict in zip(keys, verdicts, strict=True) if verdict.reward == 1}


class ByReading:
    """Reads the expression that a Countdown program prints."""

    def __init__(self, run: Any) -> None:
        from oapl_core.tables import PROBLEMS, read_table

        rows = read_table(run.problems, PROBLEMS).to_pylist()
        self._inputs = {row["problem_id"]: row["tests"][0]["input"] for row in rows}

    def judge(self, texts: Mapping[Key, tuple[str, bool]]) -> dict[Key, str]:
        """Right ones, in canonical form."""
        from bench.claims import countdown
        from oapl_core.verdicts.extraction import program

        found = {}
        for key, (text, is_cut) in texts.items():
            code = program(text, is_cut=is_cut)
            expression = countdown.expression_of(code) if code else None
            if expression and countdown.reaches(self._inputs[key[0]], "", expression):
                found[key] = expression
        return found


def main() -> None:
    """Judge a bed."""
    from oapl_core.run_folder.run import Run
    from oapl_core.verdicts.verifier import Verifier

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--bed", choices=["demo", "countdown"], required=True)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    jobs = [Job.read(path) for path in sorted(options.answers.glob(f"{options.bed}-*.npz"))]
    runs = {job.about["base"]: Run.open(options.runs / job.about["base"]) for job in jobs}
    first = next(iter(runs.values()))
    if options.bed == "countdown":
        write(options.to, options.bed, jobs, Known(ByReading(first), runs))
        return
    with Verifier(first.config.verifier) as verifier:
        write(options.to, options.bed, jobs, Known(InSandbox(first, verifier), runs))


class Known:
    """Verdicts on everything that was asked for so far. The bases of a bed share their problems, and tokens' texts."""

    def __init__(self, judge: Judge, runs: Mapping[str, Any]) -> None:
        self._judge, self._runs = judge, runs
        self._right: dict[Key, str] = {}
        self._asked: set[Key] = set()

    def judge(self, jobs: Sequence[Job], wanted: Sequence["NDArray[np.bool_]"]) -> None:
        """Judge the answers of some rows that nobody asked for before."""
        new: dict[Key, tuple[str, bool]] = {}
        for job, rows in zip(jobs, wanted, strict=True):
            tokenizer, ends = self._tokenizer(job.about["base"])
            for at in np.unique(job.rows["answer"][rows]):
                key = key_of(job, int(at))
                if key not in self._asked and key not in new:
                    ids = [int(token) for token in job.answers[at, 1:] if token >= 0]
                    new[key] = tokenizer.decode(ids, skip_special_tokens=True), ids[-1] not in ends
        say(f"{len(new):,} different answers to judge")
        self._right |= self._judge.judge(new)
        self._asked |= new.keys()

    def right(self, job: Job, at: int) -> str | None:
        """The text by which a right answer is one with others; of a wrong one None."""
        key = key_of(job, at)
        assert key in self._asked, "nobody asked for it"
        return self._right.get(key)

    def _tokenizer(self, base: str) -> tuple[Any, set[int]]:
        from transformers import AutoTokenizer

        from oapl_core.model_files.model_folder import end_token_ids

        folder = self._runs[base].base_model()
        return AutoTokenizer.from_pretrained(folder), set(end_token_ids(folder))


def key_of(job: Job, at: int) -> Key:
    """Problem and tokens of an answer."""
    row = job.answers[at]
    return job.about["problems"][row[0]], row[1:].tobytes()


def write(to: Path, bed: str, jobs: Sequence[Job], known: Known) -> None:
    """Choose settings, and write what the chosen arms came to."""
    wanted = [job.of("validation", [CHOSEN_BY]) for job in jobs]
    known.judge(jobs, wanted)
    shares = validation(jobs, wanted, known)
    choice = choose(shares)
    ways = [way.name for way in WAYS]
    own = []
    for job in jobs:
        arms = {"base", *(arm for (_, plan, _), arm in choice.items() if plan == job.plan)}
        own.append(job.of("heldout", ways, arms))
    known.judge(jobs, own)
    rows = list(heldout(jobs, own, known, choice))
    frame = pl.DataFrame(rows).sort("method", "plan", "step", "base", "way")
    counts = pl.List(pl.UInt8)
    frame = frame.with_columns(pl.col("right").cast(counts), pl.col("rarefied").cast(pl.List(pl.Float32)))
    to.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(to / f"factorial_{bed}.parquet", compression="zstd", compression_level=19)
    chosen = [{"method": m, "plan": p, "step": s, "arm": arm} for (m, p, s), arm in sorted(choice.items())]
    tried = [
        {"arm": arm, "plan": plan, "step": step, "right": round(share, 4), "bases": bases}
        for (arm, plan, step), (share, bases) in sorted(shares.items())
    ]
    (to / f"factorial_{bed}.json").write_text(json.dumps({"chosen": chosen, "tried": tried}, indent=0) + "\n")


Place = tuple[str, str, int]
"""Arm, plan and step."""


def validation(jobs: Sequence[Job], wanted: Sequence[Any], known: Known) -> dict[Place, tuple[float, int]]:
    """Share of right validation answers of each (arm, plan, step), mean over bases, and how many bases have it."""
    right, answers = Counter[tuple[str, str, int, str]](), Counter[tuple[str, str, int, str]]()
    for job, rows in zip(jobs, wanted, strict=True):
        columns = [job.rows[name][rows].tolist() for name in ("arm", "step", "answer", "count")]
        for arm, step, at, count in zip(*columns, strict=True):
            key = (job.about["arms"][arm], job.plan, step, job.about["base"])
            answers[key] += count
            right[key] += count * (known.right(job, at) is not None)
    by_arm = defaultdict[tuple[str, str, int], list[float]](list)
    for (arm, plan, step, base), many in answers.items():
        by_arm[arm, plan, step].append(right[arm, plan, step, base] / many)
    return {key: (sum(own) / len(own), len(own)) for key, own in by_arm.items()}


def choose(shares: Mapping[Place, tuple[float, int]]) -> dict[tuple[str, str, int], str]:
    """The arm of each (method, plan, step) with the most right validation answers, of those that every base has.

    An arm that diverged on a base has no answers there. Equal ones: the first by name.
    """
    found: dict[tuple[str, str, int], str] = {}
    most = max(bases for _, bases in shares.values())
    for (arm, plan, step), (share, bases) in sorted(shares.items()):
        key = (arm.split()[0], plan, step)
        if arm == "base" or bases < most:
            continue
        if key not in found or share > shares[found[key], plan, step][0]:
            found[key] = arm
    return found


def heldout(
    jobs: Sequence[Job], wanted: Sequence[Any], known: Known, choice: Mapping[Any, str]
) -> Iterator[dict[str, Any]]:
    """Rows of the results."""
    methods = defaultdict[tuple[str, str, int], list[str]](list)
    for (method, plan, step), arm in choice.items():
        methods[arm, plan, step].append(method)
    for job, rows in zip(jobs, wanted, strict=True):
        names = [name for name in job.about["problems"] if name.startswith("heldout")]
        place = {name: i for i, name in enumerate(names)}
        cells = defaultdict[tuple[int, int, int], dict[int, Counter[str]]](lambda: defaultdict(Counter))
        totals = defaultdict[tuple[int, int, int], list[int]](lambda: [0, 0])
        columns = [job.rows[name][rows].tolist() for name in ("arm", "step", "way", "answer", "count")]
        for arm, step, way, at, count in zip(*columns, strict=True):
            cell = cells[arm, step, way]  # also where nothing is right
            tokens = int((job.answers[at, 1:] >= 0).sum())
            totals[arm, step, way][0] += tokens * count
            if (text := known.right(job, at)) is not None:
                cell[place[key_of(job, at)[0]]][text] += count
        for (number, step, way), cell in cells.items():
            name, n = job.about["arms"][number], WAYS[way].answers
            own = ["base"] if name == "base" else methods.get((name, job.plan, step), [])
            for method in own:
                yield {
                    "method": method,
                    "arm": name,
                    "plan": job.plan,
                    "base": job.about["base"],
                    "step": step,
                    "way": WAYS[way].name,
                    "n": n,
                    "right": [sum(cell[i].values()) for i in range(len(names))],
                    "rarefied": [rarefied(cell[i]) for i in range(len(names))],
                    "tokens": totals[number, step, way][0] / (n * len(names)),
                    "rollouts": job.about["rollouts"],
                    "device": job.about["device"],
                }


DRAWN = 4


def rarefied(counts: Mapping[str, int], drawn: int = DRAWN) -> float | None:
    """Expected different ones among ``drawn`` of the right answers, without replacement (Hurlbert 1971, rarefaction).

    None where there are fewer. So a policy is not wider because it is right more often.
    """
    from math import comb

    total = sum(counts.values())
    if total < drawn:
        return None
    return sum(1 - comb(total - count, drawn) / comb(total, drawn) for count in counts.values())


if __name__ == "__main__":
    main()
