"""Test bed 4: how far an engine with fewer bits is from its trainer, in nats.

``python -m bench.claims.mismatch RUN... --to FILE`` samples 8 answers to each of 64 training problems from RUN's base
model, with exact weights, in bfloat16 and from copies with 8, 4 and 3 bits (`quantised.py`), scores the same tokens
with the exact weights as the trainer does before its first step, and writes FILE. What is there is left alone.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.claims.quantised import DOSES
from oapl_core.progress import say
from oapl_core.rollouts.requests import Request, SampledAnswer

ENGINES = {"float32": ("float32", *DOSES), "bfloat16": ("bfloat16",)}
"""Doses of an engine that computes in that type; `float32` has the trainer's own weights."""
PROBLEMS, ANSWERS = 64, 8


def main() -> None:
    """Measure what is missing."""
    from oapl_core.rollouts.engine import SamplingEngine
    from oapl_core.rollouts.generate import read_prompts
    from oapl_core.run_folder.run import Run
    from oapl_core.seeds import derive_seed

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    found = json.loads(options.to.read_text()) if options.to.exists() else {}
    for root in options.runs:
        run = Run.open(root)
        base, prompts = run.base_model(), list(read_prompts(run, "train").items())[:PROBLEMS]
        longest = run.config.sampling.max_tokens
        for dtype, own in ENGINES.items():
            doses = [dose for dose in own if f"{root.name} {dose}" not in found]
            if not doses:
                continue
            with (
                SamplingEngine(base, run.config.engine.model_copy(update={"dtype": dtype})) as sampler,
                tempfile.TemporaryDirectory() as scratch,
            ):
                for dose in doses:
                    copy = base
                    if dose in DOSES:
                        copy = Path(shutil.copytree(base, Path(scratch) / dose))
                        DOSES[dose](copy)
                    sampler.load(copy)
                    requests = [
                        Request(f"{name}#{s}", ids, derive_seed(0, "mismatch", name, s), longest, 1.0, 1.0)
                        for name, ids in prompts
                        for s in range(ANSWERS)
                    ]
                    found[f"{root.name} {dose}"] = row = compared(base, list(sampler.sample(requests, True)))
                    say(f"{root.name} {dose}: {row['nats_per_token']:.2e} nats per token")
    options.to.write_text(json.dumps(found, indent=1) + "\n")


def compared(base: Path, answers: Sequence[SampledAnswer]) -> dict[str, Any]:
    """What the trainer's log-probs of the sampled tokens, minus the engine's, come to."""
    import torch

    from oapl_core.training.model.checkpoint import load_model

    model = load_model(base).model.eval()
    differences = []
    for answer in answers:
        prompt, response = list(answer.request.prompt_ids), list(answer.response_ids)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        own = logits.double().log_softmax(1).gather(1, torch.tensor(response)[:, None])[:, 0]
        differences.append(own - torch.tensor(answer.logprobs, dtype=torch.float64))
    of_token, of_answer = torch.cat(differences), torch.stack([one.sum() for one in differences])
    return {
        "answers": len(answers),
        "tokens": len(of_token),
        "nats_per_token": of_token.abs().mean().item(),
        "largest": of_token.abs().max().item(),
        # k3 estimates KL(engine || trainer) from the engine's samples
        "k3_per_token": (of_token.expm1() - of_token).mean().item(),
        "nats_per_answer": of_answer.abs().mean().item(),
        "ratio_above_2": (of_token.exp() > 2).double().mean().item(),
    }


if __name__ == "__main__":
    main()
