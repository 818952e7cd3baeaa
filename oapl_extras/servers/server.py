"""One OpenAI-compatible vLLM server: what is asked of it by HTTP, and what its errors mean."""

from collections.abc import Mapping
from typing import Any

from oapl_core.errors import ConfigError

ANSWERS = "/v1/completions"
"""Where answers are asked for; what else OpenAI's interface has there is not used."""


class Broken(Exception):
    """The connection broke, or the server said that the fault is its own."""


class Server:
    """One server: what is known of it."""

    def __init__(self, url: str, client: Any) -> None:
        self.url, self.client = url, client
        self.model, self.longest, self.version = "", 0, ""
        self.losses = 0
        """Number of times it was lost; places that it had before are none."""

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the server's answer to GET or, with a body, POST.

        Raises:
            Broken: the server cannot be reached, or answered 5xx.
            ConfigError: the server refuses the request.
        """
        import httpx

        try:
            if body is None:
                answer = await self.client.get(f"{self.url}{path}")
            else:
                answer = await self.client.post(f"{self.url}{path}", json=body)
        except httpx.TransportError as error:
            raise Broken(f"{type(error).__name__} {error}".strip()) from None
        said = " ".join(answer.text.split())[:300]
        if answer.status_code >= 500 or answer.status_code == 429:
            raise Broken(f"it answered {answer.status_code}: {said}")
        if answer.status_code in (401, 403):
            raise ConfigError(
                f"{self.url}: wants a key; put it into the environment and name it in sampler.api_key_env"
            )
        if answer.status_code >= 400:
            raise ConfigError(f"{self.url}{path}: answered {answer.status_code}: {said}")
        return answer.json()

    async def look(self) -> None:
        """Ask for its model and version."""
        (served, *_) = (await self.ask("/v1/models"))["data"]
        self.model, self.longest = served["id"], served.get("max_model_len") or 0
        self.version = (await self.ask("/version")).get("version", "")
