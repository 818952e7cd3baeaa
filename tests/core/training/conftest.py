"""A round that was trained without interruption, once for every test that compares with it."""

from pathlib import Path
from typing import Any

import pytest

from oapl_core.run_folder.run import Run
from tests.core.training.made_round import made_groups, make_run, train_in_a_process, write_groups
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def sharp_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose distributions are not uniform."""
    return write_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.fixture(scope="session")
def many_rows(sharp_model: Path) -> list[dict[str, Any]]:
    """Rows of a groups file; an epoch's last step has one sequence, so that one of two ranks has nothing to do."""
    return made_groups(sharp_model, groups=60) + made_groups(sharp_model, groups=61, size=1, seed=9)[-1:]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, sharp_model: Path, many_rows: list[dict[str, Any]]) -> Run:
    """Three epochs of 25 steps."""
    run = make_run(tmp_path_factory.mktemp("trained"), sharp_model, epochs=3)
    write_groups(run, many_rows)
    output = train_in_a_process(run)
    assert "log-probs of trainer and engine differ by" in output
    assert "723/723 sequences" in output
    return run
