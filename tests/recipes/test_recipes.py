"""docs/recipes: each page is run as it stands there, on a tiny model that was taught to answer its questions.

Engine, verifier and training are the real ones; the judge is a small server. Commands and options are looked at by
default, the runs take minutes.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from oapl_core.environments.search import Search, index
from oapl_core.problems.prompts import conversation
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.settings.problems import PromptConfig
from oapl_extras.round_pages.joined import joined
from tests.core.verdicts.judge_server import serving
from tests.recipes.taught_model import Turns, asked, write_taught_model
from tests.site import pages

RECIPES = pages.ROOT / "docs" / "recipes"
PAGES = sorted(RECIPES.glob("*.md"))


def rows(recipe: str, file: str) -> list[dict[str, Any]]:
    """The rows of a page's file."""
    (text,) = (text for name, _, text in pages.blocks(RECIPES / f"{recipe}.md") if name == file)
    return [json.loads(line) for line in text.splitlines()]


def answers(run: Run) -> pl.DataFrame:
    """Rollouts of the first round with their verdicts; every one was judged, and trained on what was kept."""
    found = joined(RunRecord(run), 0).collect()
    assert "verifier_error" not in set(found["outcome"])
    assert found["reward"].n_unique() > 1, "or nothing is learnt"
    assert run.checkpoint(0, 1).is_dir()
    assert (run.root / "report" / "index.html").is_file()
    return found


def test_each_page_can_be_reached_from_the_readme_and_names_commands_that_exist() -> None:
    readme = (pages.ROOT / "README.md").read_text("utf-8")
    assert len(PAGES) == 6
    for page in PAGES:
        assert f"](docs/recipes/{page.name})" in readme
        assert pages.check_options(page) >= 2
        text = page.read_text("utf-8")
        assert "\n## For a real model and 8 GPUs\n" in text and "**Needed:**" in text
        assert "MINUTES" not in text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_maths(tmp_path: Path) -> None:
    config, rng = PromptConfig(prompt_style="deepcoder"), random.Random(0)
    said = [
        (conversation({"kind": "math", "statement": row["question"]}, config), [rf"\boxed{{{row['answer']}}}", wrong])
        for row in rows("maths", "mine.jsonl")
        for wrong in [rf"\boxed{{{rng.randint(100, 999)}}}"]
    ]
    write_taught_model(tmp_path / "model", said, has_chat=False)
    pages.run(RECIPES / "maths.md", tmp_path)
    found = answers(Run.open(tmp_path / "data/runs/mine-limit4-seed0"))
    assert {"passed", "wrong_answer"} <= set(found["outcome"]) and len(found) == 2 * 4
    assert "chat = false" in (tmp_path / "mine.toml").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_judge(tmp_path: Path) -> None:
    questions = rows("judge", "open.jsonl")
    said = [(asked(row["prompt"]), ["Because of physics.", f"It {row['rubric'][6:]}"]) for row in questions]
    write_taught_model(tmp_path / "model", said)
    rubrics = set[str]()

    def reply(request: dict[str, Any], _before: int) -> str:
        text = request["messages"][-1]["content"]
        rubrics.update(row["rubric"] for row in questions if f"Rubric: {row['rubric']}" in text)
        return "Score: 2" if "physics" in text else "It follows the rubric.\nScore: 9"

    with serving(reply) as server:
        pages.run(RECIPES / "judge.md", tmp_path, {"http://localhost:8000/v1": server.url})
    assert rubrics == {row["rubric"] for row in questions}
    canaries = [json.loads(line) for line in (tmp_path / "canaries.jsonl").read_text().splitlines()]
    assert {row.get("at_least") for row in canaries} == {0.6667, None}
    assert all(("physics" in row["response"]) == ("at_most" in row) and row["problem"]["rubric"] for row in canaries)
    assert set(answers(Run.open(tmp_path / "data/runs/why-seed0"))["outcome"]) == {"open"}


def conversations(folder: Path) -> list[tuple[Turns, list[str]]]:
    """Half of the answers look their question up, and read the answer off what came back."""
    files = [(name, text) for name, _, text in pages.blocks(RECIPES / "search.md") if name.startswith("documents/")]
    index([{"title": Path(name).stem, "text": text} for name, text in sorted(files)], folder / "taught.sqlite")
    search = Search(str(folder / "taught.sqlite"), results=2)
    (words,) = (text for name, _, text in pages.blocks(RECIPES / "search.md") if name == "search.jinja")
    said = list[tuple[Turns, list[str]]]()
    for row in rows("search", "questions.jsonl"):
        turns = asked(words.replace("{{ statement }}", row["question"]).rstrip("\n"))
        word = next(name for name in ("library", "pool", "museum") if name in row["question"])
        call = f"<search>{word}</search>"
        said.append((turns, [call, r"\boxed{noon}"]))
        found = {"role": "tool", "content": search.search(word)}
        said.append(([*turns, {"role": "assistant", "content": call}, found], [rf"\boxed{{{row['answer']}}}"]))
    return said


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_search(tmp_path: Path) -> None:
    write_taught_model(tmp_path / "model", conversations(tmp_path))
    pages.run(RECIPES / "search.md", tmp_path)
    found = answers(Run.open(tmp_path / "data/runs/search-seed0"))
    means = dict(found.group_by(pl.col("calls") > 0).agg(pl.col("reward").mean()).iter_rows())
    assert means[True] > means[False], "the answer stands in the documents"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler here")
def test_cpp(tmp_path: Path) -> None:
    config, begin = PromptConfig(prompt_style="deepcoder"), "```cpp\n#include <iostream>\nint main() {\n"
    operations = ["a + b", "a * b", "std::max(a, b)", "std::min(a, b)", "a - b", "b"]
    said = [
        (
            conversation(row, config),
            [
                f"{begin}int a, b;\nstd::cin >> a >> b;\nstd::cout << {one};\n}}\n```",
                f"{begin}int a, b;\nstd::cin >> a >> b;\nstd::cout << a / 2;\n}}\n```",
                f"{begin}std::cout << {one};\n}}\n```",
            ],
        )
        for row, one in zip(rows("cpp", "cpp.jsonl"), operations, strict=True)
    ]
    write_taught_model(tmp_path / "model", said)
    pages.run(RECIPES / "cpp.md", tmp_path)
    found = answers(Run.open(tmp_path / "data/runs/cpp-seed0"))
    assert {"passed", "wrong_answer", "compile_error"} <= set(found["outcome"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_lora(tmp_path: Path) -> None:
    said = [
        (asked(row["question"]), [rf"\boxed{{{row['answer']}}}", r"\boxed{0}"]) for row in rows("lora", "sums.jsonl")
    ]
    write_taught_model(tmp_path / "model", said)
    pages.run(RECIPES / "lora.md", tmp_path)
    run = Run.open(tmp_path / "data/runs/lora-seed0")
    answers(run)
    adapter = json.loads((run.checkpoint(0, 2) / "adapter" / "adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"]) == (8, 16)
    assert (run.checkpoint(0, 2) / "model.safetensors").is_file(), "and the merged model"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_lengths(tmp_path: Path) -> None:
    said = [
        (asked(row["question"]), [rf"\boxed{{{row['answer']}}}", r"\boxed{0}"]) for row in rows("lengths", "sums.jsonl")
    ]
    write_taught_model(tmp_path / "model", said)
    pages.run(RECIPES / "lengths.md", tmp_path)
    run = Run.open(tmp_path / "data/runs/lengths-seed0")
    answers(run)
    sampled = [joined(RunRecord(run), number).collect() for number in range(3)]
    assert [one["max_tokens"].unique().to_list() for one in sampled] == [[12], [20], [32]]
    assert [one.height for one in sampled] == [8 * 8, 8 * 8, 8 * 4]
    assert "### Settings by round" in (run.root / "report" / "report.md").read_text("utf-8")
