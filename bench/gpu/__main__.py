"""One GPU, measured: ``python -m bench.gpu card|page|output|step``.

``card``: every part of plan.py in at most 25 minutes, a line of JSON each in ``--file``; a second start measures what
is not there yet, ``--again`` also what failed; ``--tiny`` tries the program on a CPU. ``page``: docs/benchmarks/gpu.md
from that file. ``output``: the output layer alone, ways and errors. ``step``: optimiser steps of one size and
settings. What `oapl prove` measures is not measured here again.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.gpu.measurement import PARTS
from bench.gpu.shapes import SIZES, machine

RAW = Path("docs/benchmarks/data/gpu_card.jsonl")
TINY = Path("data/cache/bench-gpu/tiny.jsonl")


def card(options: argparse.Namespace) -> None:
    from bench.gpu import plan, runner

    parts = options.parts.split(",") if options.parts else list(PARTS)
    if unknown := sorted(set(parts) - set(PARTS)):
        sys.exit(f"--parts: there is no {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    planned = [m for m in (plan.tiny() if options.tiny else plan.card()) if m.part in parts]
    planned = plan.chosen(planned, options.only)
    if not planned:
        sys.exit(f"--only: no measurement of these parts is called {' or '.join(options.only)}")
    path = options.file or (TINY if options.tiny else RAW)
    runner.run(planned, path, options.folder, options.minutes, options.again)


def one_step(options: argparse.Namespace) -> dict[str, Any]:
    from bench.gpu.step import step

    training = {
        "dtype": options.dtype,
        "zero_stage": options.zero,
        "tokens_per_micro_batch": options.budget,
        "packing": options.packing,
        "recompute": int(options.recompute) if options.recompute.isdigit() else options.recompute,
        "kernels": options.kernels,
        "attention": options.attention,
        "compile": options.compile,
        "offload_optimizer": options.offload,
    }
    tokens = options.sequences * (options.prompt + options.length)
    asked = {"size": options.size, "prompt": options.prompt, "length": options.length, "tokens": tokens}
    return {**asked, **training, **step({**asked, "training": training, "steps": options.steps}, options.folder)}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("case", choices=["card", "page", "output", "step"])
    found.add_argument("--folder", type=Path, default=Path("data/cache/bench-gpu"), help="for models and runs")
    of_card = found.add_argument_group("card")
    of_card.add_argument("--file", type=Path, help=f"the raw file ({RAW})")
    of_card.add_argument("--minutes", type=float, default=25.0)
    of_card.add_argument("--parts", help=f"only these of {','.join(PARTS)}")
    of_card.add_argument(
        "--only", nargs="*", default=[], help="measurements whose key these expressions find, in order"
    )
    of_card.add_argument("--again", action="store_true", help="measure again what failed")
    of_card.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    of_step = found.add_argument_group("step and output")
    of_step.add_argument("--size", choices=list(SIZES), default="0.6B")
    of_step.add_argument("--sequences", type=int, default=64)
    of_step.add_argument("--prompt", type=int, default=256)
    of_step.add_argument("--length", type=int, default=512)
    of_step.add_argument("--steps", type=int, default=6)
    settings = found.add_argument_group("step: settings of [training]")
    settings.add_argument("--budget", type=int, default=16384)
    settings.add_argument("--zero", type=int, default=1)
    settings.add_argument("--dtype", default="bfloat16")
    settings.add_argument("--packing", default="auto")
    settings.add_argument("--offload", default="none")
    settings.add_argument("--recompute", default="all")
    settings.add_argument("--kernels", default="off")
    settings.add_argument("--attention", default="torch")
    settings.add_argument("--compile", action="store_true")
    return found


def main() -> None:
    options = parser().parse_args()
    if options.case == "card":
        card(options)
        return
    if options.case == "page":
        from bench.gpu import page

        page.main(options.file)
        return
    if options.case == "output":
        from bench.gpu.output import output

        found = output({"tokens": 8192, "size": options.size}, options.folder)
    else:
        found = one_step(options)
    print(json.dumps({"case": options.case, **found, **machine()}), flush=True)


if __name__ == "__main__":
    main()
