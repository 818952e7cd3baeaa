"""Generation on a small disk that is full at another moment each time.

``python -m tests.core.rollouts.full_disk DISK``; test_killed.py mounts DISK.
Prints how often the disk was full; an assertion fails if something was torn.
"""

import os
import subprocess
import sys
from pathlib import Path

from oapl_core.run_folder.integrity import damage
from oapl_core.run_folder.run import Run
from oapl_core.tables import ROLLOUTS, read_table
from tests.core.rollouts.slow_sampling import COMMAND
from tests.sampling_run import made_up_model, make_run

PAGE, PROBLEMS = 4096, 48


def fill(path: Path, leave: int) -> None:
    """Leave so many bytes of the disk free."""
    stat = os.statvfs(path.parent)
    size = max(0, stat.f_bavail * stat.f_bsize - leave)
    path.write_bytes(b"\0" * size)


def attempt(run: Run) -> bool:
    """Whether sampling came to its end; if not, it said that the disk is full, in one line."""
    environment = os.environ | {"OAPL_TEST_ANSWER_S": "0.002"}
    command = [*COMMAND, str(run.root), "--round", "0"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode == 0:
        return True
    assert result.returncode == 1, result.stderr
    assert "no space left on the disk; free some and run the same command again" in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return False


def main() -> None:
    """Fill, sample, look, make a little room, and again."""
    disk = Path(sys.argv[1])
    prompts = {"train": [[5, i] for i in range(PROBLEMS)], "validation": [[6]], "heldout": [[7]]}
    sampling = {"group_size": 4, "max_tokens": 12, "problems_per_part": 3, "flush_s": 0.005}
    run = make_run(disk, made_up_model(disk / "model"), prompts, sampling=sampling)
    full, seen = 0, dict[str, int]()
    ballast = disk / "ballast"
    for pages in range(200):
        ballast.unlink(missing_ok=True)
        fill(ballast, leave=pages * PAGE)
        if attempt(run):
            break
        full += 1
        entries = {name: entry for name, entry in run.ledger.artifacts().items() if "1_rollouts" in name}
        assert not any(damage(run.root / name, entry) for name, entry in entries.items())
        assert not list(disk.rglob(".tmp-*")), "nothing half-written is left"
        assert seen.items() <= {name: entry.mtime_ns for name, entry in entries.items()}.items(), "a part was redone"
        seen = {name: entry.mtime_ns for name, entry in entries.items()}
    parts = sorted(run.rollouts(0).glob("part-*.parquet"))
    ids = [row["rollout_id"] for part in parts for row in read_table(part, ROLLOUTS).to_pylist()]
    assert ids == [f"train-{i}/r00/s{s}" for i in range(PROBLEMS) for s in range(4)]
    print(f"full {full} times")


if __name__ == "__main__":
    main()
