"""Settings of an evaluation folder, which `oapl evaluate` makes: models, sets and answers, with defaults and units."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from oapl_core.settings.environment import EnvironmentConfig
from oapl_core.settings.evaluation import AskingConfig, EvaluationConfig
from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.problems import PromptConfig
from oapl_core.settings.reward import RewardConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.settings_group import Settings


class ModelConfig(Settings):
    """One checkpoint to measure, with its name in tables."""

    label: str
    """Name in tables."""
    path: Path
    """Hugging Face folder."""
    origin: str = "a model folder"
    """Where it comes from, and if it was chosen among others, by what."""

    @property
    def folder(self) -> str:
        """Name of the folder that its answers lie in."""
        return re.sub(r"[^A-Za-z0-9._-]+", "_", self.label)


class SetConfig(Settings):
    """The problems: a published set by name, or a problem set of ours."""

    name: str | None = None
    """Name of the set in `oapl problems`; unset: `path` is a problem set of ours."""
    path: Path | None = None
    """File or folder to read; unset: the hub."""
    split: Literal["train", "validation", "heldout"] | None = None
    """Split of the file's problems; in a problem set of ours with several splits, the one to take. Unset: the split in
    the file's first row, else held out.
    """
    revision: str | None = None
    """Commit of the set's repository on the hub; unset: that of data/sources.toml."""
    release: str | None = None
    """Release of LiveCodeBench, cumulative."""
    window: str | None = None
    """Days of release, `FIRST:END`, END excluded."""
    faulty: Literal["keep", "drop", "only"] = "keep"
    """Problems that their source calls faulty."""
    limit: PositiveInt | None = None
    """Number of problems to take, the first ones."""


class EvaluationFolderConfig(AskingConfig, PromptConfig):
    """An evaluation of checkpoints on one problem set, asked as an experiment would ask it."""

    models: Annotated[tuple[ModelConfig, ...], Field(min_length=1)]
    """Checkpoints in the order of the tables; pairs are compared."""
    problems: SetConfig
    """Problems to answer."""
    samples: PositiveInt = EvaluationConfig.model_fields["heldout_samples"].default
    """n, answers to each problem."""
    ks: tuple[PositiveInt, ...] = ()
    """k of pass@k; none: up to 16, powers of two, and n."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed from which every request's seed and the intervals' are derived."""
    engine: EngineConfig = EngineConfig()
    """vLLM."""
    environment: EnvironmentConfig | None = None
    """Environment that answers the model between its turns; unset: an answer is one turn."""
    verifier: VerifierConfig = VerifierConfig()
    """Verdicts."""
    reward: RewardConfig | None = None
    """Reward of a verdict; unset: 1 for a correct answer, 0 for a wrong one."""
    repeats: Path | None = None
    """Card of the evaluation that this one repeats."""
    engine_python: Path | None = None
    """Interpreter that has vLLM; unset: the running one."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.reward:
            stops, has_environment = self.verifier.stop_at_first_failure, self.environment is not None
            self.reward.check(stops, self.max_tokens, has_environment)
        if (self.problems.name is None) and self.problems.path is None:
            raise ValueError("give `problems` a name or a path")
        if self.ks and max(self.ks) > self.samples:
            raise ValueError(f"pass@{max(self.ks)} needs at least {max(self.ks)} answers to each problem: -n is less")
        self._check_labels()
        # an engine that is too short would cut answers, and count them as cut at max_tokens
        needed = self.max_prompt_tokens + self.max_tokens
        if self.engine.max_model_len < needed:
            raise ValueError(
                f"engine.max_model_len={self.engine.max_model_len} is less than the {needed} tokens needed"
            )
        return self

    def _check_labels(self) -> None:
        # answers are found by their folder: two models in one would get the answers of the first
        owners: dict[str, str] = {}
        for model in self.models:
            for place in (model.folder, *(model.folder + one.ending for one in self.also)):
                if place in owners:
                    labels = f"{owners[place]!r} and {model.label!r}"
                    raise ValueError(f"labels {labels} would share the folder {place!r}; name one with LABEL=MODEL")
                owners[place] = model.label
