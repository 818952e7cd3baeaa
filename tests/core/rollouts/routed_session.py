"""Routes of a real vLLM on CPU against what the trainer chooses: ``python -m tests.core.rollouts.routed_session
FOLDER FAMILY DTYPE GIB``.

Samples groups with a model of ``FAMILY`` in ``DTYPE``, its keys and values in so many GiB (few make requests begin
again), and scores them in float32. Writes FOLDER/found.json; test_real_routes.py looks at it.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch

from oapl_core.model_files.model_folder import policy_hash
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.settings.experiment import EngineConfig
from oapl_core.training.model.logprobs import Policy
from tests.core.training.test_routes import chosen, replaying, routing
from tests.family_models import write_family


def sampled(folder: Path, dtype: Any, gib: float) -> list[SampledAnswer]:
    """Five answers to each of four prompts, three of them longer than a block of the prefix cache."""
    draw = random.Random(1)
    prompts = [[draw.randrange(5, 300) for _ in range(size)] for size in (70, 70, 40, 8)]
    asked = [
        Request(f"{p}-x/s{i}", prompts[p], 100 * p + i, 60, stop=("e",) * (i == 3)) for p in range(4) for i in range(5)
    ]
    config = EngineConfig(max_model_len=256, max_num_seqs=8, kv_cache_gib=gib, dtype=dtype)
    with SamplingEngine(folder, config, columns=("routes",)) as engine:
        return list(engine.sample(asked))


def compared(policy: Policy, folder: Path, answer: SampledAnswer) -> dict[str, Any]:
    """How many of its tokens go to the same experts in all layers; distances of log-probs without and with replay."""
    prompt, ids = len(answer.request.prompt_ids), [*answer.request.prompt_ids, *answer.response_ids]
    inputs = torch.tensor([ids]), torch.tensor([prompt]), torch.tensor([len(ids)])
    routes = torch.from_numpy(answer.columns["routes"].astype("int16"))
    assert routes.shape == (len(ids) - 1, routing(folder).layers, routing(folder).top_k)
    own = chosen(policy, folder, *inputs)[:-1]
    stored = torch.cat([routes, torch.full_like(routes[:1], -1)])[None]
    with torch.no_grad():
        logprobs = [policy(*inputs, given)[0, prompt - 1 :] for given in (None, (stored,))]
    recorded = torch.tensor(answer.logprobs)
    same = (own.sort(2).values == routes.sort(2).values).all(2).all(1)
    return {"tokens": len(same), "same": int(same.sum()), "apart": [(x - recorded).abs().tolist() for x in logprobs]}


def session(root: Path, family: str, dtype: str, gib: float) -> dict[str, Any]:
    """What was found."""
    folder = write_family(root / "model", family)
    policy = replaying(folder)
    found = [compared(policy, folder, answer) for answer in sampled(folder, dtype, gib)]
    apart = [torch.tensor([value for one in found for value in one["apart"][which]]) for which in (0, 1)]
    return {
        "policy": policy_hash(folder),
        "tokens": sum(one["tokens"] for one in found),
        "same": sum(one["same"] for one in found),
        **{f"mean {how}": float(x.mean()) for how, x in zip(("without", "with"), apart, strict=True)},
        **{f"max {how}": float(x.max()) for how, x in zip(("without", "with"), apart, strict=True)},
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "found.json").write_text(json.dumps(session(target, sys.argv[2], sys.argv[3], float(sys.argv[4]))))
