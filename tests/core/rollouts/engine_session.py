"""What the engine tests need of a real vLLM, in one process: ``python -m tests.core.rollouts.engine_session FOLDER``.

Writes FOLDER/session.json; test_engine.py starts it once and looks at what it found. Asserts nothing itself.
"""

import json
import random
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from oapl_core.environments.stepping import Steps
from oapl_core.environments.turn_check import check_turns
from oapl_core.environments.turn_sampler import TurnSampler
from oapl_core.environments.wording import Wording
from oapl_core.errors import ConfigError, DataError
from oapl_core.model_files.model_folder import end_token_ids, load_tokenizer
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.generate import generate
from oapl_core.rollouts.requests import Request
from oapl_core.run_folder.run import Run
from oapl_core.settings.environment import EnvironmentConfig
from oapl_core.settings.experiment import EngineConfig
from oapl_core.tables import ROLLOUTS, read_table
from oapl_core.turns import spans
from tests.chat_templates import FAMILIES
from tests.played_environments import Again
from tests.sampling_run import make_run
from tests.tiny_model import TEXTS, write_tiny_model

CONFIG = EngineConfig(max_model_len=256, max_num_seqs=32, kv_cache_gib=0.25)
PROMPTS, GROUP = 16, 4
WARM = 0.7
"""A temperature of rollouts that is not 1."""
SHORT = 50
"""Tokens of the answers of a round that is killed once."""


def requests(temperature: float = 1.0, top_p: float = 1.0) -> list[Request]:
    """Prompts of 33 to 110 tokens: longer than a block of the prefix cache, so that groups really share one."""
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 290) for _ in range(draw.randint(33, 110))] for _ in range(PROMPTS)]
    pairs = [(p, g) for p in range(PROMPTS) for g in range(GROUP)]
    return [Request(f"{p}/{g}", prompts[p], 1000 * p + g, 12 + p, temperature, top_p) for p, g in pairs]


def sampling_run(
    folder: Path, model: Path, sampler: dict[str, Any] | None = None, max_tokens: int = 100, **engine: Any
) -> Run:
    """A run of a few seconds of sampling in two parts."""
    prompts = {"train": [list(r.prompt_ids) for r in requests()], "validation": [[5]], "heldout": [[5]]}
    sampling = {"group_size": 8, "max_tokens": max_tokens, "problems_per_part": 8}
    engine = CONFIG.model_dump() | engine
    return make_run(folder, model, prompts, sampling=sampling, engine=engine, sampler=sampler)


def sample(engine: SamplingEngine, asked: Iterable[Request | None], with_logprobs: bool = True) -> dict[str, list[Any]]:
    """Response ids, log-probs, finish reason and text by key."""
    found = engine.sample(asked, with_logprobs)
    return {c.request.key: [c.response_ids, c.logprobs, c.finish_reason, c.text] for c in found}


def stops(answers: dict[str, list[Any]]) -> dict[str, str]:
    """A text of one to five letters out of each answer, before its first broken character: many begin or end inside of
    a token."""
    whole = {key: answer[3].partition("\ufffd")[0] for key, answer in answers.items()}
    parts = {key: text[len(text) // 2 :][: 1 + n % 5] for n, (key, text) in enumerate(whole.items())}
    return {key: part for key, part in parts.items() if part}


def stopped(engine: SamplingEngine, wanted: dict[str, tuple[str, ...]]) -> dict[str, list[Any]]:
    """Answers to prompts that are texts, each with its stop texts."""
    prompts = [engine._tokenizer.encode(text) for text in TEXTS]
    asked = [replace(r, prompt_ids=prompts[int(r.key[0]) % 4], max_tokens=40, stop=wanted[r.key]) for r in requests()]
    found = engine.sample(asked)
    return {c.request.key: [c.response_ids, c.logprobs, c.finish_reason, c.text, c.stop_tokens] for c in found}


def in_turns(engine: SamplingEngine, model: Path) -> dict[str, list[Any]]:
    """Answers in up to three turns, each ended by a letter: ids, log-probs, mask, places and prompts of turns."""
    config, tokenizer = EnvironmentConfig(function="tests.played_environments:Again"), load_tokenizer(model)
    steps, wording = Steps(config, Again), Wording(tokenizer, end_token_ids(model), 100)
    asked = [replace(r, max_tokens=120, stop=tuple("abcdefghijklmnopqrstuvwxyz")) for r in requests()]
    with TurnSampler(engine, config, steps, wording, {"": {}}, 24, False) as sampler:
        answers = [(answer, answer.row) for answer in sampler.sample(asked)]
    return {
        one.request.key: [
            one.response_ids,
            one.logprobs,
            *(turns[n] for n in ("loss_mask", "turn_starts", "prompt_hashes")),
        ]
        for one, turns in answers
        if turns
    }


class Borrowed(SamplingEngine):
    """A started engine in the place of one that a stage would start."""

    def __init__(self, engine: SamplingEngine, model: Path, _config: EngineConfig) -> None:
        self.__dict__ = engine.__dict__
        self.load(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def by_template(
    engine: SamplingEngine, folder: Path, templates: Mapping[str, str], prompt_tokens: int, max_tokens: int
) -> dict[str, Any]:
    """A round of several turns with each chat template, and what the check of its files says."""
    found = {}
    for name, template in templates.items():
        model = write_tiny_model(folder / name, seed=1, sharpness=8)
        tokenizer = load_tokenizer(model)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(model)
        asked = [
            tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]
            for text in TEXTS
        ]
        run = make_run(
            folder / f"{name}_run",
            model,
            {"train": asked, "validation": [], "heldout": asked[:1]},
            problems={"max_prompt_tokens": prompt_tokens},
            environment={"function": "tests.played_environments:Looked", "turn_tokens": 24},
            sampling={"group_size": GROUP, "max_tokens": max_tokens, "stop": [*" abcdefghij"], "problems_per_part": 2},
            engine=CONFIG.model_dump() | {"max_model_len": prompt_tokens + max_tokens},
        )
        generate(run, 0, partial(Borrowed, engine))
        check, parts = check_turns(run), sorted(run.rollouts(0).glob("*.parquet"))
        rows = [row for part in parts for row in read_table(part, ROLLOUTS).to_pylist()]
        between = [tokenizer.decode(other) for row in rows for _, other in spans(row) if other]
        turns = [len(row["prompt_hashes"]) for row in rows]
        found[name] = {**asdict(check), "turns": turns, "between": sorted(set(between))}
    return found


def advise(model: Path) -> Path:
    """Give the model sampling advice that would make all answers of a group equal and repetitions rare."""
    path, advice = model / "generation_config.json", {"top_k": 1, "temperature": 0.1, "repetition_penalty": 2.0}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_sample": True} | advice))
    return model


def reference(
    model_dir: Path, answers: dict[str, list[Any]], temperature: float = 1.0, chunk: int = 7
) -> dict[str, list[float]]:
    """The trainer's float32 log-probs of the sampled ids, at a temperature; at 1 those of transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM

    from oapl_core.training.model.logprobs import token_logprobs

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    found = {}
    for request in requests():
        response = answers[request.key][0]
        ids = torch.tensor([[*request.prompt_ids, *response]])
        with torch.no_grad():
            if temperature == 1.0:
                logprobs = model(ids).logits[0].float().log_softmax(-1)
                own = logprobs[torch.arange(ids.shape[1] - 1), ids[0, 1:]]
            else:
                hidden, weight = model.model(ids).last_hidden_state[0, :-1], model.get_output_embeddings().weight
                own = token_logprobs(hidden, weight, ids[0, 1:], temperature, chunk)
        found[request.key] = own[len(request.prompt_ids) - 1 :].tolist()
    return found


def refused(act: Any) -> str:
    """The message of the OaplError that ``act`` raises."""
    try:
        act()
    except (DataError, ConfigError) as error:
        return str(error)
    return "nothing was refused"


def session(folder: Path) -> dict[str, Any]:
    """What was found."""
    found: dict[str, Any] = {}
    first = advise(write_tiny_model(folder / "first", seed=1, sharpness=8))
    unadvised = write_tiny_model(folder / "unadvised", seed=1, sharpness=8)
    second = write_tiny_model(folder / "second", seed=2, sharpness=8)
    untied = [write_tiny_model(folder / f"untied_{seed}", seed=seed, sharpness=8, tied=False) for seed in (3, 4)]
    foreign = write_tiny_model(folder / "foreign", hidden_size=64)
    with SamplingEngine(first, CONFIG) as engine:
        found["name"], found["startup_s"] = engine.name, engine.startup_s
        found["first"] = sample(engine, requests())
        found["shuffled"] = sample(engine, random.Random(1).sample(requests(), PROMPTS * GROUP))
        found["alone"] = {k: v for r in requests()[::9] for k, v in sample(engine, [r]).items()}
        found["nucleus"] = sample(engine, requests(0.6, 0.95), with_logprobs=False)
        found["greedy"] = sample(engine, requests(0.0), with_logprobs=False)
        found["unstopped"] = stopped(engine, dict.fromkeys(found["first"], ()))
        found["stops"] = stops(found["unstopped"])
        found["stopped"] = stopped(engine, {key: ("never", found["stops"].get(key, "never")) for key in found["first"]})
        found["by a token"] = stopped(engine, dict.fromkeys(found["first"], ("never", "<|im_start|>")))
        found["turns"] = in_turns(engine, first)
        found["families"] = by_template(engine, folder, FAMILIES, 128, 120)
        engine.load(first)
        found["too long"] = refused(lambda: list(engine.sample([Request("long", [5] * 250, 0, 7)])))
        found["foreign"] = refused(lambda: engine.load(foreign))
        found["too wide"] = refused(SamplingEngine(first, CONFIG.model_copy(update={"max_model_len": 4096})).__enter__)
        found["encoded"] = [engine._tokenizer.encode(text) for text in TEXTS]
        engine.load(second)
        found["swapped"] = sample(engine, requests())
        engine.load(first)
        found["swapped back"] = sample(engine, requests())
    with SamplingEngine(second, CONFIG, temperature=1.0) as engine:
        found["fresh"] = sample(engine, requests())
        found["raw"], found["raw mode"] = sample(engine, requests(WARM)), engine.logprobs_mode
    with SamplingEngine(unadvised, CONFIG.model_copy(update={"max_num_seqs": 5})) as engine:
        found["unadvised, 5 at once"] = sample(engine, requests())
    with SamplingEngine(untied[0], CONFIG) as engine:
        engine.load(untied[1])
        found["untied swapped"] = sample(engine, requests())
    found["reference"] = {n: reference(folder / n, found[k]) for n, k in (("first", "first"), ("second", "swapped"))}
    with SamplingEngine(second, CONFIG, temperature=WARM) as engine:
        found["warm"], found["warm mode"] = sample(engine, requests(WARM)), engine.logprobs_mode
    found["reference"]["warm"] = reference(second, found["warm"], WARM)
    found["reference"]["warm at 1"] = reference(second, found["warm"])
    found["reference"]["turns"] = reference(first, found["turns"])
    found["reference"]["untied"] = reference(untied[1], found["untied swapped"])
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "session.json").write_text(json.dumps(session(target)))
