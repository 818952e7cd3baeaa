"""Log-probs once an answer: vLLM's scheduler keeps those of each request and hands them over when the request ends.

Left alone, vLLM slices, sends and unpacks them at every step for every token (vllm-project/vllm#57442). Answers with a
stop text are left alone: vLLM finds the text outside of its core, which would not know that they have ended.

vLLM imports `scheduler` by name, in the process of its core. It counts, trims and takes back tokens as it does without
this. At the place where it would slice, it asks here for log-probs of the tokens that it has just accepted.
"""

import copy
from array import array
from typing import TYPE_CHECKING, Any

SCHEDULER = f"{__name__}.scheduler"
KEY = "oapl_logprobs"
"""Key in an output's ``kv_transfer_params``, which vLLM hands from its scheduler to the end of a request unread."""


class KeepingLogprobs:
    """A base in front of one of vLLM's schedulers."""

    if TYPE_CHECKING:
        requests: dict[str, Any]

    def __init__(self, *args: Any, **more: Any) -> None:
        """Take the arguments of vLLM's scheduler."""
        super().__init__(*args, **more)
        self._kept: dict[str, tuple[array[int], array[float]]] = {}

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Do what vLLM's does; the output's log-probs are kept instead of being sent on."""
        if model_runner_output.logprobs is not None:
            kept = StepLogprobs(model_runner_output, self.requests, self._kept)
            model_runner_output.logprobs = kept
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **more: Any) -> tuple[dict[str, Any] | None, Any]:
        """Do what vLLM's does at the end of every request, however it ends; the request's kept log-probs go along."""
        told, more_told = super()._free_request(request, *args, **more)  # type: ignore[misc]
        if kept := self._kept.pop(request.request_id, None):
            told = {**(told or {}), KEY: tuple(values.tobytes() for values in kept)}
        return told, more_told


class StepLogprobs:
    """Log-probs of a step, in the place of vLLM's own (v1/outputs.py: LogprobsLists)."""

    def __init__(
        self, output: Any, requests: dict[str, Any], kept: dict[str, tuple["array[int]", "array[float]"]]
    ) -> None:
        """Take ``output`` of vLLM's model runner; ``requests`` and ``kept`` have a key for each request."""
        self._whole, self._requests, self._kept = output.logprobs, requests, kept
        self._names = {row: name for name, row in output.req_id_to_index.items()}
        self._starts = self._whole.cu_num_generated_tokens
        # the sampled token's are the first column; a step's in two lists, as single elements of an array are slow
        self._ids = self._whole.logprob_token_ids[:, 0].tolist()
        self._values = self._whole.logprobs[:, 0].tolist()

    def slice_request(self, row: int, count: int) -> Any:
        """Keep those of the ``count`` tokens that a request was given; vLLM's own slice where it must have them."""
        name = self._names[row]
        kept = self._kept.get(name)
        if kept is None:
            parameters = self._requests[name].sampling_params
            if parameters.stop or parameters.num_logprobs:
                return self._whole.slice_request(row, count)
            kept = self._kept[name] = array("i"), array("f")
        start = row if self._starts is None else self._starts[row]
        for place in range(start, start + count):  # one as a rule, for which a slice would take twice the time
            kept[0].append(self._ids[place])
            kept[1].append(self._values[place])
        return None


def scheduler(*args: Any, **more: Any) -> Any:
    """Return the scheduler that vLLM would take, with `KeepingLogprobs` in front."""
    config = copy.copy(more["vllm_config"].scheduler_config)
    config.scheduler_cls = None
    return type("KeepingScheduler", (KeepingLogprobs, config.get_scheduler_cls()), {})(*args, **more)


def kept_logprobs(output: Any) -> tuple[list[int], list[float]] | None:
    """Return ids and log-probs of a finished request's tokens; None if vLLM handed them over itself."""
    packed = (output.kv_transfer_params or {}).get(KEY)
    if packed is None:
        return None
    ids, values = array("i"), array("f")
    ids.frombytes(packed[0])
    values.frombytes(packed[1])
    return ids.tolist(), values.tolist()
