"""The search tool over a corpus on disk."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oapl_core.environments.protocol import Environment, ToolError
from oapl_core.environments.search import Search, index, main
from oapl_core.errors import ConfigError, DataError

PAGES = [
    {"title": "Rivers", "text": "The Spree flows through Berlin and joins the Havel."},
    {"title": "Lakes", "text": "Lake Constance lies between three countries. " * 50},
    {"title": "Quotes", "text": 'She said "AND" is no operator here: NEAR OR NOT.'},
]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    assert index(PAGES, tmp_path / "pages.sqlite") == 3
    return str(tmp_path / "pages.sqlite")


def test_the_page_with_the_words_is_found_and_read(corpus: str) -> None:
    search: Search = pickle.loads(pickle.dumps(Search(corpus, results=1)))
    assert isinstance(Search(corpus), Environment)
    assert search.search("which river is flowing through berlin?").startswith("[1] Rivers\n")
    assert search.read(1) == "Rivers\nThe Spree flows through Berlin and joins the Havel."
    assert len(Search(corpus, page_characters=100).read(2)) == len("Lakes\n") + 100


@pytest.mark.parametrize("query", ['"unbalanced', "NEAR(", "AND OR NOT", "title:*", "x' OR 1=1 --", "operator AND"])
def test_a_query_is_words_and_no_syntax(corpus: str, query: str) -> None:
    assert "Traceback" not in Search(corpus).search(query)


def test_a_wrong_use_is_an_error_of_the_model(corpus: str) -> None:
    with pytest.raises(ToolError, match="has no words"):
        Search(corpus).search("?!")
    with pytest.raises(ToolError, match="there is no page 9"):
        Search(corpus).read(9)
    with pytest.raises(ToolError, match="must be a number"):
        Search(corpus).read("Rivers")  # type: ignore[arg-type]
    assert Search(corpus).search("zebra") == "nothing was found"


def test_threads_search_at_the_same_time(corpus: str) -> None:
    search = Search(corpus)
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(search.search, ["berlin"] * 64))) == 1


def test_what_is_no_corpus_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    for name in ("missing", "text"):
        with pytest.raises(ConfigError, match="is no corpus"):
            Search(str(tmp_path / name))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "pages.jsonl", tmp_path / "pages.sqlite"
    source.write_text("".join(json.dumps(page) + "\n" for page in PAGES))
    assert main([str(source), str(target)]) == 0
    assert "3 pages" in capsys.readouterr().out
    source.write_text('{"title": "no text"}\n')
    assert main([str(source), str(target)]) == 2
    assert "page 1: has no `text`" in capsys.readouterr().err
    assert Search(str(target)).search("berlin")  # the corpus that was there is whole
    with pytest.raises(DataError, match="has no `text`"):
        index([["a"]], target)


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[" * 10**5, b'{"text": "a", "n": ' + b"9" * 5000 + b"}", b"{"])
def test_a_line_that_nobody_can_read_is_named(line: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "pages.jsonl"
    source.write_bytes(b'{"text": "whole"}\n' + line + b"\n")
    assert main([str(source), str(tmp_path / "pages.sqlite")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"{source}:2: is not JSON" in said
    assert not (tmp_path / "pages.sqlite").exists()


def test_half_of_an_emoji_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "pages.sqlite"
    assert index([{"title": "\ud83d", "text": "a smile \ude00"}], target) == 1
    assert Search(str(target)).read(1) == "\ufffd\na smile \ufffd"
