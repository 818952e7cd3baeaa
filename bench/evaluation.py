"""Does an evaluation come out the same again, and what does sharing an engine save? Real engine, real checkpoints.

    python -m bench.evaluation same RUN     # one checkpoint's answers: again, in another order, in other batches
    python -m bench.evaluation wide RUN     # the same of a random model of 60 million parameters, width 1024
    python -m bench.evaluation start RUN    # `oapl evaluate` of three checkpoints: one engine against three

Reads a finished run; ``start`` writes evaluation folders into a temporary one. Prints what it finds.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from oapl_core.evaluation.questions import Target
from oapl_core.evaluation.run_end import questions
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.requests import Request
from oapl_core.run_folder.run import Run
from tests.tiny_model import write_tiny_model

_PROBLEMS, _SAMPLES = 75, 8
_ROOT = Path(__file__).resolve().parents[1]

Answers = dict[str, list[int]]


def _requests(run: Run) -> list[Request]:
    asked = questions(run, "heldout")
    target = Target.of(run, "base", run.base_model(), "", asked, run.evaluations() / "base_heldout")
    samples = range(min(_SAMPLES, asked.config.samples))
    return [target.asking.request(problem, n) for problem in islice(asked.prompts, _PROBLEMS) for n in samples]


def sampled(run: Run, model: Path | None, max_num_seqs: int) -> Iterator[Answers]:
    """A new engine's answers: to the requests as they come, again, the last half alone, and all in another order."""
    requests = _requests(run)
    if model:  # 320 tokens are in its vocabulary
        requests = [replace(r, prompt_ids=[i % 320 for i in r.prompt_ids]) for r in requests[::_SAMPLES]]
    shuffled = random.Random(0).sample(requests, len(requests))
    config = run.config.engine.model_copy(update={"max_num_seqs": max_num_seqs})
    with SamplingEngine(model or run.checkpoint(len(run.config.rounds) - 1, 1), config) as engine:
        for some in (requests, requests, requests[len(requests) // 2 :], shuffled):
            yield {a.request.key: a.response_ids for a in engine.sample(some, with_logprobs=False)}


def wide(folder: Path) -> None:
    """As ``same``, of a model whose matrices are as wide as those of real ones."""
    with tempfile.TemporaryDirectory() as place:
        same(folder, ["--model", str(write_tiny_model(Path(place, "wide"), 0, 1024, 6, sharpness=3.0))])


def same(folder: Path, options: Sequence[str] = ()) -> None:
    """Print the share of answers that are the same, token by token, as those of the first engine's first time."""
    first: Answers = {}
    for seqs in (256, 256, 16, 1):
        output = subprocess.run(
            [sys.executable, "-m", "bench.evaluation", "answers", str(folder), "--seqs", str(seqs), *options],
            cwd=_ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        lines = [line for line in output.splitlines() if line.startswith("{")]
        for name, line in zip(("first", "again", "last half alone", "another order"), lines, strict=True):
            found: Answers = json.loads(line)
            first = first or found
            equal = sum(first[key] == ids for key, ids in found.items())
            print(f"new engine, max_num_seqs={seqs}, {name}: {equal} of {len(found)} answers are the same", flush=True)


def start(folder: Path) -> None:
    """Print seconds of `oapl evaluate` for three checkpoints at once, and one by one."""
    run = Run.open(folder)
    last = len(run.config.rounds) - 1
    models = [f"{folder}:base", f"{folder}:round_00", f"{folder}:round_{last:02d}/epoch_01"]
    options = ["--set", str(run.config.problems.heldout[0]), "samples=4", "max_tokens=96"]
    options += ["max_prompt_tokens=160", f"prompt_style={run.config.problems.prompt_style}"]
    with tempfile.TemporaryDirectory() as place:
        for name, calls in (("together", [models]), ("one by one", [[model] for model in models])):
            begun = time.monotonic()
            for number, some in enumerate(calls):
                command = [sys.executable, "-m", "deployments.cli", "evaluate", *some, *options]
                subprocess.run(
                    [*command, "--to", f"{place}/{name.replace(' ', '_')}_{number}"],
                    cwd=_ROOT,
                    check=True,
                    capture_output=True,
                )
            print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("same", "wide", "start", "answers"))
    parser.add_argument("run", type=Path)
    parser.add_argument("--seqs", type=int, default=256)
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    if args.what == "answers":
        for found in sampled(Run.open(args.run), args.model, args.seqs):
            print(json.dumps(found), flush=True)
    else:
        {"same": same, "wide": wide, "start": start}[args.what](args.run)


if __name__ == "__main__":
    main()
