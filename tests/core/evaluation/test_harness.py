"""The lm-evaluation-harness: the task made of our problems, what it asks a server for, what is read of its results."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from oapl_core.errors import ConfigError, DataError, StageFailed
from oapl_core.evaluation import card_text, lm_eval
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig

PROBLEMS = {"one": "1", "two": "2,000", "three": r"\frac{1}{2}"}
SAMPLES = 3


def config(folder: Path, **changes: Any) -> EvaluationFolderConfig:
    values = {
        "models": [{"label": "m", "path": folder}],
        "problems": {"path": folder / "p.jsonl"},
        "samples": SAMPLES,
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 32,
        **changes,
    }
    return EvaluationFolderConfig.model_validate(values)


def documents() -> list[dict[str, Any]]:
    return [
        {"problem_id": name, "sample": sample, "prompt": f"<|im_start|>user\n{name}?", "answer": answer}
        for name, answer in PROBLEMS.items()
        for sample in range(SAMPLES)
    ]


class Answers(BaseHTTPRequestHandler):
    """vLLM's /v1/completions: the first answer to a problem is right, others are wrong or have no box."""

    asked: ClassVar[list[dict[str, Any]]] = []
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            prompt = body["prompt"][0] if isinstance(body["prompt"], list) else body["prompt"]
            times = sum(one["prompt"] == body["prompt"] for one in self.asked)
            self.asked.append(body)
        name = prompt.rpartition("\n")[2].rstrip("?")
        texts = [f"First \\boxed{{7}}, then \\boxed{{{PROBLEMS[name].replace(',', '')}}}.", "\\boxed{none}", "no box"]
        content = json.dumps({"choices": [{"index": 0, "text": texts[times % 3]}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def answering() -> Iterator[str]:
    Answers.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_task_says_how_answers_are_sampled_and_has_a_document_for_each(tmp_path: Path) -> None:
    lm_eval.write_task(tmp_path / "work", documents(), config(tmp_path, stop=["\n\n"]))
    task = yaml.safe_load((tmp_path / "work" / "oapl_problems.yaml").read_text())
    sampling = {
        "temperature": 0.7,
        "top_p": 0.9,
        "max_gen_toks": 32,
        "do_sample": True,
        "until": ["\n\n"],
        "seed": None,
    }
    assert task["generation_kwargs"] == {**sampling, "add_special_tokens": False}
    rows = [json.loads(line) for line in Path(task["dataset_kwargs"]["data_files"]["test"]).read_text().splitlines()]
    assert rows == documents()


def test_an_environment_that_cannot_be_made_is_one_line_and_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(command: list[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="Resolving\nno such package: lm-eval\n")

    said: list[str] = []
    monkeypatch.setattr("oapl_core.evaluation.lm_eval.subprocess.run", refuses)
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"could not be made \(no such package: lm-eval\); it needs a package reg"
        ):
            lm_eval.environment(tmp_path, said.append)
    assert len(said) == 2


def test_a_harness_that_fails_or_writes_nothing_is_one_line(tmp_path: Path) -> None:
    lm_eval.write_task(tmp_path, documents(), config(tmp_path))
    with pytest.raises(StageFailed, match=r"lm-eval ended with 1: .*No module named lm_eval; see .*harness.log"):
        lm_eval.run(Path(sys.executable), "http://127.0.0.1:9", "m", [lm_eval.TASK], tmp_path)
    with pytest.raises(DataError, match="wrote no samples"):
        lm_eval.scored(tmp_path)


def test_the_card_shows_both_results_beside_each_other() -> None:
    found = {"average": [0.5, 0.4, 0.6], "ours": 0.52, "difference": -0.02, "repeat": 0.05, "agrees": True}
    model = {**found, "version": "0.4.13", "problems": 60, "answers": 480, "tasks": {"arc": {"acc,none": 0.25, "n": 3}}}
    text = "\n".join(card_text._harnesses({"harnesses": {"lm-eval": {"tiny": model}}}))
    assert "| tiny | 50.0% (40.0%–60.0%) | 52.0% | -2.0 | ±5.00% | 60 | 480 | yes |" in text
    assert "| tiny | arc | acc,none | 0.2500 |" in text


@pytest.mark.slow
def test_the_real_harness_asks_as_our_engine_is_asked_and_scores_by_its_own_rules(tmp_path: Path) -> None:
    python = lm_eval.environment(Path("data/cache/harnesses"), print)
    lm_eval.write_task(tmp_path, documents(), config(tmp_path))
    with answering() as url:
        content = lm_eval.run(python, url, "served", [lm_eval.TASK], tmp_path)
    assert content["results"][lm_eval.TASK]["exact_match,last-box"] == pytest.approx(1 / 3)
    assert content["lm_eval_version"] == "0.4.13"
    assert len(Answers.asked) == len(PROBLEMS) * SAMPLES
    one = Answers.asked[0]
    asked = {key: one[key] for key in ("model", "temperature", "top_p", "max_tokens", "seed", "add_special_tokens")}
    assert asked == {
        "model": "served",
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 32,
        "seed": None,
        "add_special_tokens": False,
    }
    scores = lm_eval.scored(tmp_path)
    assert sorted(problem for problem, is_correct in scores if is_correct) == ["one", "three", "two"]
