"""Answers that begin with given tokens: a sampler that continues them. Reads and writes nothing."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler


@dataclass(frozen=True)
class Beginning:
    """Tokens that every answer to a problem begins with in a round."""

    ids: list[int]
    file: str
    """Name of the file that the answer is in."""


class Prefixed:
    """A Sampler whose answers to some problems begin with given tokens."""

    def __init__(self, sampler: Sampler, beginnings: Mapping[str, Beginning], tokenizer: Any) -> None:
        """Take the ``beginnings`` by problem; ``tokenizer`` decodes whole answers."""
        self._sampler, self._beginnings, self._tokenizer = sampler, beginnings, tokenizer
        self._asked = dict[str, Request]()
        """Requests as they came, by key, of answers that begin with something."""
        self.name, self.logprobs_mode, self.dtype = sampler.name, sampler.logprobs_mode, sampler.dtype
        self.startup_s = sampler.startup_s

    def __enter__(self) -> Self:
        """Enter nothing: whoever made the sampler starts and ends it."""
        return self

    def __exit__(self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        """Leave the sampler to whoever made it."""

    def load(self, model_dir: Path) -> None:
        """Continue with the weights of ``model_dir``."""
        self._sampler.load(model_dir)

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool = True) -> Iterator[SampledAnswer]:
        """Yield each answer, its beginning included, as soon as it is finished."""
        for answer in self._sampler.sample(map(self._begun, requests), with_logprobs):
            asked = self._asked.pop(answer.request.key, None)
            yield self._whole(answer, asked) if asked else answer

    def _begun(self, request: Request | None) -> Request | None:
        given = self._beginnings.get(request.problem_id) if request else None
        if request is None or given is None:
            return request
        self._asked[request.key] = request
        prompt = [*request.prompt_ids, *given.ids]
        return replace(request, prompt_ids=prompt, max_tokens=request.max_tokens - len(given.ids))

    def _whole(self, answer: SampledAnswer, asked: Request) -> SampledAnswer:
        given, told = self._beginnings[asked.problem_id], answer.prompt_ids
        assert told is None or list(told) == list(answer.request.prompt_ids), "the engine was given these very tokens"
        ids, before = [*given.ids, *answer.response_ids], len(given.ids)
        return replace(
            answer,
            request=asked,
            response_ids=ids,
            # nobody sampled the beginning: 0 is what the trainer expects where the mask is false
            logprobs=[0.0] * before + answer.logprobs,
            text=self._tokenizer.decode(ids, skip_special_tokens=True),
            prompt_ids=None,
            sampled=len(answer.response_ids),
            row={
                **answer.row,
                "loss_mask": [False] * before + [True] * len(answer.response_ids),
                "engine": f"{self.name} behind the beginning of {given.file}",
            },
        )
