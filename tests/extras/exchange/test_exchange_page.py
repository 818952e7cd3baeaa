"""docs/extras/exchange.md: imports of rounds and by hand do as it says, and so do files that a round becomes."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from oapl_core import tables
from oapl_core.groups.build import build
from oapl_core.model_files.model_folder import load_tokenizer
from oapl_core.problems.prepare import prepare
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import applied, load_experiment, parse_as
from oapl_extras.exchange.chosen import KINDS, ExportChoice, ExportedAnswer, preference_rows, schema_of, sft_rows
from oapl_extras.exchange.formats import FORMATS
from oapl_extras.exchange.import_rollouts import import_planned
from oapl_extras.exchange.import_source import ImportConfig
from tests.architecture.sources import ROOT
from tests.extras.exchange import dumps
from tests.extras.exchange.exchanged import PROBLEMS, make_run, sample
from tests.tiny_model import write_tiny_model
from tests.whole_run import called, oapl, small_demo

IMPORTING, _, PAGE = (ROOT / "docs/extras/exchange.md").read_text(encoding="utf-8").partition("## A run as far as")


def table(beginning: str, page: str = PAGE) -> list[list[str]]:
    """Cells of the rows of the table whose head begins so, with the head first."""
    lines = page[page.index(beginning) :].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [head, *rows]


def answers(cell: str) -> list[ExportedAnswer]:
    found = re.findall(r"(\w)(!?) (\S+?)(?:,|$)", cell)
    return [
        ExportedAnswer(i, f"r{i}", "policy", float(reward), float(reward) >= 1.0, bool(cut), [{"content": text}])
        for i, (text, cut, reward) in enumerate(found)
    ]


def chosen(given: Sequence[ExportedAnswer], kind: str, *words: str) -> tuple[str, Counter[str]]:
    """What the page's cell says, and the answers that are in no row."""
    problem, left_out = {"prompt": [], "extra_info": {"problem_id": "p"}}, Counter[str]()
    choice = parse_as(ExportChoice, applied(words), "test")
    rows_of = sft_rows if kind == "sft" else preference_rows
    names = ("completion",) if kind == "sft" else ("chosen", "rejected")
    rows = list(rows_of(problem, given, choice, left_out, {}))
    return ", ".join(" > ".join(row[name][0]["content"] for name in names) for row in rows), left_out


def test_the_table_is_what_is_chosen_and_every_answer_is_in_a_row_or_counted() -> None:
    head, *rows = table("| answers and rewards |")
    for cell, *expected in rows:
        given = answers(cell)
        assert len(given) == cell.count(",") + 1
        for words, said in zip((one.strip("`").split() for one in head[1:]), expected, strict=True):
            found, left_out = chosen(given, *words)
            assert found == said, (cell, words)
            in_rows = len(re.findall(r"\w", found))
            assert in_rows + left_out.total() == len(given), (cell, words, left_out)


def test_the_columns_are_those_of_the_files() -> None:
    (_, *rows) = table("| `--as` |")
    assert tuple(row[0].strip("`") for row in rows) == KINDS
    for kind, _, columns, _ in rows[1:]:
        named = re.findall(r"`(\w+)`", columns)
        assert schema_of(kind.strip("`")).names[: len(named)] == named  # type: ignore[arg-type]
    settings = [row[0].strip("`").partition("=")[0] for row in table("| setting |")[1:]]
    assert sorted(settings) == sorted(ExportChoice.model_fields)


def test_the_tables_name_every_format_and_every_key() -> None:
    formats = [row[0].strip("`") for row in table("| `format` |", IMPORTING)[1:]]
    assert sorted(formats) == sorted(FORMATS)
    keys = {key for row in table("| key of `rows` |", IMPORTING)[1:] for key in re.findall(r"`(\w+)`", row[0])}
    assert keys == set(ImportConfig.model_fields)


def dumped(folder: Path) -> Path:
    """What the page's imports name: an experiment file of the problems that the dumps answer."""
    model = write_tiny_model(folder / "model")
    asked = make_run(folder, model, "asked")
    prepare(asked)
    sample(asked)
    rows = tables.read_table(asked.prompts, tables.PROMPTS).to_pylist()
    prompts = {row["problem_id"]: row["prompt_ids"] for row in rows if row["split"] == "train"}
    dumps.prime_rl(folder / "prime-rl", prompts)
    dumps.open_instruct(folder / "open-instruct", prompts)
    dumps.verl(folder / "verl", prompts, load_tokenizer(model))
    dumps.trl(folder / "trl", prompts, load_tokenizer(model))
    sets = "\n".join(f'{split} = "{folder}/{split}.jsonl"' for split in ("train", "validation", "heldout"))
    head = f'name = "first"\nmodel = "{model}"\nruns_dir = "{folder}/runs"\n'
    (folder / "mine.toml").write_text(f"{head}rounds = [{{}}]\n[problems]\n{sets}\n")
    (block,) = re.findall(r"```toml\n(.*?)```", IMPORTING, re.DOTALL)
    (folder / "round.toml").write_text(f"{head}{block}[problems]\n{sets}\n")
    return folder


def test_a_round_imports_what_the_page_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(dumped(tmp_path))
    run = Run.create(load_experiment(tmp_path / "round.toml"))
    prepare(run)
    import_planned(run, 0)
    build(run, 0)
    groups = tables.read_table(run.groups(0), tables.GROUPS)
    assert sorted(set(groups["problem_id"].to_pylist())) == sorted(problem["problem_id"] for problem in PROBLEMS)
    assert groups["behavior_logprobs"].null_count == 0
    assert [one.rows == "sampled" for one in run.config.rounds] == [False, True]


@pytest.mark.slow
def test_every_dump_is_imported_by_hand(tmp_path: Path) -> None:
    dumped(tmp_path)
    names = [*(path.name for path in tmp_path.iterdir()), "prime-rl/rollouts"]
    (block,) = re.findall(r"```console\n(.*?)```", IMPORTING, re.DOTALL)
    for line in block.splitlines():
        _, _, *words = line.split()
        done = called(*(tmp_path / word if word in names else word for word in words))
        assert done.returncode == 0, done.stdout + done.stderr
        count = 3 * len(PROBLEMS)
        assert f"imported {count} of {count} rows as {len(PROBLEMS)} groups" in done.stdout


@pytest.mark.slow
def test_the_commands_give_data_and_then_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand on the page, on a demo made small; a stop before training needs none of its files."""
    file, *changes = small_demo(tmp_path)
    (one,) = (tomllib.loads(text)["rounds"] for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
    rounds = json.dumps(one).replace(":", " =").replace('"keep"', "keep")
    changes = [change for change in changes if not change.startswith("rounds.")]
    changes += ["name=data", f"rounds={rounds}", "pretrain.epochs=4"]
    lines = [line[2:].split() for line in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()]
    run = tmp_path / "runs" / "data-seed0"
    for _, verb, *words in lines:
        places = {"data.toml": [file, *changes], "data-seed0": [str(run)]}
        given = [found for word in words for found in places.get(word, [str(tmp_path / word) if "." in word else word])]
        said = oapl([verb, *given])
        if verb == "status":
            assert "stopped before round 0: training, as asked" in said
            assert not list(run.rglob("4_checkpoint"))
    assert list(run.glob("round_00/4_checkpoint/oapl/epoch_01")) and (run / "report" / "index.html").exists()
    kept = pq.read_table(Run.open(run).groups(0))
    right = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert 0 < len(right) <= sum(kept["correct"].to_pylist())
    pairs = pq.read_table(tmp_path / "pairs.parquet").to_pylist()
    assert 0 < len(pairs) <= len(set(kept["problem_id"].to_pylist()))
    assert all(row["chosen_reward"] > row["rejected_reward"] for row in pairs)
    problems = pq.read_table(tmp_path / "problems.parquet").to_pylist()
    assert {row["extra_info"]["problem_id"] for row in problems} == set(kept["problem_id"].to_pylist())
