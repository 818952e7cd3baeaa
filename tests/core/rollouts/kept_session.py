"""Log-probs kept by the scheduler and those that vLLM hands over itself: ``python -m tests.core.rollouts.kept_session
FOLDER``.

A stop text that is never sampled has vLLM hand them over itself, as it did for every answer before. Writes
FOLDER/kept.json; asserts nothing.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from oapl_core.rollouts import engine as engine_module
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.requests import Request
from tests.core.rollouts.engine_session import CONFIG, requests
from tests.tiny_model import write_tiny_model

NEVER = ("this text is never sampled",)
SMALL = CONFIG.model_copy(update={"kv_cache_gib": 0.0005})
"""Room for some 1,000 tokens, where 32 answers at once need up to 4,400."""


def rows(engine: SamplingEngine, asked: Iterable[Request]) -> dict[str, list[Any]]:
    """Everything of each answer."""
    found = {a.request.key: a for a in engine.sample(asked)}
    return {
        key: [a.response_ids, a.logprobs, a.finish_reason, a.text, a.stop_tokens, list(a.prompt_ids or ())]
        for key, a in sorted(found.items())
    }


def both(engine: SamplingEngine, asked: list[Request]) -> list[dict[str, list[Any]]]:
    """The same requests, kept and handed over by vLLM, each with nothing in the prefix cache."""
    found = []
    for stop in ((), NEVER):
        engine._engine.reset_prefix_cache()
        found.append(rows(engine, [replace(one, stop=stop) for one in asked]))
    return found


def session(folder: Path) -> dict[str, Any]:
    """What was found."""
    first = write_tiny_model(folder / "first", seed=1, sharpness=8)
    second = write_tiny_model(folder / "second", seed=2, sharpness=8)
    found: dict[str, Any] = {}
    asked = list[bool]()
    names = vars(engine_module)
    whole = names["kept_logprobs"]

    def looked_at(output: Any) -> Any:
        asked.append(whole(output) is not None)
        return whole(output)

    names["kept_logprobs"] = looked_at
    with SamplingEngine(first, CONFIG) as engine:
        asked.clear()
        found["plain"] = both(engine, requests())
        found["kept"] = asked[:]
        found["cached prompts"] = [rows(engine, requests()), found["plain"][1]]
        mixed = [replace(one, stop=NEVER if number % 2 else ()) for number, one in enumerate(requests())]
        engine._engine.reset_prefix_cache()
        found["side by side"] = [rows(engine, mixed), found["plain"][1]]
        engine.load(second)
        found["other weights"] = both(engine, requests())
        core = getattr(engine._engine.engine_core, "engine_core", None)  # not where the core is another process
        found["left"] = len(core.scheduler._kept) if core else 0
    with SamplingEngine(first, SMALL) as engine:
        core, preempted = getattr(engine._engine.engine_core, "engine_core", None), list[str]()
        if core:
            put_back = core.scheduler._preempt_request

            def counted(request: Any, *rest: Any, **more: Any) -> None:
                preempted.append(request.request_id)
                put_back(request, *rest, **more)

            core.scheduler._preempt_request = counted
        found["preempted"] = both(engine, requests())
        found["preemptions"] = len(preempted)
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "kept.json").write_text(json.dumps(session(target)))
