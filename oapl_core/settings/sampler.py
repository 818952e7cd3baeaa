"""Servers that sample in the place of an engine of our own: the `sampler` group of an experiment's settings."""

from typing import Annotated

from pydantic import AfterValidator, Field, PositiveFloat

from oapl_core.settings.operation.secrets import VariableName, holds_key, masked
from oapl_core.settings_group import Settings


def _address(url: str) -> str:
    if not url.startswith(("http://", "https://")) or "@" in url or holds_key(url):
        raise ValueError(f"{masked(url)!r} is not http://HOST:PORT (a key goes into the environment, see api_key_env)")
    return url.rstrip("/").removesuffix("/v1")


class SamplerConfig(Settings):
    """OpenAI-compatible vLLM servers that sample training rollouts. May change while a run is unfinished."""

    urls: Annotated[tuple[Annotated[str, AfterValidator(_address)], ...], Field(min_length=1)]
    """Where they listen, `http://HOST:PORT`; they share the requests, `engine.max_num_seqs` at each."""
    api_key_env: VariableName | None = None
    """Environment variable that holds their key (`--api-key`); unset: none is sent."""
    wait_minutes: Annotated[float, Field(ge=0.0)] = 60.0
    """How long a round waits until a server answers and proves the round's policy. Minutes."""
    request_minutes: PositiveFloat = 120.0
    """How long one answer may take. Minutes."""
    max_difference: PositiveFloat = 0.05
    """Largest mean difference between log-probs of a fixed probe by a server and by transformers from the checkpoint.
    Above it the server has other weights. Nats per token (float32: about 1e-6; bfloat16: up to 0.03).
    """
