"""Settings of ``[reward]``: rewards other than 1 for a correct answer and 0 for a wrong one (docs/rewards.md)."""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from oapl_core import plugins
from oapl_core.plugins.own_function import source_hash
from oapl_core.settings.judge import JudgeConfig
from oapl_core.settings_group import Settings
from oapl_core.tables import CORRECT, REWARD_PREFIX

_SPREAD = "judge_spread"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


class PartsConfig(Settings):
    """Weights of what the reward is the sum of; 0 leaves one out. Each contribution is a column of the verdicts."""

    verdict: float = 0.0
    """Weight of the verdict: 1 for an answer that the verifier passes, 0 for any other."""
    tests: float = 0.0
    """Weight of the share of a program's tests that it passes; for maths 1 or 0. DeepCoder's authors advise against it,
    since models learn to print what most tests expect. Needs `verifier.stop_at_first_failure = false`.
    """
    format: float = 0.0
    """Weight of the form: 1 for a response that has an answer where the verifier looks for one, 0 for any other. That
    is a code block or a box, after thinking has ended.
    """
    f1: float = 0.0
    """Weight of the F1 of words (SQuAD, arXiv 1606.05250) of an answer of kind `text` with its best gold, 0 to 1. For
    other kinds the part is the verdict.
    """
    length: float = 0.0
    """Weight of -|T - `length_target`|, T the response's tokens (LCPO-Exact, arXiv 2503.04697, eq. 1, whose alpha this
    is).
    """
    overlong: float = 0.0
    """Weight of DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13): 0 up to `longest` - `overlong_tokens`, from
    there linear to -1 at `longest`. DeepCoder has no length penalty: it leaves cut answers out of the loss, like
    `truncated = "drop"` of a round.
    """
    repetition: float = 0.0
    """Weight of -(1 - different n-grams / n-grams), of `ngram_words` words (open-r1's simplification of arXiv
    2502.03373, app. C.2).
    """
    function: float = 0.0
    """Weight of the result of `function`."""
    judge: float = 0.0
    """Weight of the judge's number."""
    environment: float = 0.0
    """Weight of the sum of the numbers that a judging environment gave to the turns; needs `[environment]`."""


class RewardConfig(Settings):
    """Reward of a rollout, and the reward from which on it counts as correct."""

    changes_nothing = frozenset({"time_limit_s", "memory_mb"})
    function: Annotated[str, AfterValidator(plugins.known("reward"))] | None = None
    """`module:function` of one's own, or an installed package's name for one (entry point `oapl.reward`). It is called
    as function(problem, response, verdict) and returns a number, or a number and a dict of the `columns`. Modules are
    looked for in the current folder first."""
    columns: tuple[Annotated[str, Field(pattern=f"^{_NAME}$")], ...] = ()
    """Names of further numbers that the function returns; kept as `reward_NAME` beside each verdict."""
    time_limit_s: PositiveFloat = 10.0
    """For one call of the function, wall time. Seconds."""
    memory_mb: PositiveInt = 2048
    """Memory that the function may take beside that of importing its module. MiB."""
    parts: PartsConfig = PartsConfig()
    """Weights of the parts whose sum is the reward. All 0: the result of the function, or the judge's number. Without
    these, the reward is the verdict's 1 or 0, or the number of a judging environment.
    """
    length_target: Annotated[int, Field(ge=0)] = 0
    """Length that `parts.length` aims at. Tokens."""
    longest: PositiveInt | None = None
    """L_max of `parts.overlong`; unset: `sampling.max_tokens`, of `oapl evaluate` its own limit. Tokens."""
    overlong_tokens: PositiveInt = 4096
    """L_cache of `parts.overlong` (paper). Tokens."""
    ngram_words: PositiveInt = 3
    """n of `parts.repetition` (open-r1)."""
    judge: JudgeConfig | None = None
    """A language model that judges; unset: none."""
    right_from: float = CORRECT
    """An answer is correct if its reward is at least this: for the groups that are kept, pass@k, `rft` and metrics."""

    @property
    def place(self) -> str | None:
        """Place of `function`, ``module:function``."""
        return plugins.place("reward", self.function) if self.function else None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        parts = self.parts
        for name in ("function", "judge"):
            if getattr(parts, name) and getattr(self, name) is None:
                raise ValueError(f"parts.{name} is the weight of `{name}`, which is not given")
            if getattr(self, name) is not None and name not in self.weights:
                raise ValueError(f"parts.{name} must say how much the {name} counts beside the other parts")
        if self.columns and self.function is None:
            raise ValueError("columns are what a `function` returns; there is none")
        taken = {*PartsConfig.model_fields, _SPREAD}
        if wrong := sorted(set(taken).intersection(self.columns)) or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns: {wrong if wrong is not True else 'two'} have a name that is taken")
        return self

    def check(self, stops_at_first_failure: bool, max_tokens: int, has_environment: bool) -> None:
        """Check that the reward fits the other settings.

        Raises:
            ValueError: it does not.
        """
        if self.parts.tests and stops_at_first_failure:
            raise ValueError(
                "reward.parts.tests needs verifier.stop_at_first_failure = false: else no test runs after the first "
                "that fails, and nobody knows how many would pass"
            )
        if self.parts.environment and not has_environment:
            raise ValueError(
                "reward.parts.environment is the weight of what an environment gave; there is no [environment]"
            )
        if self.parts.overlong and (self.longest or max_tokens) <= self.overlong_tokens:
            raise ValueError(
                f"reward.overlong_tokens={self.overlong_tokens} must be less than the longest answer, "
                f"{self.longest or max_tokens} tokens"
            )

    def for_longest(self, tokens: int) -> Self:
        """Copy the settings for answers with another limit: ``tokens`` is `longest` unless that is set."""
        return self.model_copy(update={"longest": self.longest or tokens})

    @property
    def weights(self) -> dict[str, float]:
        """Parts that count, with their weights; none where rewards stay as they were before ``[reward]``."""
        weights = {name: weight for name, weight in self.parts.model_dump().items() if weight}
        alone = "function" if self.function else "judge" if self.judge else None
        return weights or ({alone: 1.0} if alone else {})

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Columns of the verdicts beside those of every run."""
        spread = [_SPREAD] if self.judge else []
        return tuple((REWARD_PREFIX + name, "float32") for name in (*self.weights, *spread, *self.columns))

    @property
    def slice(self) -> dict[str, Any]:
        """Settings that rewards depend on: all but those of speed, with the texts of files that they name."""
        # the source too: an edited function is another one
        dumped = super().slice
        if self.place:
            dumped["function_sha256"] = source_hash(self.place)
        if self.judge is None:  # as it was before there were judges
            del dumped["judge"]
        return {"reward": dumped}


def threshold(reward: RewardConfig | None) -> float:
    """Return the reward from which an answer is correct; who makes a verdict compares with it, nobody else."""
    return reward.right_from if reward else CORRECT
