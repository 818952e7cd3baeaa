"""The rollouts stage loses at most a twentieth of a bare engine's speed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench


def test_the_stage_is_about_as_fast_as_a_bare_engine() -> None:
    command = [sys.executable, "-m", "bench.sampling"]
    result = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    speeds = {way: [turn["tokens"] / turn["seconds"] for turn in found[way]] for way in ("stage", "bare_with_logprobs")}
    assert max(speeds["stage"]) >= 0.95 * max(speeds["bare_with_logprobs"]), found
