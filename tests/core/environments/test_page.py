"""docs/trajectories.md: the environment of one's own has 30 lines, and a round with it gives what the page says."""

import re
import tomllib
from pathlib import Path

import pytest

from oapl_core.plugins import BUILT_IN
from oapl_core.rollouts.generate import generate
from oapl_core.settings.environment import EnvironmentConfig
from oapl_core.tables import ROLLOUTS, read_table
from oapl_core.verdicts.environment_rewards import Played
from tests.architecture.sources import ROOT
from tests.speaking_sampler import SpeakingSampler, speaking_run

PAGE = (ROOT / "docs" / "trajectories.md").read_text(encoding="utf-8")
OWN = PAGE.split("### One of your own")[1].split("\n## ")[0]


def test_a_round_with_the_environment_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, settings = (re.findall(rf"```{kind}\n(.*?)```", OWN, re.DOTALL)[0] for kind in ("python", "toml"))
    assert len(source.splitlines()) <= 30
    (tmp_path / "guessing.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    run = speaking_run(tmp_path, ["Which number?"] * 8, **tomllib.loads(settings))

    def halves(conversation: str, _: object) -> str:
        low, high = 1, 100
        for turn, word in enumerate(re.findall(r"user\n(higher|lower)", conversation)):
            guess = (low + high) // 2
            low, high = (guess + 1, high) if word == "higher" else (low, guess - 1)
            assert turn < 4
        return str((low + high) // 2)

    generate(run, 0, lambda model, config: SpeakingSampler(halves, model, config))
    rows = [row for part in run.rollouts(0).glob("*.parquet") for row in read_table(part, ROLLOUTS).to_pylist()]
    earned = [Played.of(row["finish_reason"], row).reward for row in rows]
    assert len(earned) == 16
    # five halvings find 31 of 100 numbers
    assert 0 < sum(reward == 1.0 for reward in earned) < 16
    assert {row["finish_reason"] for row, reward in zip(rows, earned, strict=True) if reward == 0.0} == {"length"}


def test_every_built_in_and_every_syntax_is_on_the_page() -> None:
    section = PAGE.split("## Environments\n")[1]
    named = re.findall(r"^\| `(\w+)` \| (?!tools|a call)", section, re.MULTILINE)
    assert named == [*BUILT_IN["environment"], "json", "llama", "fence", "tags"]
    for example in re.findall(r"```toml\n(.*?)```", section, re.DOTALL):
        EnvironmentConfig.model_validate(tomllib.loads(example)["environment"])
