"""Rollouts leave and come back: groups, rewards and text stay; what cannot be used is counted by reason."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from oapl_core import tables
from oapl_core.errors import ConfigError, DataError
from oapl_core.groups.build import build
from oapl_core.problems.prepare import prepare
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.run import Run
from oapl_core.storable import json_object
from oapl_core.training.train import train
from oapl_core.verdicts.answers.text_equality import golds
from oapl_core.verdicts.verify import verify
from oapl_extras.exchange.export import export
from oapl_extras.exchange.grouping import GroupedRows
from oapl_extras.exchange.import_rollouts import import_rollouts
from oapl_extras.exchange.imported_rows import Assumed
from tests.extras.exchange.exchanged import REWARDS, Row, foreign, left_out, make_run, read_parts, sample, write_jsonl
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def original(tmp_path: Path, model: Path) -> Run:
    """A sampled and judged round."""
    run = make_run(tmp_path, model)
    prepare(run)
    sample(run)
    return run


@pytest.fixture
def exported(original: Run, tmp_path: Path) -> Path:
    export(original, 0, tmp_path / "out" / "round.parquet")
    return tmp_path / "out" / "round.parquet"


def grouped(run: Run) -> dict[str, list[tuple[Any, ...]]]:
    """Problem -> what training would see of each of its rollouts."""
    build(run, 0)
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in tables.read_table(run.groups(0), tables.GROUPS).to_pylist():
        kept = ("prompt_ids", "response_ids", "behavior_logprobs", "reward", "policy_hash", "temperature")
        found.setdefault(row["problem_id"], []).append(tuple(str(row[name]) for name in kept))
    return found


def test_round_trip_keeps_groups_rewards_text_and_tokens(
    original: Run, exported: Path, tmp_path: Path, model: Path
) -> None:
    copy = make_run(tmp_path, model, "b")
    import_rollouts(copy, 0, exported)
    before = [row for row in read_parts(original, "rollouts") if row["rollout_id"] != "square/1"]  # never judged
    after = read_parts(copy, "rollouts")
    for name in ("problem_id", "text", "response_ids", "logprobs", "finish_reason", "policy_hash", "engine"):
        assert [row[name] for row in after] == [row[name] for row in before], name
    judged = [row["reward"] for row in read_parts(original, "verdicts") if row["reward"] is not None]
    assert [row["reward"] for row in read_parts(copy, "verdicts")] == judged
    assert grouped(copy) == grouped(original)


def test_round_trip_keeps_problems_tests_and_prompts(
    original: Run, exported: Path, tmp_path: Path, model: Path
) -> None:
    copy = make_run(tmp_path, model, "b")
    import_rollouts(copy, 0, exported)
    for run in (original, copy):
        assert len(tables.read_table(run.prompts, tables.PROMPTS)) == 5

    def by_id(run: Run, columns: list[str]) -> dict[str, Row]:
        rows = tables.read_table(run.problems, tables.PROBLEMS).to_pylist()
        return {row["problem_id"]: {name: row[name] for name in columns} for row in rows}

    same = ["split", "kind", "entry_point", "tests", "answer", "checker"]
    assert by_id(copy, same) == by_id(original, same)
    prompts = [
        {row["problem_id"]: row for row in tables.read_table(run.prompts, tables.PROMPTS).to_pylist()}
        for run in (original, copy)
    ]
    assert prompts[0] == prompts[1]


OTHER_KINDS: list[Row] = [
    {
        "problem_id": "sum",
        "kind": "text",
        "answer": "Rome",
        "info": {"answers": ["Rome", "Roma"], "choices": ["a", "b"]},
    },
    {"problem_id": "most", "kind": "text", "answer": '["one", "text"]'},
    {"problem_id": "square", "kind": "open", "info": {"rubric": "be kind"}},
]


def earned(*_: Any) -> float:
    return 1.0


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_kinds_and_every_gold_come_back(tmp_path: Path, model: Path, suffix: str) -> None:
    run = make_run(tmp_path, model, reward={"function": f"{__name__}:earned"})
    rows = [row | {"statement": f"What is {row['problem_id']}?"} for row in OTHER_KINDS]
    write_jsonl(tmp_path / "train.jsonl", rows)
    prepare(run)
    sample(run)
    export(run, 0, tmp_path / f"round.{suffix}")
    copy = make_run(tmp_path, model, "b", reward={"function": f"{__name__}:earned"})
    import_rollouts(copy, 0, tmp_path / f"round.{suffix}", form="oapl" if suffix == "parquet" else "messages")
    before, after = (
        {row["problem_id"]: row for row in tables.read_table(one.problems, tables.PROBLEMS).to_pylist()}
        for one in (run, copy)
    )
    for row in rows:
        name = row["problem_id"]
        for column in ("kind", "answer", "tests"):
            assert after[name][column] == before[name][column], (name, column)
        assert json_object(after[name]["info"]) == json_object(before[name]["info"])
    assert golds(after["sum"]) == ["Rome", "Roma"]


def test_several_golds_of_another_project_are_all_golds(tmp_path: Path, model: Path) -> None:
    run = make_run(tmp_path, model)
    rows = []
    given = (["Rome", "Roma"], '["Rome", "Roma"]', "[1, 2]", ["4"], ["\\frac12", "0.5"])
    for number, truth in enumerate(given):
        rows += foreign(f"{number}?", [1.0, 0.0], reward_model={"style": "rule", "ground_truth": truth})
    said = {"split": "train", "index": 0, "kind": "text"}
    rows += foreign(
        "5?", [1.0, 0.0], reward_model={"style": "rule", "ground_truth": '["B-52", "B52"]'}, extra_info=said
    )
    import_rollouts(run, 0, write_jsonl(tmp_path / "them.jsonl", rows))
    found = tables.read_table(run.problems, tables.PROBLEMS).to_pylist()[:6]
    assert [golds(row) for row in found[:4]] == [["Rome", "Roma"], ["Rome", "Roma"], ["[1, 2]"], ["4"]]
    assert [golds(row) for row in found[4:]] == [['["\\\\frac12", "0.5"]'], ["B-52", "B52"]]
    assert [row["kind"] for row in found] == ["text", "text", "math", "math", "math", "text"]


def test_rewards_outside_0_and_1_come_back(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A penalty for length, and a bonus."""
    monkeypatch.setitem(REWARDS, "sum", [1.5, -0.25, 0.0])
    run, copy = make_run(tmp_path, model), make_run(tmp_path, model, "b")
    prepare(run)
    sample(run)
    export(run, 0, tmp_path / "round.parquet")
    import_rollouts(copy, 0, tmp_path / "round.parquet")
    assert left_out(copy) == {}
    assert [row["reward"] for row in read_parts(copy, "verdicts")][:3] == REWARDS["sum"]
    assert grouped(copy) == grouped(run)


def test_an_imported_run_exports_the_same_rows_again(exported: Path, tmp_path: Path, model: Path) -> None:
    copy = make_run(tmp_path, model, "b")
    import_rollouts(copy, 0, exported)
    export(copy, 0, tmp_path / "again.parquet")
    first, second = (pq.read_table(path).to_pylist() for path in (exported, tmp_path / "again.parquet"))
    for row in (*first, *second):
        del row["data_source"], row["extra_info"]["index"]
    assert second == first


def test_an_export_has_the_authors_columns_and_types(exported: Path) -> None:
    rows = pq.read_table(exported).to_pylist()
    assert len(rows) == 8
    first = rows[0]
    assert first["prompt"][0]["role"] == "user"
    assert "Print the sum." in first["prompt"][0]["content"]
    assert (first["ability"], first["reward_model"]["style"]) == ("code", "rule")
    truth = json.loads(rows[3]["reward_model"]["ground_truth"])
    assert truth["fn_name"] == "most"
    assert truth["inputs"] == ["[1, 2]\n0"], "one JSON value for each argument"
    assert first["extra_info"]["split"] == "train"
    for name in ("sum", "most", "square"):
        group = [row for row in rows if row["extra_info"]["problem_id"] == name]
        assert all(sorted(r["response_rewards"]) == sorted(g["precomputed_reward"] for g in group) for r in group)


def test_an_export_never_overwrites(original: Run, exported: Path) -> None:
    before = exported.read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        export(original, 0, exported)
    assert exported.read_bytes() == before
    assert [path.name for path in exported.parent.iterdir()] == ["round.parquet"]


def test_later_stages_take_an_imported_round_as_it_is(
    exported: Path, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = make_run(tmp_path, model, "b")
    import_rollouts(copy, 0, exported)
    files = {path: path.read_bytes() for path in copy.root.rglob("*.parquet")}
    prepare(copy)
    generate(copy, 0, start=None)
    verify(copy, 0)
    assert {path: path.read_bytes() for path in copy.root.rglob("*.parquet")} == files
    assert "were imported" in capsys.readouterr().out


def test_what_the_authors_do_not_say_is_unknown_and_not_trained_on(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, model)
    rows = [*foreign("2 + 2?", [1.0, 0.0, 0.0]), *foreign("never right?", [0.0, 0.0])]
    import_rollouts(run, 0, write_jsonl(tmp_path / "them.jsonl", rows))
    tokenizer = AutoTokenizer.from_pretrained(model)
    for row in read_parts(run, "rollouts"):
        assert row["response_ids"] == tokenizer(row["text"], add_special_tokens=False)["input_ids"]
        assert row["engine"] == "imported, encoded here"
        assert (row["logprobs"], row["logprobs_mode"], row["finish_reason"]) == (None, "unknown", "unknown")
        assert (row["policy_hash"], row["seed"], row["sampled_at"]) == ("unknown", None, None)
    said = capsys.readouterr().out
    assert "imported 5 of 5 rows as 2 groups; left out: none" in said
    assert "5 rollouts have no log-probs of the policy that sampled them" in said
    build(run, 0)
    trust = run.ledger.artifacts()["round_00/3_groups.parquet"].details["trust"]
    assert (trust["without_logprobs"], trust["kept_without_logprobs"]) == (5, 3)
    with pytest.raises(DataError, match="3 rollouts have no log-probs"):
        train(run, 0)


def test_no_end_token_is_added_to_an_answer_that_says_it_was_cut(tmp_path: Path, model: Path) -> None:
    run = make_run(tmp_path, model)
    rows = foreign("2 + 2?", [1.0, 0.0, 0.0])
    for row, reason in zip(rows, ("stop", "length", None), strict=True):
        row["sampling"] = {"finish_reason": reason}
    import_rollouts(run, 0, write_jsonl(tmp_path / "them.jsonl", rows), assumed=Assumed(end_token=True))
    end = AutoTokenizer.from_pretrained(model).eos_token_id
    assert [row["response_ids"][-1] == end for row in read_parts(run, "rollouts")] == [True, False, True]


GOOD = foreign("good?", [1.0, 0.0])
BROKEN: dict[str, list[Any]] = {
    "not_an_object": ["{torn", "[1, 2]"],
    "missing_column": [{k: v for k, v in GOOD[0].items() if k != "response"}, GOOD[0] | {"precomputed_reward": None}],
    "bad_prompt": [GOOD[0] | {"prompt": "good?"}, GOOD[0] | {"prompt": []}, GOOD[0] | {"prompt": [{"role": "user"}]}],
    "bad_response": [GOOD[0] | {"response": ["text"]}],
    "bad_reward": [GOOD[0] | {"precomputed_reward": r} for r in ("1", True, float("nan"), 1e39, 10**400)],
    "bad_response_rewards": [GOOD[0] | {"response_rewards": 1.0}, GOOD[0] | {"response_rewards": ["x"]}],
    "bad_token_ids": [GOOD[0] | {"response_token_ids": ids} for ids in ("1 2", [1.5], [-1])],
    "bad_sampling": [GOOD[0] | {"response_token_ids": [1, 2], "sampling": {"logprobs": [-1.0]}}],
    "rewards_disagree": foreign("few?", [1.0, 0.0, 1.0])[:2],
    "prompt_too_long": foreign("word " * 3000, [1.0, 0.0]),
    "measured_problem": foreign("2  SQUARED, of heldout?", [1.0, 0.0]),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_each_malformation_is_counted_under_its_reason(tmp_path: Path, model: Path, reason: str) -> None:
    """A broken row of its own beside a good group: the good one stays."""
    rows = [*GOOD, *BROKEN[reason]]
    run = make_run(tmp_path, model)
    import_rollouts(run, 0, write_jsonl(tmp_path / "them.jsonl", rows))
    assert left_out(run) == {reason: len(BROKEN[reason])}
    assert [row["text"] for row in read_parts(run, "rollouts")] == [row["response"] for row in GOOD]


ASKED_AROUND = [
    "Solve this. 2  SQUARED, of heldout? Think first.",
    "Question: 2 squared, of validation?\nAnswer:",
    "2 squared,\nof heldout?",
]
ANOTHER = ["12 squared, of heldout?", "1 + 2 squared, of heldout?", "2 squared, of the heldout?"]


@pytest.mark.parametrize("asked", [*ASKED_AROUND, *ANOTHER])
def test_a_measured_problem_is_known_among_other_words(tmp_path: Path, model: Path, asked: str) -> None:
    run = make_run(tmp_path, model)
    import_rollouts(run, 0, write_jsonl(tmp_path / "them.jsonl", [*GOOD, *foreign(asked, [1.0, 0.0])]))
    assert left_out(run) == ({"measured_problem": 2} if asked in ASKED_AROUND else {})


def test_a_long_measured_problem_is_known_in_any_place(tmp_path: Path, model: Path) -> None:
    run = make_run(tmp_path, model)
    long = "A farmer has 3 cows and 4 goats and sells 2 of each, how many are left"
    file = run.config.problems.files("heldout")[0]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"statement": long}) + "\n")
    rows = [*GOOD, *foreign(f"[INST] {long} [/INST]", [1.0, 0.0]), *foreign(long.replace("3", "5"), [1.0, 0.0])]
    import_rollouts(run, 0, write_jsonl(tmp_path / "them.jsonl", rows))
    assert left_out(run) == {"measured_problem": 2}


def test_a_group_that_lost_a_row_is_left_out_as_a_whole(tmp_path: Path, model: Path) -> None:
    rows = foreign("torn?", [1.0, 0.0, 0.0])
    rows[1]["response"] = None
    run = make_run(tmp_path, model)
    import_rollouts(run, 0, write_jsonl(tmp_path / "them.jsonl", [*rows, *GOOD]))
    assert left_out(run) == {"missing_column": 1, "rewards_disagree": 2}


def test_scattered_rows_find_their_group_by_prompt_and_not_by_index(tmp_path: Path, model: Path) -> None:
    a, b = foreign("a?", [1.0, 0.0, 1.0]), foreign("b?", [0.0, 0.0, 1.0])
    run = make_run(tmp_path, model)
    import_rollouts(run, 0, write_jsonl(tmp_path / "them.jsonl", [a[0], b[0], b[1], a[1], b[2], a[2]]))
    found = [(row["text"], row["sample"]) for row in read_parts(run, "rollouts")]
    assert found == [(f"{p}? answered {i}", i) for p in "ab" for i in range(3)]
    assert left_out(run) == {}


def test_groups_come_whole_in_the_order_of_their_first_rows_on_every_pass(tmp_path: Path) -> None:
    rows = [row for i in range(40) for row in foreign(f"{i}?", [1.0, 0.0])]
    stored = GroupedRows(tmp_path / "rows")
    assert not stored.fill(rows[::2] + rows[1::2])
    for first, second in zip(stored.groups(), stored.groups(), strict=True):
        assert first == second
    assert [group.rows for group in stored.groups()] == [rows[i : i + 2] for i in range(0, 80, 2)]


@pytest.mark.parametrize("name", ["them.parquet", "them.jsonl.gz", "folder"])
def test_every_kind_of_source_is_read(tmp_path: Path, model: Path, name: str) -> None:
    source = tmp_path / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(GOOD), source)
    elif name.endswith(".gz"):
        source.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in GOOD).encode()))
    else:
        source.mkdir()
        for i, row in enumerate(GOOD):
            write_jsonl(source / f"{i}.jsonl", [row])
    run = make_run(tmp_path, model)
    import_rollouts(run, 0, source)
    assert [row["text"] for row in read_parts(run, "rollouts")] == [row["response"] for row in GOOD]


def test_a_run_with_prompts_takes_the_groups_of_its_own_problems(
    exported: Path, original: Run, tmp_path: Path, model: Path
) -> None:
    other = make_run(tmp_path, model, "c", rounds=[{}, {}])
    prepare(other)
    before = other.problems.read_bytes()
    rows = [row | {"extra_info": None} for row in pq.read_table(exported).to_pylist()]
    import_rollouts(other, 0, write_jsonl(tmp_path / "mixed.jsonl", [*rows, *GOOD]))
    assert other.problems.read_bytes() == before
    assert {row["problem_id"] for row in read_parts(other, "rollouts")} == {"sum", "most", "square"}
    assert left_out(other) == {"unknown_problem": 2}


def test_sampled_rollouts_are_never_replaced(original: Run, exported: Path) -> None:
    with pytest.raises(DataError, match="has rollouts from elsewhere"):
        import_rollouts(original, 0, exported)


def test_a_source_without_a_usable_group_names_the_reasons(tmp_path: Path, model: Path) -> None:
    run = make_run(tmp_path, model)
    with pytest.raises(DataError, match=r"no group can be used \(2 not_an_object\)"):
        import_rollouts(run, 0, write_jsonl(tmp_path / "them.jsonl", BROKEN["not_an_object"]))
    assert not run.problems.exists()
    assert not list(run.root.glob(".tmp-*"))


def test_a_missing_source_is_one_clear_error(tmp_path: Path, model: Path) -> None:
    with pytest.raises(DataError, match="nothing.jsonl: is missing"):
        import_rollouts(make_run(tmp_path, model), 0, tmp_path / "nothing.jsonl")
