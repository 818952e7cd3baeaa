"""Settings of training rollouts, ``[sampling]``, with units and sources; a round may have its own (``rounds.py``)."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from oapl_core.settings.evaluation import StopTexts
from oapl_core.settings_group import Settings
from oapl_core.token_columns import COLUMNS


class SamplingConfig(Settings):
    """Training rollouts: always top-p 1, top-k off and no penalties, so that log-probs are of what was sampled from."""

    decided = dict.fromkeys(
        "top_p top_k min_p repetition_penalty presence_penalty frequency_penalty".split(),
        "training rollouts always have top-p 1, no top-k and no penalties, as with others tokens are left out that the "
        "trainer's log-probs count; sampling.temperature, evaluation.temperature and evaluation.top_p are settings",
    )
    changes_nothing = frozenset({"flush_s"})
    group_size: Annotated[int, Field(ge=2)] = 8
    """G, answers per problem (paper, section 5)."""
    temperature: Annotated[float, Field(ge=0.05, le=10.0)] = 1.0
    """T: answers are sampled from softmax(logits / T), log-probs are of that, and training divides logits by the same T
    (paper: 1). Servers of [sampler] have 1 alone."""
    max_tokens: PositiveInt = 32000
    """Longest response. Tokens."""
    stop: StopTexts = ()
    """Texts that end an answer beside the model's end tokens; evaluation uses them too. What is judged ends before."""
    stop_tokens: Literal["trained", "cut"] = "trained"
    """Place of a stop text's tokens. `trained`: they belong to the rollout as they were sampled, so that the policy
    learns to end. `cut`: tokens of the stop text alone are left out, unless they are an answer's only token. Nothing
    then teaches the policy to end.
    """
    routes: bool = False
    """Routes of a mixture of experts: train with the experts that the engine chose for each token (rollout routing
    replay, arXiv 2510.11370). A byte for each expert, layer and token: 384 a token of Qwen3-30B-A3B. A part's routes
    lie in memory until it is whole.
    """
    problems_per_part: PositiveInt | None = None
    """Problems per Parquet part; what verification, replicas and a later run take as a whole. Unset: 128 and, where
    several engines share a round, at most what gives each four parts (`run_folder/cutting.py`)."""
    flush_s: PositiveFloat = 30.0
    """Finished answers of parts in flight are written at least this often: what a crash can lose at most. Seconds."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Optional columns of tokens that are asked for."""
        return tuple(name for name in COLUMNS if getattr(self, name))
