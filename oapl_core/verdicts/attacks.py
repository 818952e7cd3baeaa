"""Measures what responses that deserve no reward earn.

A strategy (attack_strategies.py) answers a problem by its statement alone, with what a policy could know of the
verifier, never of the expected outputs. Some are right by luck, on problems where every test expects the same word,
say. What a strategy *deserves* is counted by plain comparison, without running anything. Its earnings beyond that are a
hole of the verifier. `rewards_doing_nothing` names the problems themselves that pay for nothing. Reads and writes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oapl_core.verdicts.attack_strategies import STRATEGIES, Problem, Strategy
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verifier


@dataclass(frozen=True)
class Earned:
    """Result of a strategy on the problems."""

    strategy: Strategy
    answers: int
    passed: int
    deserved: float
    """Sum of the chances."""
    verifier_errors: int
    undeserved: tuple[str, ...]
    """Problems whose reward had no chance at all."""

    @property
    def over(self) -> float:
        """Rewards beyond those deserved, per answer; a strategy may have better luck than the mean."""
        return (self.passed - self.deserved) / max(self.answers, 1)


def attack(verifier: Verifier, problems: Sequence[Problem], strategies: Sequence[Strategy]) -> Iterator[Earned]:
    """Let every strategy answer every problem of its kinds; yield what each earned."""
    for strategy in strategies:
        asked = [problem for problem in problems if problem["kind"] in strategy.kinds]
        pairs = [(problem, text) for problem in asked if (text := strategy.respond(problem)) is not None]
        pairs = pairs[: strategy.most]  # a strategy that runs into a limit costs seconds for each answer
        verdicts = verifier.verify([p for p, _ in pairs], [text for _, text in pairs], ["stop"] * len(pairs))
        outcomes = [verdict.outcome for verdict in verdicts]
        chances = [strategy.deserved(problem) for problem, _ in pairs]
        names = [
            problem["problem_id"]
            for (problem, _), outcome, chance in zip(pairs, outcomes, chances, strict=True)
            if outcome is Outcome.PASSED and chance == 0
        ]
        errors = outcomes.count(Outcome.VERIFIER_ERROR)
        yield Earned(strategy, len(pairs), outcomes.count(Outcome.PASSED), sum(chances), errors, tuple(names))


def rewards_doing_nothing(verifier: Verifier, problems: Sequence[Problem]) -> list[str | None]:
    """Name for each problem a strategy that passes it without having solved anything; None where none does."""
    idle = [strategy for strategy in STRATEGIES if strategy.family in ("constant", "echo", "samples", "template")]
    earners: list[str | None] = [None] * len(problems)
    for strategy in idle:
        open_ones = [
            (number, text)
            for number, problem in enumerate(problems)
            if earners[number] is None  # one that pays is enough to mark a problem
            and problem["kind"] in strategy.kinds
            and (text := strategy.respond(problem)) is not None
        ]
        asked, texts = [problems[number] for number, _ in open_ones], [text for _, text in open_ones]
        for (number, _), verdict in zip(open_ones, verifier.verify(asked, texts, ["stop"] * len(texts)), strict=True):
            if verdict.outcome is Outcome.PASSED:
                earners[number] = strategy.name
    return earners
