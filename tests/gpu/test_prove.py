"""`oapl prove` on a machine with an NVIDIA GPU, each rung a test: ``make test-gpu``."""

import pytest

from oapl_extras.prove.ladder import Rung, climb
from oapl_extras.prove.rungs import RUNGS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def rungs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rung]:
    import torch

    assert torch.cuda.is_available(), "these tests need an NVIDIA GPU"
    found = climb(tmp_path_factory.mktemp("prove"), True, [], RUNGS, lambda rung: print(rung.name, rung.line))
    return {rung.name: rung for rung in found}


@pytest.mark.parametrize("name", RUNGS)
def test_a_rung_is_green(name: str, rungs: dict[str, Rung]) -> None:
    assert rungs[name].is_green, rungs[name].line
