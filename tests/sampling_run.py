"""Small run folders that are ready to be sampled and evaluated, and a made-up sampler in the engine's place."""

import json
import random
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from oapl_core.model_files.model_folder import policy_hash
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.tables import PROBLEMS, PROMPTS, write_table

SPLITS = ("train", "validation", "heldout")
STEPS = 3
"""Optimiser steps of each epoch that ``train`` makes up."""


def made_up_model(folder: Path, weight: float = 0.0) -> Path:
    """A model folder of one weight: enough for everything but an engine."""
    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", weight))
    (folder / "config.json").write_text('{"eos_token_id": 2}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


def make_run(folder: Path, model: Path, prompts: dict[str, list[list[int]]] | None = None, **changes: Any) -> Run:
    """A run with problems and prompts; ``prompts`` maps a split to token ids (7, 3 and 4 problems if not given).

    ``changes`` are settings such as ``rounds=[...]``, added to those below table by table.
    """
    sets = prompts or {"train": [[5, i] for i in range(7)], "validation": [[6]] * 3, "heldout": [[7]] * 4}
    values: dict[str, Any] = {
        "name": "sampled",
        "seed": 3,
        "runs_dir": folder,
        "model": model,
        "problems": {split: folder / f"{split}.jsonl" for split in SPLITS} | {"max_prompt_tokens": 128},
        "engine": {"max_model_len": 512, "max_num_seqs": 64, "kv_cache_gib": 0.25},
        "sampling": {"group_size": 2, "max_tokens": 12, "problems_per_part": 3},
        "rounds": [{}, {"problems": 4, "epochs": 3}],
        "evaluation": {"validation_samples": 2, "heldout_samples": 4, "max_tokens": 12, "bootstrap_resamples": 50},
    }
    for name, change in changes.items():
        values[name] = values[name] | change if isinstance(values.get(name), dict) else change
    run = Run.create(parse_experiment(values, "test"))
    rows = [(f"{split}-{i}", split, ids) for split in SPLITS for i, ids in enumerate(sets[split])]
    write(run, run.problems, PROBLEMS, [_problem(problem, split) for problem, split, _ in rows])
    write(
        run,
        run.prompts,
        PROMPTS,
        [{"problem_id": problem, "split": split, "prompt": "", "prompt_ids": ids} for problem, split, ids in rows],
    )
    return run


def _problem(problem: str, split: str) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(name for name, _ in PROBLEMS)
    return empty | {"problem_id": problem, "split": split, "kind": "math", "statement": "", "tests": [], "answer": "1"}


def write(run: Run, path: Path, fields: Any, rows: list[dict[str, Any]]) -> None:
    """Record ``rows`` as the artifact ``path``."""
    with run.writing(path, {}, {}) as draft:
        draft.rows = write_table(draft.path, fields, rows)


def train(run: Run, rounds: Iterable[int] = (0, 1)) -> None:
    """Checkpoints of every epoch as if trained: made-up models, recorded as training does."""
    for number in rounds:
        for epoch in range(1, run.config.rounds[number].epochs + 1):
            with run.writing(run.checkpoint(number, epoch), {}, {}) as draft:
                made_up_model(draft.path, 10.0 * (number + 1) + epoch)
                draft.details = {"policy_hash": policy_hash(draft.path), "steps": STEPS}


class MadeUpSampler:
    """Answers depend on the weights, the prompt and the seed alone and come in an order of their own."""

    name, logprobs_mode, dtype = "made up 1", "raw_logprobs", "none"

    def __init__(self, model_dir: Path, config: EngineConfig, places: int = 5, stop_after: int | None = None) -> None:
        """``places``: requests held at once; ``stop_after``: answers after which it breaks."""
        self.startup_s = {"nothing": 0.0}
        self.model_dir, self.places, self.stop_after = model_dir, places, stop_after
        self.loaded: list[Path] = []
        self.answered: list[str] = []
        self.most_held = 0

    def __enter__(self) -> Self:
        self.load(self.model_dir)
        return self

    def __exit__(self, *_: object) -> None:
        self.model_dir = Path("ended")

    def load(self, model_dir: Path) -> None:
        self.loaded.append(model_dir)
        self.model_dir = model_dir
        self._weights = policy_hash(model_dir)

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool = True) -> Iterator[SampledAnswer]:
        held: list[Request] = []
        order = random.Random(0)
        source = iter(requests)
        while True:
            while len(held) < self.places and (request := next(source, None)) is not None:
                held.append(request)
            self.most_held = max(self.most_held, len(held))
            if not held:
                return
            if self.stop_after is not None and len(self.answered) >= self.stop_after:
                raise InterruptedError("the made-up engine broke")
            yield self._answer(held.pop(order.randrange(len(held))), with_logprobs)

    def _answer(self, request: Request, with_logprobs: bool) -> SampledAnswer:
        self.answered.append(request.key)
        draw = random.Random(f"{self._weights} {list(request.prompt_ids)} {request.seed}")
        ids = [draw.randrange(3, 300) for _ in range(draw.randint(1, request.max_tokens))]
        logprobs = [-draw.random() for _ in ids] if with_logprobs else []
        reason = "length" if len(ids) == request.max_tokens else "stop"
        return SampledAnswer(request, ids, logprobs, reason, f"{self._weights} {draw.random()}")
