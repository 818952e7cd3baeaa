"""Test bed 2: how many different correct answers a model has, and pass@k to 256.

``python -m bench.claims.diversity RUN --models DIR --to FILE [--problems 64] [-n 256]`` samples n answers to the
first held-out problems from the base model of RUN, a Countdown run folder, and from every model folder in DIR, and
writes into FILE, which other runs share: for each model and problem the correct answers and how many different
expressions they are (`countdown.canonical`), and the entropy; and which held-out problems have the same numbers. A
model that is in FILE is left alone. What an answer prints is read from
its text and judged by the problems' checker: programs other than one print of a text count as wrong here.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.claims import countdown
from oapl_core.progress import say
from oapl_core.rollouts.requests import Request, Sampler
from oapl_core.seeds import derive_seed
from oapl_core.verdicts.extraction import program


def main() -> None:
    """Measure what is missing."""
    from oapl_core.rollouts.engine import SamplingEngine
    from oapl_core.rollouts.generate import read_prompts
    from oapl_core.run_folder.run import Run
    from oapl_core.tables import PROBLEMS, read_table

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("-n", type=int, default=256)
    options = parser.parse_args()
    run = Run.open(options.run)
    known = json.loads(options.to.read_text()) if options.to.exists() else {}
    found = known.setdefault("bases", {}).setdefault(run.root.name, {})
    models = {"base": run.base_model(), **{path.name: path for path in sorted(options.models.glob("*"))}}
    every = read_prompts(run, "heldout")
    prompts = dict(list(every.items())[: options.problems])
    inputs = {row["problem_id"]: row["tests"][0]["input"] for row in read_table(run.problems, PROBLEMS).to_pylist()}
    known["numbers"] = sets_of_numbers([inputs[name] for name in every])
    with SamplingEngine(run.base_model(), run.config.engine) as sampler:
        for name, folder in models.items():
            if name not in found:
                sampler.load(folder)
                found[name] = measured(sampler, prompts, inputs, options.n, run.config.sampling.max_tokens)
                say(f"{run.root.name} {name}: {sum(found[name]['right']) / options.n / len(prompts):.3f} correct")
                options.to.parent.mkdir(parents=True, exist_ok=True)
                draft = options.to.with_suffix(".tmp")
                draft.write_text(json.dumps(known))
                draft.rename(options.to)


def sets_of_numbers(inputs: Sequence[str]) -> list[int]:
    """Which set of numbers each problem has, counted from 0 in the order in which they come."""
    given = [tuple(sorted(text.split()[1:])) for text in inputs]  # the target stands before them
    places = {one: place for place, one in enumerate(dict.fromkeys(given))}
    return [places[one] for one in given]


def measured(
    sampler: Sampler, prompts: Mapping[str, Sequence[int]], inputs: Mapping[str, str], n: int, max_tokens: int
) -> dict[str, Any]:
    """By problem: correct answers of n, and how many different expressions they are."""
    requests = (
        Request(f"{name}#{s}", ids, derive_seed(0, "diversity", name, s), max_tokens, 1.0, 1.0)
        for name, ids in prompts.items()
        for s in range(n)
    )
    expressions: dict[str, list[str]] = {name: [] for name in prompts}
    nats = tokens = 0.0
    for answer in sampler.sample(requests, True):
        name = answer.request.key.partition("#")[0]
        nats -= sum(answer.logprobs or ())
        tokens += len(answer.response_ids)
        code = program(answer.text, is_cut=answer.finish_reason == "length")
        expression = countdown.expression_of(code) if code else None
        if expression and countdown.reaches(inputs[name], "", expression):
            expressions[name].append(expression)
    return {
        "n": n,
        "right": [len(own) for own in expressions.values()],
        "distinct": [len(set(own)) for own in expressions.values()],
        "entropy": nats / tokens,
        "tokens": tokens / n / len(prompts),
    }


if __name__ == "__main__":
    main()
