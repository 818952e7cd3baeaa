"""Problems that teach most, by what earlier rounds say of them (`draw = "difficulty"`).

A problem's pass rate p is known from the verdicts of earlier rounds. A group can teach as much as the variance of its
reward, p(1-p). It is 0 where all answers are right or all wrong, and largest at one half. That is the learnability of
arXiv 2408.15099, which 2502.12272 trains language models with. Of n judged answers with c correct ones the
mean of the variance under a uniform prior is

    w = (c + 1)(n - c + 1) / ((n + 2)(n + 3))

so that a problem that nobody tried has 1/6, and few answers do not count as certainty. Problems are drawn without
replacement with probabilities proportional to w^(1/temperature). The draw takes the largest ln w / temperature + Gumbel
noise, which is a hash of the run's seed, the round and the problem. Time and memory are linear in problems and answers;
of verdicts two columns are read.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.progress import say
from oapl_core.rollouts.drawing import Chosen, digest
from oapl_core.run_folder.draws import DRAWS, draw_file, told
from oapl_core.run_folder.run import Run, parts_of
from oapl_core.seeds import derive_seed
from oapl_core.settings.rows.difficulty import DifficultyConfig

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Known:
    """Record of a problem's answers in earlier rounds."""

    judged: int = 0
    """Number of judged answers in the window."""
    correct: int = 0
    last_round: int | None = None
    """Last round that sampled the problem, whatever the window."""
    settled: str | None = None
    """`right` or `wrong`, if every answer was in as many of its last rounds as `retire_after` says."""

    @property
    def weight(self) -> float:
        """Weight w of the problem in the draw."""
        return (self.correct + 1) * (self.judged - self.correct + 1) / ((self.judged + 2) * (self.judged + 3))

    def is_retired(self, number: int, config: DifficultyConfig) -> bool:
        """Tell whether round ``number`` leaves the problem out."""
        return (
            self.settled is not None and self.last_round is not None and number - self.last_round <= config.look_again
        )


@dataclass(frozen=True)
class Draw:
    """A round's problems, and what they were drawn by."""

    chosen: frozenset[str]
    known: Mapping[str, Known]
    retired: frozenset[str]

    @property
    def digest(self) -> str:
        """16 hex digits of which problems it is: what the round's rollouts depend on."""
        return digest(self.chosen)

    def details(self, problems: int) -> dict[str, Any]:
        """Return the draw's numbers for the ledger."""
        tried = [one for name in self.chosen if (one := self.known.get(name)) and one.judged]
        settled = [self.known[name].settled for name in self.retired]
        return {
            "drawn": len(self.chosen),
            "of": problems,
            "tried_before": len(tried),
            "mean_pass_rate": sum(one.correct / one.judged for one in tried) / len(tried) if tried else None,
            "retired": len(self.retired),
            "always_right": settled.count("right"),
            "always_wrong": settled.count("wrong"),
        }


def by_difficulty(run: Run, number: int, names: Sequence[str], is_first: bool) -> Chosen:
    """Draw by what earlier rounds say of problems; the first process writes the draw for people to look at."""
    path, asked = draw_file(run, number), set(names)
    rows = tables.read_table(run.problems, tables.PROBLEMS, ["problem_id", "source"]).to_pylist()
    sources = {row["problem_id"]: row["source"] or "" for row in rows if row["problem_id"] in asked}
    found = draw(names, sources, known_so_far(run, number), run, number)
    settings = {"drawn": found.digest}
    # every process draws alike from the same files; only what people look at is written once
    if is_first and not run.is_done(path, {}, settings):
        with run.writing(path, {}, settings) as draft:
            draft.rows = tables.write_table(draft.path, DRAWS, draw_rows(found, names, sources))
            draft.details = found.details(len(names))
        say(told(draft.details))
    return Chosen([name for name in names if name in found.chosen], settings)


def draw(names: Sequence[str], sources: Mapping[str, str], known: Mapping[str, Known], run: Run, number: int) -> Draw:
    """Draw the problems of round ``number`` from ``names``.

    Raises:
        DataError: a share is asked of a source that no problem has.
    """
    one = run.config.rounds[number]
    config, wanted = one.difficulty, min(one.problems or len(names), len(names))
    unknown = set(config.shares) - set(sources.values())
    if unknown:
        there = ", ".join(sorted(set(sources.values())))
        raise DataError(
            f"rounds[{number}].difficulty.shares: no problem has the source {min(unknown)!r}; there are {there}"
        )
    # a key for every problem, whatever happens to others: a problem that is added changes no other one's luck
    keys = {name: _key(known.get(name, Known()), config, run.config.seed, number, name) for name in names}
    retired = frozenset(name for name in names if known.get(name, Known()).is_retired(number, config))
    active = [name for name in names if name not in retired]
    chosen = set[str]()
    # shares first: what they ask for must not be taken by what is left over
    for source, share in config.shares.items():
        most = min(round(share * wanted), wanted - len(chosen))  # two halves of 3 are rounded to 2 each
        chosen.update(_largest(most, [n for n in active if sources[n] == source], keys))
    # what no share asks for; then, where that is too little, what is left of the shares' sources
    for pool in ([n for n in active if sources[n] not in config.shares], active):
        chosen.update(_largest(wanted - len(chosen), [n for n in pool if n not in chosen], keys))
    # a set that is solved still makes whole rounds: those looked at longest ago come back first
    waiting = {name: (-(known[name].last_round or 0), keys[name]) for name in retired}
    chosen.update(heapq.nlargest(wanted - len(chosen), waiting, key=lambda name: waiting[name]))
    return Draw(frozenset(chosen), known, retired)


def _largest(count: int, names: Sequence[str], keys: Mapping[str, float]) -> list[str]:
    return heapq.nlargest(max(0, count), names, key=lambda name: (keys[name], name))


def _key(known: Known, config: DifficultyConfig, seed: int, number: int, name: str) -> float:
    # never 0 or 1, whose logarithms are infinite
    uniform = (derive_seed(seed, "difficulty", number, name) + 0.5) / 2**31
    return math.log(known.weight) / config.temperature - math.log(-math.log(uniform))


def known_so_far(run: Run, number: int) -> dict[str, Known]:
    """Count answers and correct answers of each problem in the rounds before ``number``.

    Raises:
        DataError: a round before it is not judged.
    """
    import polars as pl

    config, frames = run.config.rounds[number].difficulty, list[pl.DataFrame]()
    for earlier in (k for k in range(number) if run.config.rounds[k].source.has_rollouts):
        parts = parts_of(run.verdicts(earlier))
        if len(parts) < len(parts_of(run.rollouts(earlier))) or not parts:
            raise DataError(f"{run.verdicts(earlier)}: is not complete, and round {number} draws by it; run again")
        read = (tables.read_table(part, tables.VERDICTS, ["problem_id", "correct"]) for part in parts)
        frame = pl.concat([pl.DataFrame(table) for table in read]).drop_nulls("correct")
        # a verifier that failed says nothing of a problem; its rows went with the nulls
        right = pl.col("correct").sum()
        counted = frame.group_by("problem_id").agg(pl.len().alias("judged"), right)
        frames.append(counted.with_columns(round=pl.lit(earlier, pl.Int32)))
    if not frames:
        return {}
    return dict(_summed(pl.concat(frames), number - config.window, config.retire_after))


def _summed(looks: "pl.DataFrame", first: int, retire_after: int) -> Iterator[tuple[str, Known]]:
    """Yield each problem's looks, one a round, as a record of it: counts from round ``first`` on."""
    import polars as pl

    recent = pl.col("round") >= first
    settled = (
        pl.when(pl.col("judged") < 2)
        .then(None)
        .when(pl.col("correct") == pl.col("judged"))
        .then(pl.lit("right"))
        .when(pl.col("correct") == 0)
        .then(pl.lit("wrong"))
    )
    rows = (
        looks.with_columns(settled=settled)
        .sort("round")
        .group_by("problem_id")
        .agg(
            pl.col("judged").filter(recent).sum(),
            pl.col("correct").filter(recent).sum(),
            pl.col("round").last(),
            pl.col("settled").tail(retire_after).alias("last"),
        )
    )
    for problem, judged, correct, last_round, last in rows.iter_rows():
        is_settled = len(last) == retire_after and len(set(last)) == 1
        yield problem, Known(int(judged), int(correct), last_round, last[0] if is_settled else None)


def draw_rows(drawn: Draw, names: Sequence[str], sources: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of run_folder.draws.DRAWS."""
    for name in names:
        known = drawn.known.get(name, Known())
        state = "drawn" if name in drawn.chosen else "retired" if name in drawn.retired else "waiting"
        yield {
            "problem_id": name,
            "source": sources[name],
            "judged": known.judged,
            "correct": known.correct,
            "weight": known.weight,
            "last_round": known.last_round,
            "settled": known.settled,
            "state": state,
        }
