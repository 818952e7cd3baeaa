"""A sampler that says what a function of the conversation says, in the tokens of a real tokenizer, and its run."""

import json
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from oapl_core.model_files.model_folder import load_tokenizer
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import EngineConfig
from tests.sampling_run import made_up_model, make_run
from tests.tiny_model import END, write_tokenizer

Says = Callable[[str, random.Random], str]
"""What is said to a conversation as text, drawn from the request's seed."""


def speaking_model(folder: Path) -> Path:
    """A made-up model with a tokenizer that has a chat template."""
    made_up_model(folder)
    (folder / "tokenizer.json").unlink()
    write_tokenizer(folder)
    ends = load_tokenizer(folder).convert_tokens_to_ids([END])
    (folder / "config.json").write_text(json.dumps({"eos_token_id": ends[0], "model_type": "qwen3"}))
    return folder


def speaking_run(folder: Path, statements: list[str], **changes: Any) -> Run:
    """A run whose training problems ask ``statements``, with a speaking model."""
    model = speaking_model(folder / "speaking")
    tokenizer = load_tokenizer(model)

    def ids(statement: str) -> list[int]:
        asked = [{"role": "user", "content": statement}]
        text = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    prompts = {"train": [ids(one) for one in statements], "validation": [], "heldout": [ids(statements[0])]}
    sampling = {"max_tokens": 380, "group_size": 2, "problems_per_part": 2, **changes.pop("sampling", {})}
    return make_run(folder, model, prompts, sampling=sampling, rounds=[{}], **changes)


class SpeakingSampler:
    """Answers come in an order of their own; ``places`` are held at once."""

    name, logprobs_mode, dtype = "speaking 1", "raw_logprobs", "none"

    def __init__(self, says: Says, model_dir: Path, config: EngineConfig, places: int = 5) -> None:
        self.startup_s = {"nothing": 0.0}
        self.says, self.places = says, places
        self.tokenizer = load_tokenizer(model_dir)
        self.asked: list[str] = []
        self.stop_after: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def load(self, model_dir: Path) -> None: ...

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool = True) -> Iterator[SampledAnswer]:
        held, order, source = list[Request](), random.Random(0), iter(requests)
        while True:
            while len(held) < self.places and (request := next(source, None)) is not None:
                held.append(request)
            if not held:
                return
            if self.stop_after is not None and len(self.asked) >= self.stop_after:
                raise InterruptedError("the speaking engine broke")
            yield self._answer(held.pop(order.randrange(len(held))), with_logprobs)

    def _answer(self, request: Request, with_logprobs: bool) -> SampledAnswer:
        self.asked.append(request.key)
        draw = random.Random(request.seed)
        text = self.says(self.tokenizer.decode(list(request.prompt_ids)), draw)
        ids = self.tokenizer(text + END, add_special_tokens=False)["input_ids"]
        is_cut = len(ids) > request.max_tokens
        ids = ids[: request.max_tokens]
        said = self.tokenizer.decode(ids, skip_special_tokens=True)
        logprobs = [-draw.random() - 0.01 for _ in ids] if with_logprobs else []
        reason = "length" if is_cut else "stop"
        return SampledAnswer(request, ids, logprobs, reason, said, prompt_ids=list(request.prompt_ids))


def copied(run: Run, folder: Path) -> Run:
    """The same run elsewhere."""
    shutil.copytree(run.root, folder / run.root.name)
    return Run.open(folder / run.root.name)
