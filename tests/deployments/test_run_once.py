"""`oapl run` reads its experiment once and opens the run's folder once, whoever asks again inside."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deployments.commands import run as command
from oapl_core.run_folder import opening
from oapl_core.run_folder.opening import find, opened
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import load_experiment
from tests.whole_run import ROOT


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Reads of experiment files and openings of folders."""
    found = Counter[str]()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*given: Any) -> Any:
            found[name] += 1
            return real(*given)

        monkeypatch.setattr(owner, name, call)

    counted(opening, "load_experiment")
    counted(Run, "open")
    counted(Run, "create")
    return found


@pytest.mark.parametrize("limit", [None, 4])
def test_the_command_and_its_flow_have_the_same_run(
    limit: int | None, calls: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = []

    def flow(run: Run) -> None:
        """As flows/start.py does, which is given the folder: parameters of a flow are text."""
        with opened(find(run.root), print, is_folder=True) as again:
            inside.append(again is run)

    monkeypatch.setattr(command, "_run_flow", flow)
    monkeypatch.setattr(command, "_show_result", lambda _: None)
    given = [f'runs_dir="{tmp_path}/runs"', f'cache_dir="{tmp_path}/cache"']
    command._carry_out(ROOT / "deployments/experiments/demo.toml", given, limit, lambda _run: None, lambda run: run)
    assert inside == [True]
    assert calls == {"load_experiment": 1, "create": 1}


def test_a_folder_that_nobody_holds_is_read_anew(calls: Counter[str], tmp_path: Path) -> None:
    given = [f'runs_dir="{tmp_path}/runs"', f'cache_dir="{tmp_path}/cache"']
    config = load_experiment(ROOT / "deployments/experiments/demo.toml", given)
    with opened(Run(config.run_dir, config), print) as run:
        assert find(run.root) is run
    assert find(run.root) is not run
    assert calls == {"create": 1, "open": 1}
