"""Does a server hold a checkpoint's weights? A fixed text, scored by both.

Loads the checkpoint with transformers, once, on the CPU, in the type that it is stored in; writes nothing.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oapl_core.errors import DataError
from oapl_extras.servers.server import ANSWERS

_TEXTS = (
    "A train leaves at 9 and drives 240 kilometres at 80 kilometres an hour. When does it arrive?",
    "def median(values):\n    ordered = sorted(values)\n    return ordered[len(ordered) // 2]\n",
    "Let f(x) = x^2 - 3x + 2. Its roots are 1 and 2, so the answer is \\boxed{3}.",
    "Le chat dort; der Hund bellt. 0 1 1 2 3 5 8 13 21 34 55 89",
)

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Path and body of a POST to the server -> what it answers."""


class Probe:
    """Log-probs that the checkpoint gives the texts, to be compared with those of a server."""

    def __init__(self, model_dir: Path, tokenizer: Any) -> None:
        """Load ``model_dir`` and score the texts."""
        self._prompts: list[list[int]] = [list(tokenizer(text)["input_ids"]) for text in _TEXTS]
        self._expected = expected_scores(model_dir, self._prompts)

    async def difference(self, url: str, model: str, ask: Ask) -> float:
        """Mean absolute difference between the server's log-probs and the checkpoint's. Nats per token.

        Raises:
            DataError: the server returns no token ids or no log-probs.
        """
        differences: list[float] = []
        for prompt, expected in zip(self._prompts, self._expected, strict=True):
            body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
            asked = {"seed": 0, "logprobs": 0, "prompt_logprobs": 0, "return_token_ids": True}
            (choice,) = (await ask(ANSWERS, {**body, **asked}))["choices"]
            if choice.get("token_ids") is None or choice.get("prompt_token_ids") != prompt:
                raise DataError(
                    f"{url}: returns no token ids (`return_token_ids`), and only those can be trained on; serve with "
                    "vLLM"
                )
            given = choice.get("prompt_logprobs")
            if not given or not choice.get("logprobs"):
                raise DataError(f"{url}: returns no log-probs; they are what rollouts are trained on; serve with vLLM")
            server = [given[place][str(prompt[place])]["logprob"] for place in range(1, len(prompt))]
            # and of the token that was sampled, on the way that rollouts take
            (sampled,) = choice["token_ids"]
            server += choice["logprobs"]["token_logprobs"]
            mine = [*expected.of_prompt, float(expected.after[sampled])]
            differences += [abs(a - b) for a, b in zip(server, mine, strict=True)]
        return sum(differences) / len(differences)


@dataclass(frozen=True)
class Scores:
    """Log-probs of one prompt."""

    of_prompt: list[float]
    """Log-prob of each of the prompt's tokens but the first."""
    after: Sequence[float]
    """Log-prob of every token that may follow."""


def expected_scores(model_dir: Path, prompts: list[list[int]]) -> list[Scores]:
    """Compute the log-probs that the checkpoint gives the prompts.

    Raises:
        DataError: transformers cannot load the model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype="auto", local_files_only=True).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{model_dir}: transformers cannot load the model, to prove servers with it: {reason}"
        ) from None
    found = []
    for ids in prompts:
        with torch.no_grad():
            logprob_TV = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        found.append(Scores(logprob_TV[range(len(ids) - 1), ids[1:]].tolist(), logprob_TV[-1]))
    return found
