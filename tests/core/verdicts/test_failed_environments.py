"""An environment that fails lies in the rollouts: no second judgement helps, and the line says what does."""

import random
from pathlib import Path

import pytest

from oapl_core.errors import ConfigError
from oapl_core.rollouts.generate import generate
from oapl_core.verdicts.verify import verify
from tests.speaking_sampler import SpeakingSampler, speaking_run

SHOP = '''"""A shop whose tool raises what it should not."""

from oapl_core.environments.tools import ToolEnvironment

PRICES = {"apple": 3}


class Shop(ToolEnvironment):
    def tools(self):
        return [self.price]

    def price(self, item: str) -> str:
        """Looks up a price.

        Args:
            item: What is bought.
        """
        return str(PRICES[item])
'''


def test_a_tool_that_raises_is_said_at_once_and_ends_the_verification_without_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop_that_raises.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    table = {"function": "shop_that_raises:Shop", "syntax": "tags"}
    run = speaking_run(tmp_path, [f"Buy {n}." for n in range(4)], environment=table)

    def says(conversation: str, draw: random.Random) -> str:
        return "done" if "tool\n" in conversation else f"<price>{draw.choice(['apple', 'pear'])}</price>"

    generate(run, 0, lambda model, config: SpeakingSampler(says, model, config))
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "failed on" in line)
    advice = "mend shop_that_raises, or raise ToolError there where the model is wrong"
    assert "KeyError: 'pear' (shop_that_raises.py, line 18); " + advice in said
    with pytest.raises(ConfigError) as error:  # exit code 2: tasks/stage.py does not try it again
        verify(run, 0)
    assert "rollouts have no verdict since the environment failed" in str(error.value)
    assert advice in str(error.value) and str(error.value).endswith("run again with --redo sampling --round 0")
    assert "oapl doctor" not in str(error.value)
