"""`python -m bench.harness_answers`: others' harnesses and our verifier judge the same answers to real problems.

HumanEval's solutions, emptied and mutated, and MATH-500's gold answers, rewritten (bench/maths_rewritings.py). A server
gives each harness those answers. Reads $OAPL_SHARED_DATA; writes docs/benchmarks/data/harness_answers.json.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.maths_rewritings import RIGHT, WRONG
from oapl_core import plugins
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig
from oapl_core.verdicts.verifier import Verifier
from oapl_extras.harnesses.harness import CACHE
from oapl_extras.harnesses.harness_program import environment
from tests import reference_sets as sets

DATA = Path("docs/benchmarks/data/harness_answers.json")
_EVERY = 25
"""Of MATH-500's problems: their rewritings are thousands."""


def programs() -> Iterator[dict[str, Any]]:
    """HumanEval with an answer, and what kind of answer that is."""
    for row in sets.humaneval(sets.shared_file("HumanEval.jsonl.gz")):
        variants = {"solution": sets.solution(row), "emptied": sets.emptied(row), "mutated": sets.mutated(row)[0]}
        for name, source in variants.items():
            yield {"checker": None, "answer": None, **sets.problem(row), "variant": name, "text": sets.fenced(source)}


def maths() -> Iterator[dict[str, Any]]:
    """MATH-500 with an answer, written in one of the ways that are surely right or surely wrong."""
    empty: dict[str, Any] = {"kind": "math", "checker": None, "starter_code": None, "entry_point": None, "tests": []}
    for row in sets.math500()[::_EVERY]:
        for one in (*RIGHT, *WRONG):
            if (text := one.response(row)) is not None:
                problem = {"problem_id": row["unique_id"], "statement": row["problem"], "answer": row["answer"]}
                variant = f"{'right' if one.passes else 'wrong'}: {one.name}"
                yield {**empty, **problem, "variant": variant, "text": text}


@contextmanager
def answering(texts: Mapping[str, str]) -> Iterator[str]:
    """A server that gives each prompt its text, as vLLM's /v1/completions does."""

    class Known(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
            text = texts[prompt[0] if isinstance(prompt, list) else prompt]
            choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
            made = {"id": "1", "object": "text_completion", "created": 1, "model": "served", "choices": [choice]}
            content = json.dumps(made).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Known)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def judged_by(name: str, rows: Sequence[Mapping[str, Any]]) -> list[bool | None]:
    """Whether a harness calls each row's text correct; None where it could not judge it."""
    asked = [{**row, "problem_id": str(i), "prompt": f"answer {i}"} for i, row in enumerate(rows)]
    texts = {str(row["prompt"]): str(row["text"]) for row in asked}
    values = {"models": [{"label": "m", "path": "."}], "problems": {"path": "."}, "samples": 1, "max_tokens": 16}
    config = EvaluationFolderConfig.model_validate(values)
    python = environment(name, CACHE, print)
    with TemporaryDirectory() as folder, answering(texts) as url:
        found = dict(plugins.resolve("harness", name).measure(python, url, Path(folder), asked, config, []).scores)
    return [found.get(str(i)) for i in range(len(rows))]


def main() -> None:
    """Judge, count, write."""
    counts: list[dict[str, Any]] = []
    for of, rows, names in (
        ("HumanEval", [*programs()], ["inspect"]),
        ("MATH-500", [*maths()], ["lm-eval", "inspect"]),
    ):
        with Verifier() as verifier:
            verdicts = verifier.verify(rows, [str(row["text"]) for row in rows], ["stop"] * len(rows))
        ours = [verdict.reward == 1 for verdict in verdicts]
        theirs = {name: judged_by(name, rows) for name in names}
        for variant in dict.fromkeys(row["variant"] for row in rows):
            here = [i for i, row in enumerate(rows) if row["variant"] == variant]
            line = {"set": of, "answers": variant, "count": len(here), "ours": sum(ours[i] for i in here)}
            for name, found in theirs.items():
                line[name] = sum(found[i] is True for i in here)
                line[f"{name} failed"] = sum(found[i] is None for i in here)
                line[f"{name} differs"] = sum(found[i] is not None and found[i] != ours[i] for i in here)
            counts.append(line)
    DATA.write_text(json.dumps(counts, indent=1) + "\n")
    for of in ("HumanEval", "MATH-500"):
        total = Counter[str]()
        for line in counts:
            total.update({key: value for key, value in line.items() if line["set"] == of and isinstance(value, int)})
        print(of, dict(total))


if __name__ == "__main__":
    main()
