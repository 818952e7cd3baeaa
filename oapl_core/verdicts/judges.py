"""The verifier with what its verdicts earn: a function's or a model's reward, an environment's, or 1 and 0.

Both kinds of rewards are looked up when settings or rollouts ask for them: ``verdicts`` in oapl_core/plugins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, Self

from oapl_core import plugins
from oapl_core.settings.reward import RewardConfig, threshold
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.canaries import KINDS
from oapl_core.verdicts.verifier import Verdict, Verifier

if TYPE_CHECKING:
    from oapl_core.verdicts.environment_rewards import Played
    from oapl_core.verdicts.rewards import Rewarder


class AnswerVerifier(Protocol):
    """A judge of answers; ``oapl_core.verdicts.verifier.Verifier`` is one."""

    errors_retried: int

    @property
    def sandbox_level(self) -> str:
        """The isolation that was proven."""
        ...

    @property
    def remarks(self) -> dict[str, int]:
        """Counts of answers judged in a way that a person may want to know of, by a name for that way."""
        ...

    def check_canaries(self, kinds: Collection[str] = KINDS, also: Sequence[Any] = (), /) -> None:
        """Raise StageFailed if known answers of these kinds, and programs of languages, are misjudged."""
        ...

    def stream(
        self, problems: Sequence[Mapping[str, Any]], texts: Sequence[str], finish_reasons: Sequence[str | None]
    ) -> Iterator[Verdict]:
        """Judge each text, in order."""
        ...


class Judges:
    """The verifier, and what its verdicts earn. Use as a context manager."""

    def __init__(
        self, verifier: VerifierConfig, reward: RewardConfig | None, longest: int, lent: AnswerVerifier | None = None
    ) -> None:
        """Take the settings of both; ``lent``: a started verifier, which its owner ends."""
        own = Verifier(verifier)  # starts nothing before it is entered
        self.verifier: AnswerVerifier = lent or own
        self._own = None if lent else own
        self.rewarder: Rewarder | None = None
        """Giver of rewards by ``[reward]``; without it a correct answer has 1, a wrong one 0."""
        if reward:
            self.rewarder = plugins.resolve("verdicts", "reward")(reward, longest, verifier.workers)
        self.right_from = threshold(reward)
        """Reward from which an answer is correct."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._own:
                stack.enter_context(self._own)
            if self.rewarder:
                stack.enter_context(self.rewarder)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def stream(
        self,
        problems: Sequence[Mapping[str, Any]],
        texts: Sequence[str],
        finish_reasons: Sequence[str | None],
        tokens: Sequence[int],
        played: Sequence[Played] | None = None,
    ) -> Iterator[Verdict]:
        """Yield one verdict with its reward for each response, in order; ``played``: what environments say of each."""
        if played is None:
            verdicts = self.verifier.stream(problems, texts, finish_reasons)
        else:
            judged = [one.text(text) for one, text in zip(played, texts, strict=True)]
            asked = [one.asked(problem) for one, problem in zip(played, problems, strict=True)]
            found = zip(played, self.verifier.stream(asked, judged, finish_reasons), strict=True)
            verdicts = (one.verdict(verdict, self.right_from) for one, verdict in found)
        return self.rewarder.stream(problems, texts, tokens, verdicts) if self.rewarder else verdicts

    def spent(self) -> dict[str, int]:
        """Return a language model's requests and tokens since the last call of this function; nothing without one."""
        return self.rewarder.spent() if self.rewarder else {}
