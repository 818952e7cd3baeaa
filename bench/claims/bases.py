"""The base models of the study, and the 500 problems that it measures on.

``python -m bench.claims.bases --to DIR [--seeds 0 1 2]`` writes DIR/heldout.jsonl and, for each seed, the run folder
DIR/runs/demo-seedN up to its base model and prompts: the demo's experiment with another seed and these held-out
problems. A base takes a minute or two on two cores; what is there is left alone.

The 500 are what the demo's generator draws after its own 150: the same kind, and each has a pair of operations that no
training or validation problem has. Nothing was ever chosen by them: the settings of the demo were found on others.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from data.demo import generate

if TYPE_CHECKING:
    from oapl_core.run_folder.run import Run

DEMO = Path(__file__).resolve().parents[2] / "deployments" / "experiments" / "demo.toml"
SEED, DEMOS, MEASURED = 1, 150, 500
"""Of the generator; held-out problems of the demo, and those after them."""


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    options = parser.parse_args()
    write_heldout(options.to)
    for seed in options.seeds:
        prepare(options.to.resolve(), seed)


def write_heldout(to: Path) -> None:
    """The problems that are measured on; those that are there stay."""
    to.mkdir(parents=True, exist_ok=True)
    if not (to / "heldout.jsonl").exists():
        generate.write(to / "heldout.jsonl", heldout_problems())


def heldout_problems() -> list[generate.Row]:
    """The 500, as rows of a problem set."""
    import random

    reserved = generate.reserved_pairs(random.Random(f"{SEED} pairs"))
    seen: set[str] = set()
    sizes = {"train": 960, "validation": 80, "heldout": DEMOS + MEASURED}
    # each split remembers the statements of those before it
    drawn = {
        split: list(generate.draw_split(random.Random(f"{SEED} {split}"), split, n, reserved, seen))
        for split, n in sizes.items()
    }
    return [row for row, _ in drawn["heldout"][DEMOS:]]


def found(to: Path, seed: int) -> "Run":
    """The demo's run, not yet opened, with a seed, these held-out problems, and its folders below ``to``."""
    from oapl_core.run_folder.opening import find

    heldout = to / "heldout.jsonl"
    return find(
        DEMO, [f"seed={seed}", f'problems.heldout="{heldout}"', f'runs_dir="{to}/runs"', f'cache_dir="{to}/cache"']
    )


def prepare(to: Path, seed: int) -> None:
    """The run folder of a base, by the pipeline's own stages."""
    from oapl_core.launch import run_stage
    from oapl_core.planning.plan import finished, preparation
    from oapl_core.run_folder.opening import opened

    with opened(found(to, seed), print) as run:
        for step in preparation(run.config):
            if step not in finished(run):
                run_stage(run, step.verb, step.arguments)


if __name__ == "__main__":
    main()
