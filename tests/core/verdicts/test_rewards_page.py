"""docs/rewards.md and docs/extras/judge.md: their files and settings, applied to rollouts, give their tables."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from oapl_core.settings.reward import PartsConfig, RewardConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.judges import Judges
from tests.architecture.sources import ROOT
from tests.core.verdicts.judge_server import serving
from tests.lasting_maths import lasting_maths as lasting_maths

pytestmark = pytest.mark.usefixtures("lasting_maths")

PAGE, JUDGE = ((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("rewards.md", "extras/judge.md"))
FILE = re.compile(r"^`([\w.-]+)`,[^\n]*:\n\n```\w+\n(.*?)```", re.DOTALL | re.MULTILINE)
TOML = re.compile(r"```toml\n(.*?)```", re.DOTALL)
RIGHT = "```python\nprint(sum(map(int, input().split())))\n```\n"
RESPONSES = {
    "right": RIGHT,
    "wrong": "```python\nprint(-1)\n```\n",
    "hesitant": f"Wait, both may be negative.\n{RIGHT}",
    "half": "```python\nn = int(input().split()[0])\nprint(n + 1 if n < 1 else -1)\n```\n",
    "nothing": "I do not know.",
    "explained": f"They are added.\n{RIGHT}",
}
PROBLEM: dict[str, Any] = {
    "problem_id": "p",
    "kind": "stdin",
    "entry_point": None,
    "statement": "Add two numbers.",
    "tests": [{"input": f"{n} 1\n", "output": f"{n + 1}\n"} for n in range(2)],
}


def section(title: str) -> str:
    if title == "A judge":  # a page of its own
        return JUDGE
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(text: str) -> list[dict[str, str]]:
    """The rows below the heading that begins with `response`."""
    lines = text[text.index("| response |") :].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def check(title: str, monkeypatch: pytest.MonkeyPatch, folder: Path, url: str = "") -> None:
    """Judge the responses of the section's table, and compare; a judge is at ``url``."""
    text = section(title)
    for name, content in FILE.findall(text):
        (folder / name).write_text(content)
    monkeypatch.chdir(folder)
    values = tomllib.loads(TOML.findall(text)[0])
    verifier, expected = VerifierConfig(workers=2, **values.get("verifier", {})), table(text)
    if url:
        values["reward"]["judge"] |= {"url": url}
    reward = RewardConfig.model_validate(values["reward"])
    reward.check(verifier.stop_at_first_failure, 100, has_environment=False)
    with Judges(verifier, reward, 100) as judges:
        tokens = [int(row["tokens"]) for row in expected]
        texts = [RESPONSES[row["response"]] for row in expected]
        found = judges.stream([PROBLEM] * len(texts), texts, ["stop"] * len(texts), tokens)
        for row, verdict in zip(expected, found, strict=True):
            judged = verdict.row("r")
            assert judged["outcome"] == row["outcome"], judged
            for name in row.keys() - {"response", "tokens", "outcome"}:
                assert judged[name] == pytest.approx(float(row[name])), (row, name)


@pytest.mark.parametrize(
    "title", ["A function of your own", "Rubrics of `verifiers`", "Partial credit with a length penalty"]
)
def test_the_page_gives_the_rewards_that_it_says(title: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(title, monkeypatch, tmp_path)


def replies(request: dict[str, Any], _before: int) -> str:
    """A judge that likes explanations, and is not quite sure."""
    message = request["messages"][-1]["content"]
    assert request["model"] == "Qwen3-32B" and "explanations" in request["messages"][0]["content"]
    likes = "added" in message or "2 and 2 make 4" in message
    return f"From 0 to 10.\nScore: {(8 if likes else 2) + request['seed']}"


def test_the_judge_of_the_page_gives_its_rewards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving(replies) as server:
        check("A judge", monkeypatch, tmp_path, server.url)


def test_every_part_is_on_the_page() -> None:
    parts = re.findall(r"^\| `(\w+)` \|", section("Partial credit with a length penalty"), re.MULTILINE)
    assert set(parts) == set(PartsConfig.model_fields)
