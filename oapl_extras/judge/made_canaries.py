"""Makes canaries of a judge from answers that a run has sampled: those that it finds best and worst, with a margin.

Reads rollouts and problems, asks the run's own judge, whose replies are recorded as always; writes one JSONL file. The
answers get their verdicts as in a verification, since a judge's template may show them.
"""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError, StageFailed
from oapl_core.run_folder.run import Run, parts_of
from oapl_core.settings.judge import JudgeConfig
from oapl_core.settings.reward import RewardConfig
from oapl_core.storable import json_text
from oapl_core.tables import ROLLOUTS, read_table
from oapl_core.verdicts.judges import Judges
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.rewards import Judged, Rewarder
from oapl_core.verdicts.verifier import Verdict
from oapl_core.verdicts.verify import judge_part, judging_of
from oapl_core.verdicts.workers.function_pool import FunctionCall
from oapl_extras.judge.language_judge import LanguageJudge

_OF_EACH = 2
"""Canaries of each kind, at most."""
_NEAR, _MARGIN = 1 / 6, 1 / 3
"""Shares of the distance from the worst to the best answer: a canary's own at most, and that of its bound."""


@dataclass(frozen=True)
class Canary:
    """An answer with the judge's number on it, and the bound that later replies must keep."""

    call: FunctionCall
    value: float
    bound: float
    is_good: bool

    @property
    def key(self) -> str:
        """Name of the bound in a row."""
        return "at_least" if self.is_good else "at_most"

    def row(self, template: str) -> dict[str, Any]:
        """Return the row of the file; of the problem what a ``template`` may want to show."""
        hidden = {"is_thinking"} | {name for name in ("tests", "info", "messages") if name not in template}
        shown = {name: x for name, x in self.call.problem.items() if name not in hidden and x not in (None, [])}
        return {"problem": shown, "response": self.call.text, "verdict": self.call.verdict, self.key: self.bound}


class _Eavesdropper(Rewarder):
    """Hears which answers were judged, and leaves their verdicts as they are."""

    def __init__(self) -> None:
        """Start with nothing heard; no process is started."""
        super().__init__(RewardConfig(), 1, 1)
        self.heard = list[Judged]()

    def stream(
        self,
        problems: Iterable[Mapping[str, Any]],
        texts: Iterable[str],
        tokens: Iterable[int],
        verdicts: Iterator[Verdict],
    ) -> Iterator[Verdict]:
        """Yield each verdict as it came."""
        for judged in map(Judged, problems, texts, tokens, verdicts):
            self.heard.append(judged)
            yield judged.verdict


def judge_of(run: Run) -> JudgeConfig:
    """Return the settings of the run's judge.

    Raises:
        ConfigError: it has none.
    """
    reward = run.config.reward
    if reward is None or reward.judge is None:
        raise ConfigError(f"{run.root}: has no [reward.judge]; canaries are for a run that a language model judges")
    return reward.judge


def make(run: Run, path: Path, count: int) -> list[Canary]:
    """Ask the judge about ``count`` answers of the newest round, and write the best and the worst to ``path``.

    Raises:
        ConfigError: the run has no judge or no rollouts, the file is there, or the answers are all worth the same.
        StageFailed: the judge gave no numbers.
    """
    config = judge_of(run)
    if path.exists():
        raise ConfigError(f"{path}: is there already and is left as it is; name another file, or delete it")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: its folder is not there; make it first")
    calls = _answers(run, count)
    judge = LanguageJudge(config)
    try:
        found = judge.judge(calls)
    finally:
        judge.close()
    values = [(one.value, call) for one, call in zip(found, calls, strict=True) if one.value is not None]
    if not values:
        raise StageFailed(f"the judge {config.model} gave no number for any of {len(calls)} answers: {found[0].error}")
    canaries = choose(values)
    # whole or not at all: half of a file would be taken for canaries
    draft = path.with_name(f".tmp-{path.name}")
    draft.write_text("".join(json_text(one.row(config.prompt.text)) + "\n" for one in canaries), encoding="utf-8")
    draft.rename(path)
    return canaries


def choose(values: Sequence[tuple[float, FunctionCall]]) -> list[Canary]:
    """Choose the best and the worst answers, each text once.

    Raises:
        ConfigError: all are worth the same, so that nothing can be told apart.
    """
    low, high = (pick(value for value, _ in values) for pick in (min, max))
    if low == high:
        raise ConfigError(
            f"the judge gave {low:g} to each of {len(values)} answers, so that none can be a canary: ask about more "
            "with -n, mend the judge's prompt, or write the file by hand (docs/extras/judge.md)"
        )
    # a bound at the number itself would stop a run for one point of a judge that is a little noisy
    gap, chosen = high - low, list[Canary]()
    for is_good, best in ((True, high), (False, low)):
        bound = float(f"{best - gap * _MARGIN if is_good else best + gap * _MARGIN:.4g}")
        near = [(value, call) for value, call in values if abs(value - best) <= gap * _NEAR]
        # not only the very best: two answers of one kind say more of a judge than one
        near.sort(key=lambda one: abs(one[0] - best))
        texts = {call.text: Canary(call, value, bound, is_good) for value, call in reversed(near)}
        chosen += list(reversed(texts.values()))[:_OF_EACH]
    return chosen


def _answers(run: Run, count: int) -> list[FunctionCall]:
    """Return stored answers of the newest round that has some, spread over its parts, with their verdicts.

    Raises:
        ConfigError: nothing was sampled yet.
    """
    import pyarrow.parquet as pq

    sampled = (number for number in reversed(range(len(run.config.rounds))) if parts_of(run.rollouts(number)))
    number = next(sampled, None)
    if number is None:
        raise ConfigError(
            f"{run.root}: has no rollouts yet; `oapl run` samples them, and stops where it misses the canaries"
        )
    there = parts_of(run.rollouts(number))
    parts = [there[place] for place in _spread(len(there), count)]
    listener, config = _Eavesdropper(), run.config
    # an answer that cannot be judged is left out here; a round would end
    judging = replace(judging_of(run, number), max_error_share=1.0)
    judges = Judges(config.verifier, None, config.sampling.max_tokens)
    judges.rewarder = listener
    with judges, tempfile.TemporaryDirectory() as folder:
        # as parts of their own, so that they are judged by the code that judges a round
        for part in parts:
            table = read_table(part, ROLLOUTS)
            rows = _spread(len(table), -(-count // len(parts)))
            pq.write_table(table.take(rows), Path(folder) / part.name)
            judge_part(judging, judges, Path(folder) / part.name, Counter())
    heard = [one for one in listener.heard if one.verdict.outcome is not Outcome.VERIFIER_ERROR]
    return [one.call for one in heard[:count]]


def _spread(total: int, count: int) -> list[int]:
    """Return ``count`` places of ``total`` at equal distances; all where they are fewer."""
    step = max(1.0, total / count)
    return [int(n * step) for n in range(min(count, total))]
