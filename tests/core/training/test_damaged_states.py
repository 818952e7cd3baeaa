"""A saved state that does not hold its bytes is said and put aside; the round ends with the bits of one that was whole.

Real DeepSpeed: one round is stopped inside an epoch; each test damages a copy of what it left and goes on.
"""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import DataError
from oapl_core.files import sha256_of
from oapl_core.run_folder.run import Run
from oapl_core.training.job import make_job
from oapl_core.training.saving.state import _damaged
from tests.core.training.forked_training import Forked
from tests.core.training.made_round import train_in_a_process
from tests.core.training.test_resume import EPOCHS, FINISHED, STEPS, metrics, prepare, states, wait_for_step


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, sharp_model: Path, many_rows: list[dict[str, Any]]) -> Run:
    """A round that was killed in its second epoch."""
    run = prepare(tmp_path_factory.mktemp("stopped"), sharp_model, many_rows)
    with Forked(run) as process:
        wait_for_step(run, process, STEPS + 4)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert len(states(run)) == 1
    return run


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Leave half of it."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_digit(path: Path) -> None:
    """Change what a note says so that it can still be read."""
    text = path.read_text()
    assert '"epoch": 2' in text
    path.write_text(text.replace('"epoch": 2', '"epoch": 1', 1))


PIECES = "rank_*.safetensors"
DAMAGES: list[Any] = [
    (flip, PIECES),
    pytest.param(other_digit, "reached.json", marks=pytest.mark.slow),
    pytest.param(cut, PIECES, marks=pytest.mark.slow),
    *(
        pytest.param(how, kind, marks=pytest.mark.slow)
        for how, kind in [
            *((flip, kind) for kind in ("reached.json", "belongs_to.json", "sums_rank_*")),
            *((cut, kind) for kind in ("reached.json", "belongs_to.json", "sums_rank_*")),
            *((Path.unlink, kind) for kind in (PIECES, "reached.json", "sums_rank_*")),
        ]
    ),
]


@pytest.mark.parametrize(("damage", "kind"), DAMAGES)
def test_a_damaged_state_is_put_aside_and_the_weights_are_those_of_a_whole_one(
    damage: Callable[[Path], None], kind: str, stopped: Run, trained: Run, tmp_path: Path
) -> None:
    run = copied(stopped, tmp_path)
    (state,) = states(run)
    (file,) = state.rglob(kind)
    damage(file)
    output = train_in_a_process(run)
    assert f"the saved state {state.name} cannot be used: " in output
    assert "training goes back to what was saved before it" in output
    for epoch in range(1, EPOCHS + 1):
        files = [r.checkpoint(0, epoch) / "model.safetensors" for r in (run, trained)]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert metrics(run, epoch) == metrics(trained, epoch)
    assert sorted(p.name for p in run.checkpoints(0).iterdir()) == FINISHED, "what was put aside is gone with the rest"


def copied(run: Run, folder: Path) -> Run:
    """A copy of the run folder that may be damaged; where its settings say `runs_dir` does not matter to a stage."""
    return Run.open(shutil.copytree(run.root, folder / run.root.name))


@pytest.mark.parametrize("how", [flip, pytest.param(Path.unlink, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_lost_comparison_with_the_engine_is_measured_again_without_training(
    how: Callable[[Path], None], trained: Run, tmp_path: Path
) -> None:
    run = copied(trained, tmp_path)
    assert make_job(run, 0).is_compared
    whole = run.mismatch(0).read_bytes()
    how(run.mismatch(0))
    assert not make_job(run, 0).is_compared
    output = train_in_a_process(run)
    assert "log-probs of trainer and engine differ by" in output
    assert "loss" not in output, "nothing was trained again"
    assert make_job(run, 0).is_compared
    assert run.mismatch(0).read_bytes() == whole
    assert "all 3 epochs are trained" in train_in_a_process(run)


def test_weights_that_a_lagging_round_starts_from_are_looked_at(trained: Run, tmp_path: Path) -> None:
    run = copied(trained, tmp_path)
    entry = run.ledger.artifacts()[run.name(run.checkpoint(0, EPOCHS))]
    assert run.check_policy(run.checkpoint(0, EPOCHS)) == entry.identity
    flip(run.checkpoint(0, EPOCHS) / "model.safetensors")
    with pytest.raises(DataError, match="has policy hash"):
        run.check_policy(run.checkpoint(0, EPOCHS))


@pytest.mark.parametrize("ranks", [1, 3, 12, 16])
def test_so_many_ranks_look_at_every_file_whoever_wrote_it(tmp_path: Path, ranks: int) -> None:
    writers = 12
    for writer in range(writers):
        (tmp_path / f"rank_{writer}").write_text("numbers")
        sums = {f"rank_{writer}": sha256_of(tmp_path / f"rank_{writer}")}
        (tmp_path / f"sums_rank_{writer:05d}.json").write_text(json.dumps(sums))

    def found() -> int | None:
        """What the ranks find together, of which each knows its own part."""
        own = [_damaged(tmp_path, writers, rank, ranks) for rank in range(ranks)]
        return max(own) if max(own) >= 0 else None

    assert found() is None
    for writer in range(writers):
        flip(tmp_path / f"rank_{writer}")
        assert found() == writer
        flip(tmp_path / f"rank_{writer}")
