"""Trajectories leave and come back: with their ids, as chat messages with tool calls, and from prime-rl's traces."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from oapl_core import tables
from oapl_core.errors import ConfigError
from oapl_core.groups.build import build
from oapl_core.model_files.model_folder import load_tokenizer, policy_hash
from oapl_core.problems.prepare import prepare
from oapl_core.run_folder.run import Run
from oapl_core.tables import LOSS_MASK, TURNS
from oapl_core.turns.rows import fault, prompt_hash
from oapl_extras.exchange.export import export
from oapl_extras.exchange.import_rollouts import import_rollouts
from oapl_extras.exchange.imported_rows import Assumed
from oapl_extras.exchange.messages import Conversations
from tests.chat_templates import FAMILIES, QWEN
from tests.core.groups.test_build import put, rollout, verdict
from tests.extras.exchange import dumps
from tests.extras.exchange.exchanged import REWARDS, Row, left_out, make_run, write_jsonl
from tests.tiny_model import END, write_tiny_model

CALL = '<tool_call>\n{"name": "sum", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
ARGUMENTS = '{"a": 3, "b": 4}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = QWEN
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    return load_tokenizer(model)


def conversation(last: str = "It is 7.") -> list[Row]:
    """A call, its result, a question, another turn."""
    function = {"name": "sum", "arguments": ARGUMENTS}
    return [
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [{"id": "call_0_0", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_0_0", "content": "7"},
        {"role": "assistant", "content": last},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
    ]


def made(tokenizer: Any, template: str) -> Conversations:
    tokenizer.chat_template = template
    return Conversations(tokenizer, [tokenizer.eos_token_id], END)


def test_messages_are_encoded_as_the_model_would_have_seen_them(tokenizer: Any) -> None:
    found = made(tokenizer, QWEN).encoded(conversation(), end_last=True)
    ids, mask = found["response_token_ids"], found["turns"][LOSS_MASK]
    head = "<|im_start|>user\n"
    parts = [
        (True, f"I add.\n{CALL}{END}"),
        (False, f"\n{head}<tool_response>\n7\n</tool_response>{END}\n<|im_start|>assistant\n"),
        (True, f"It is 7.{END}"),
        (False, f"\n{head}Sure?{END}\n<|im_start|>assistant\n"),
        (True, f"Yes.{END}"),
    ]
    assert tokenizer.decode(ids) == "".join(text for _, text in parts)
    for sampled in (True, False):
        own = [token for token, one in zip(ids, mask, strict=True) if one == sampled]
        assert tokenizer.decode(own) == "".join(text for one, text in parts if one == sampled)
    assert [mask[start] and (not start or not mask[start - 1]) for start in found["turns"]["turn_starts"]] == [True] * 3
    call = {"turn": 0, "name": "sum", "arguments": ARGUMENTS, "result": "7", "is_error": None, "seconds": None}
    assert found["turns"]["tool_calls"] == [call]
    assert fault({"response_ids": ids, "logprobs": None, **found["turns"]}, []) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_messages_come_back_from_tokens(tokenizer: Any, family: str) -> None:
    conversations = made(tokenizer, FAMILIES[family])
    found = conversations.encoded(conversation(), end_last=True)
    row = {"response_ids": found["response_token_ids"], **found["turns"]}
    assert conversations.decoded(row) == conversation()
    assert conversations.encoded(conversations.decoded(row), end_last=True) == found


def test_a_call_that_messages_cannot_say_stays_in_the_text(tokenizer: Any) -> None:
    conversations = made(tokenizer, QWEN)
    said = [{"role": "assistant", "content": "```sum\n3+4\n```"}, {"role": "user", "content": "7"}]
    found = conversations.encoded([*said, {"role": "assistant", "content": "7"}], end_last=True)
    call = {"turn": 0, "name": "sum", "arguments": '{"text": "3+4"}', "result": "7", "is_error": False, "seconds": 0.1}
    row = {"response_ids": found["response_token_ids"], **found["turns"], "tool_calls": [call]}
    assert conversations.decoded(row)[:2] == said


def played(run: Run, tokenizer: Any) -> None:
    """Trajectories and verdicts of PROBLEMS, the last sample of each with one turn."""
    conversations, identity = made(tokenizer, QWEN), policy_hash(run.base_model())
    rows = tables.read_table(run.prompts, tables.PROMPTS).to_pylist()
    prompts = {row["problem_id"]: row["prompt_ids"] for row in rows}
    empty: Row = dict.fromkeys(name for name, _ in TURNS)
    for part, problems in enumerate((["sum", "most"], ["square"])):
        made_rows = []
        for problem in problems:
            for i in range(3):
                known: Row = {"policy_hash": identity, "finish_reason": "stop"}
                if i == 2:
                    made_rows.append(rollout(problem, i, **known, response_ids=[70, 71], text="?") | empty)
                    continue
                one = conversations.encoded(conversation(f"It is {i}."), end_last=True)
                ids, turns = one["response_token_ids"], one["turns"]
                seen = [prompt_hash([*prompts[problem], *ids[:start]]) for start in turns["turn_starts"]]
                turns |= {"prompt_hashes": seen, "turn_rewards": [0.0, 0.5, 1.0], "environment": "asking"}
                logprobs = [-0.25 * own for own in turns[LOSS_MASK]]
                made_rows.append(rollout(problem, i, **known, response_ids=ids, logprobs=logprobs, text="Yes.") | turns)
        put(run, run.rollouts(0) / f"part-{part:05d}.parquet", tables.ROLLOUTS, made_rows)
        judged = [verdict(p, i, REWARDS[p][i]) for p in problems for i in range(3)]
        put(run, run.verdicts(0) / f"part-{part:05d}.parquet", tables.VERDICTS, judged)


@pytest.fixture
def original(tmp_path: Path, model: Path, tokenizer: Any) -> Run:
    run = make_run(tmp_path, model)
    prepare(run)
    played(run, tokenizer)
    return run


def rollouts(run: Run) -> list[Row]:
    parts = sorted(run.rollouts(0).glob("part-*"))
    return [row for p in parts for row in tables.read_table(p, tables.ROLLOUTS).to_pylist()]


OF_TOKENS = ("response_ids", LOSS_MASK, "turn_starts")


def test_ids_come_back_whole(original: Run, tmp_path: Path, model: Path) -> None:
    export(original, 0, tmp_path / "round.parquet")
    copy = make_run(tmp_path, model, "b")
    import_rollouts(copy, 0, tmp_path / "round.parquet")
    before = [row for row in rollouts(original) if row["rollout_id"] != "square/1"]  # never judged
    for name in (*OF_TOKENS, "logprobs", "text", *(name for name, _ in TURNS)):
        assert [row[name] for row in rollouts(copy)] == [row[name] for row in before], name
    details = copy.ledger.artifacts()["round_00/1_rollouts/part-00000.parquet"].details
    counted = [row[LOSS_MASK] or [True] * len(row["response_ids"]) for row in before if row["problem_id"] != "square"]
    assert details["response_tokens"] == sum(map(sum, counted))
    build(copy, 0)
    masks = tables.read_table(copy.groups(0), tables.GROUPS)[LOSS_MASK].to_pylist()
    assert {None} < {mask and tuple(mask) for mask in masks}


def test_messages_come_back_as_the_same_tokens_without_log_probs(original: Run, tmp_path: Path, model: Path) -> None:
    export(original, 0, tmp_path / "round.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "round.jsonl").read_text().splitlines()]
    assert lines[0]["messages"][-5:] == conversation("It is 0.")
    assert lines[0]["messages"][0]["role"] == "user"
    assert (lines[0]["reward"], lines[0]["problem_id"]) == (1.0, "sum")
    copy = make_run(tmp_path, model, "b")
    import_rollouts(copy, 0, tmp_path / "round.jsonl", form="messages")
    before = [row for row in rollouts(original) if row["rollout_id"] != "square/1"]
    for one, other in zip(rollouts(copy), before, strict=True):
        assert one["logprobs"] is None
        assert "encoded here" in one["engine"]
        if other["turn_starts"]:  # of the last turn messages do not say whether its end was sampled
            assert [one[name] for name in OF_TOKENS] == [
                *(other[name][:-1] for name in OF_TOKENS[:2]),
                other["turn_starts"],
            ]
            assert [call["result"] for call in one["tool_calls"]] == ["7"]
    truths = [row["answer"] for row in tables.read_table(copy.problems, tables.PROBLEMS).to_pylist()]
    assert "4" in truths


def test_messages_that_were_cut_get_no_end_token(original: Run, tmp_path: Path, model: Path, tokenizer: Any) -> None:
    part = next(iter(sorted(original.rollouts(0).glob("part-*"))))
    rows = tables.read_table(part, tables.ROLLOUTS).to_pylist()
    rows[1]["finish_reason"] = "length"
    put(original, part, tables.ROLLOUTS, rows)
    export(original, 0, tmp_path / "round.jsonl")
    longest = len(rows[0]["response_ids"])  # with its end: the same answer without it is not cut
    for name, most in {"b": longest, "c": longest - 1}.items():
        copy = make_run(tmp_path, model, name, sampling={"max_tokens": most, "group_size": 3})
        import_rollouts(copy, 0, tmp_path / "round.jsonl", form="messages", assumed=Assumed(end_token=True))
        whole, cut = rollouts(copy)[:2]
        is_whole = name == "b"
        assert (whole["response_ids"] == rows[0]["response_ids"]) == is_whole
        assert whole["engine"].endswith(", end token added") == is_whole
        assert cut["response_ids"] == rows[1]["response_ids"][:-1]
        assert (whole["finish_reason"], cut["finish_reason"]) == ("stop", "length")
        details = copy.ledger.artifacts()["round_00/1_rollouts/part-00000.parquet"].details
        assert details["truncated"] == 1


SHOWN = {"examples": [{"statement": "3 squared?", "solution": "9"}, {"statement": "4 squared?", "solution": "16"}]}


@pytest.mark.parametrize("is_said", [True, False], ids=["with its number", "by the run's own prompts"])
def test_examples_stay_a_part_of_the_prompt(tmp_path: Path, model: Path, tokenizer: Any, is_said: bool) -> None:
    """Of an export, and of the same messages without the number that it has written."""

    def shown(name: str) -> Run:
        sets = {split: tmp_path / f"{split}.jsonl" for split in ("train", "validation", "heldout")}
        return make_run(tmp_path, model, name, problems={**sets, **SHOWN})

    run = shown("a")
    prepare(run)
    played(run, tokenizer)
    export(run, 0, tmp_path / "round.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "round.jsonl").read_text().splitlines()]
    assert {line["prompt_messages"] for line in lines} == {5}
    copy = shown("b")
    if not is_said:
        prepare(copy)
        lines = [{name: value for name, value in line.items() if name != "prompt_messages"} for line in lines]
    import_rollouts(copy, 0, write_jsonl(tmp_path / "b.jsonl", lines), form="messages")
    assert left_out(copy) == {}
    asked = [
        {row["problem_id"]: row["prompt_ids"] for row in tables.read_table(one.prompts, tables.PROMPTS).to_pylist()}
        for one in (run, copy)
    ]
    assert asked[0] == asked[1]
    assert [len(row["turn_starts"] or ()) for row in rollouts(copy)] == [3, 3, 1, 3, 3, 1, 3, 1]


@pytest.mark.parametrize("number", [0, 2, 6, "1", True])
def test_a_number_of_prompt_messages_that_cannot_be_is_counted(tmp_path: Path, model: Path, number: Any) -> None:
    row = {"messages": [ASKED, *conversation()], "reward": 1.0}
    run = make_run(tmp_path, model)
    wrong = row | {"prompt_messages": number}
    import_rollouts(run, 0, write_jsonl(tmp_path / "rows.jsonl", [row, row, wrong]), form="messages")
    assert left_out(run) == {"bad_messages": 1}


def test_trajectories_to_imitate_keep_their_calls(original: Run, tmp_path: Path) -> None:
    build(original, 0)
    export(original, 0, tmp_path / "sft.jsonl", "sft")
    rows = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert [row["rollout_id"] for row in rows] == ["sum/0", "most/0", "most/1", "square/2"]
    assert rows[0]["completion"] == conversation("It is 0.") and rows[0]["prompt"][-1]["role"] == "user"
    with pytest.raises(ConfigError, match=r"rows with calls of tools have no one shape; write a .jsonl file"):
        export(original, 0, tmp_path / "sft.parquet", "sft")
    assert not list(tmp_path.glob("*sft.parquet"))
    export(original, 0, tmp_path / "verl.parquet", "verl")
    assert pq.read_table(tmp_path / "verl.parquet").num_rows == 3


def test_turns_that_are_not_what_the_model_saw_are_left_out_by_name(
    original: Run, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(original, 0, tmp_path / "round.parquet")
    rows = pq.read_table(tmp_path / "round.parquet").to_pylist()
    rows[0]["turns"]["prompt_hashes"][2] += 1
    copy = make_run(tmp_path, model, "b")
    import_rollouts(copy, 0, write_jsonl(tmp_path / "rows.jsonl", rows))
    assert left_out(copy) == {"broken_turns": 3}
    said = capsys.readouterr().out
    assert "(sample 0) was given another prompt in turn 2 than the tokens before it" in said


ASKED = {"role": "user", "content": "3+4?"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"messages": []}, "bad_messages"),
        ({"messages": [ASKED]}, "bad_messages"),
        ({"messages": [ASKED, *[{"role": "assistant", "content": "x"}] * 2]}, "bad_messages"),
        ({"reward": "much"}, "bad_reward"),
        ({"reward": None}, "missing_column"),
    ],
)
def test_messages_of_no_use_are_counted(tmp_path: Path, model: Path, change: Row, reason: str) -> None:
    row = {"messages": [ASKED, *conversation()], "reward": 1.0}
    run = make_run(tmp_path, model)
    import_rollouts(run, 0, write_jsonl(tmp_path / "rows.jsonl", [row, row, row | change]), form="messages")
    assert left_out(run) == {reason: 1}
    assert len(rollouts(run)) == 2


def test_a_trace_of_several_turns_keeps_its_ids_and_log_probs(tmp_path: Path, model: Path) -> None:
    run = make_run(tmp_path, model)
    prepare(run)
    asked = {row["problem_id"]: row for row in tables.read_table(run.prompts, tables.PROMPTS).to_pylist()}
    prompts = {name: asked[name]["prompt_ids"] for name in ("sum", "square")}
    source = dumps.prime_rl(tmp_path / "dump", prompts)
    file = source / "step_12/train/effective/traces.jsonl"
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    for episode in episodes[:3]:
        nodes, tool = episode["traces"][0]["nodes"], {"role": "tool", "tool_call_id": "c", "content": "7"}
        between = {"message": tool, "sampled": False, "token_ids": [40, 41], "mask": [False] * 2, "logprobs": []}
        again = {"message": {"role": "assistant"}, "sampled": True, "token_ids": [42, 50], "mask": [False, True]}
        nodes += [between | {"parent": 1}, again | {"logprobs": [-3.0], "parent": 2}]
    write_jsonl(file, episodes)
    import_rollouts(run, 0, source, form="prime-rl")
    first, *_, last = rollouts(run)
    own = dumps.response(prompts["sum"], 0)
    assert first["response_ids"] == [*own, 40, 41, 42, 50]
    assert first["logprobs"] == pytest.approx([*dumps.logprobs(0), 0, 0, 0, -3.0])
    assert first[LOSS_MASK] == [True] * 3 + [False] * 3 + [True]
    assert (first["turn_starts"], first["environment"]) == ([0, 6], "gsm8k")
    assert (last[LOSS_MASK], last["turn_starts"]) == (None, None)
