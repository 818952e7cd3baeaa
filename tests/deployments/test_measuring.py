"""`python -m deployments.measuring`: what is refused before a server is asked; the rest is in test_deployment.py."""

from pathlib import Path

import pytest

from deployments.measuring import main, problem_set


def test_a_mistake_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    for words in ([], ["data/demo/heldout.jsonl", "samples"], ["no-such-set"]):
        assert main(words) == 2
        said = capsys.readouterr().out
        assert said.startswith("error: ") and said.count("\n") == 1
    monkeypatch.delenv("PREFECT_API_URL")
    assert main(["data/demo/heldout.jsonl"]) == 2


def test_a_problem_set_is_a_file_or_a_name(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").touch()
    assert problem_set(str(tmp_path / "p.jsonl")) == {"path": str(tmp_path / "p.jsonl")}
    assert problem_set("humaneval") == {"name": "humaneval"}
