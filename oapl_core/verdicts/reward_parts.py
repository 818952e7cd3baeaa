"""The parts of a reward that follow from a response and its verdict alone, each before its weight; pure.

Sources and defaults: oapl_core/settings/reward.py.
"""

from collections.abc import Mapping
from typing import Any

from oapl_core.settings.reward import RewardConfig
from oapl_core.verdicts.answers.text_equality import f1
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verdict


def parts(
    config: RewardConfig, longest: int, problem: Mapping[str, Any], verdict: Verdict, text: str, tokens: int
) -> Mapping[str, float]:
    """Compute every part that counts but the person's own function; ``longest``: L_max, ``tokens``: the response's."""
    known = {
        "verdict": lambda: float(verdict.outcome is Outcome.PASSED),
        "tests": lambda: share_of_tests(verdict),
        "f1": lambda: share_of_words(problem, verdict),
        "format": lambda: float(verdict.answer is not None),
        "length": lambda: -abs(float(tokens - config.length_target)),
        "overlong": lambda: soft_overlong(tokens, longest, config.overlong_tokens),
        "repetition": lambda: repetition(text, config.ngram_words),
    }
    return {name: known[name]() for name in config.weights if name in known}


def share_of_tests(verdict: Verdict) -> float:
    """Return the share of passed tests among those to run; a maths answer, which has none, is right or wrong."""
    if verdict.tests_run:
        return verdict.tests_passed / verdict.tests_run
    return float(verdict.outcome is Outcome.PASSED)


def share_of_words(problem: Mapping[str, Any], verdict: Verdict) -> float:
    """Return the F1 of the words of an answer with its best gold; of a problem that is not of kind text the verdict."""
    if problem["kind"] != "text" or verdict.answer is None:
        return float(verdict.outcome is Outcome.PASSED)
    return f1(problem, verdict.answer)


def soft_overlong(tokens: int, longest: int, cache: int) -> float:
    """Compute the soft penalty of DAPO, eq. 13: 0 up to L_max - L_cache, then linear, -1 from L_max on."""
    return max(-1.0, min(0.0, (longest - cache - tokens) / cache))


def repetition(text: str, n: int) -> float:
    """Return -(1 - different n-grams / n-grams) of the words, in any case; 0 for a text with fewer than n words."""
    words = text.lower().split()
    total = len(words) - n + 1
    if total < 1:
        return 0.0
    return len(set(zip(*(words[i:] for i in range(n)), strict=False))) / total - 1.0
