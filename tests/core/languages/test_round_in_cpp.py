"""A set in C++ the whole way: imported with its solutions checked, asked, answered, judged, grouped, trained on."""

import json
from pathlib import Path

import pytest

from oapl_core import tables
from oapl_core.groups.build import build
from oapl_core.model_files.model_folder import load_tokenizer, policy_hash
from oapl_core.problems.prepare import prepare
from oapl_core.problems.problem_set import read_problem_set
from oapl_core.rollouts.generate import generate
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import EngineConfig
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.training.examples import read_examples
from oapl_core.verdicts.extraction import fenced
from oapl_core.verdicts.verify import verify
from oapl_extras.problem_sets.curation_judge import VerifierJudge
from oapl_extras.problem_sets.import_set import Choice, import_set
from oapl_extras.problem_sets.sources import source
from tests.cpp_problems import CPP_PROBLEMS, foreign_rows
from tests.sampling_run import MadeUpSampler
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.skipif(not Path("/usr/bin/g++").exists(), reason="needs g++ (Debian package g++)")
SHORT = 2
"""Problems of the quicker one: a compiler takes a second for everything of the library."""
SIZES = [pytest.param(size, marks=pytest.mark.slow) for size in (SHORT, len(CPP_PROBLEMS))]


class CppSampler(MadeUpSampler):
    """Answers every problem rightly in its even samples; in the others with what does not compile, or prints more."""

    def __init__(self, model_dir: Path, config: EngineConfig) -> None:
        super().__init__(model_dir, config)
        self._tokenizer = load_tokenizer(model_dir)

    def _answer(self, request: Request, with_logprobs: bool) -> SampledAnswer:
        prompt = self._tokenizer.decode(request.prompt_ids)
        number, known = next((n, p) for n, p in enumerate(CPP_PROBLEMS) if p.statement in prompt)
        self.asked = prompt
        turn = sum(key.startswith(request.key.rpartition("/")[0]) for key in self.answered)
        self.answered.append(request.key)
        wrong = "int main( {" if number % 2 else known.solution.replace("}\n", ' cout << " and more"; }\n')
        text = f"Here it is.\n{fenced(wrong if turn % 2 else known.solution, 'cpp')}"
        ids = [*self._tokenizer(text)["input_ids"], self._tokenizer.eos_token_id]
        return SampledAnswer(request, ids, [-0.5] * len(ids), "stop", text)


def imported_set(folder: Path, size: int) -> Path:
    rows = foreign_rows()[:size]
    broken = json.loads(json.dumps(rows[0])) | {"problem_id": "broken", "prompt": "Another statement altogether."}
    broken["gold_standard_solution"] = "```cpp\nint main() { return 0; }\n```"
    (folder / "foreign.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, broken]))
    with VerifierJudge(VerifierConfig(workers=2)) as judge:
        tally = import_set(
            source("primeintellect"), [folder / "foreign.jsonl"], folder / "cpp.jsonl", Choice("train"), verifier=judge
        )
    assert tally.kept == size
    assert list(tally.dropped) == ["no reference solution passes every test"]
    return folder / "cpp.jsonl"


@pytest.fixture(params=SIZES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    path = imported_set(tmp_path, request.param)
    values = {
        "name": "cpp",
        "runs_dir": tmp_path / "runs",
        "model": write_tiny_model(tmp_path / "model"),
        "problems": {"train": path, "heldout": path.with_name("heldout.jsonl"), "max_prompt_tokens": 1500},
        "engine": {"max_model_len": 2048},
        "sampling": {"group_size": 4, "max_tokens": 500},
        "evaluation": {"max_tokens": 500},
        "verifier": {"workers": 2},
    }
    heldout = {"problem_id": "h", "kind": "stdin", "statement": "Print 1.", "tests": [{"input": "", "output": "1"}]}
    path.with_name("heldout.jsonl").write_text(json.dumps(heldout))
    return Run.create(parse_experiment(values, "test"))


def test_a_round_in_cpp_from_the_import_to_a_training_row(run: Run) -> None:
    size = len(list(read_problem_set(run.config.problems.train[0], "train")))
    prepare(run)
    problems = tables.read_table(run.problems, tables.PROBLEMS).to_pylist()
    assert [problem["language"] for problem in problems] == ["cpp"] * size + [None]
    prompts = {row["problem_id"]: row["prompt"] for row in tables.read_table(run.prompts, tables.PROMPTS).to_pylist()}
    assert "expert C++17 programmer" in prompts[problems[0]["problem_id"]]
    assert "```cpp\n// YOUR CODE HERE\n```" in prompts[problems[0]["problem_id"]]
    assert "expert Python programmer" in prompts["h"]
    generate(run, 0, CppSampler)
    verify(run, 0)
    (part,) = run.verdicts(0).glob("part-*.parquet")
    verdicts = tables.read_table(part, tables.VERDICTS).to_pylist()
    assert sorted(row["outcome"] for row in verdicts[:4]) == ["passed"] * 2 + ["wrong_answer"] * 2
    assert sorted(row["outcome"] for row in verdicts[4:8]) == ["compile_error"] * 2 + ["passed"] * 2
    said = [row["excerpt"] for row in verdicts if row["outcome"] == "compile_error"]
    assert all(excerpt.startswith("main.cpp:1:") for excerpt in said)
    assert sum(row["reward"] for row in verdicts) == 2 * size
    entry = run.ledger.artifacts()[run.name(part)]
    assert entry.details["languages"]["cpp"].startswith("g++")
    build(run, 0)
    examples = read_examples(run.groups(0), policy_hash(run.base_model()), run.base_model())
    assert sorted(examples.reward_S) == [0.0] * 2 * size + [1.0] * 2 * size
    groups = tables.read_table(run.groups(0), tables.GROUPS).to_pylist()
    tokenizer = load_tokenizer(run.base_model())
    trained = [tokenizer.decode(row["response_ids"]) for row in groups if row["reward"] == 1.0]
    assert sum(CPP_PROBLEMS[0].solution.strip() in answer for answer in trained) == 2
    before = part.stat().st_mtime_ns
    verify(run, 0)
    assert part.stat().st_mtime_ns == before, "what is judged is not judged again"
