"""The mixture's run folders: ``python -m bench.claims.mixture.bed SCALE --to DIR [--seeds 0 1 2]``.

Opens DIR/runs/mixture-SCALE-seedN with the sets of `sets.py`, and makes its base model and prompts by the pipeline's
own stages. A model that `pretrained.py` has finished is found in DIR/cache.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bench.claims.mixture.scales import SCALES
from bench.claims.mixture.sets import write

if TYPE_CHECKING:
    from oapl_core.run_folder.run import Run

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Make what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", choices=list(SCALES))
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--set", nargs="*", default=[], help="settings in place of the file's, KEY=VALUE")
    options = parser.parse_args()
    write(SCALES[options.scale], options.to / options.scale)
    for seed in options.seeds:
        prepare(found(options.scale, options.to.resolve(), seed, options.set))


def found(scale: str, to: Path, seed: int, changes: list[str] | None = None) -> Run:
    """The run of a base, not yet opened, with its folders below ``to``."""
    from oapl_core.run_folder.opening import find

    sets = [f'problems.{split}="{to}/{scale}/{split}.jsonl"' for split in SCALES[scale].problems]
    places = [f'runs_dir="{to}/runs"', f'cache_dir="{to}/cache"', f'pretrain.solutions="{to}/{scale}/solutions.jsonl"']
    return find(HERE / f"{scale}.toml", [f"seed={seed}", *places, *sets, *(changes or [])])


def prepare(one: Run) -> None:
    """Make a run's base model and prompts."""
    from oapl_core.launch import run_stage
    from oapl_core.planning.plan import finished, preparation
    from oapl_core.run_folder.opening import opened

    with opened(one, print) as run:
        for step in preparation(run.config):
            if step not in finished(run):
                run_stage(run, step.verb, step.arguments)


if __name__ == "__main__":
    main()
