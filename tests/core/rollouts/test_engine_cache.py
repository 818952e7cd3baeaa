"""One path for the checkpoints of an architecture: vLLM's own hash, and who may move the link when."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from oapl_core.rollouts.engine_cache import cache_folder, compiled_once, stable_path
from oapl_core.settings.experiment import EngineConfig
from tests.sampling_run import made_up_model
from tests.tiny_model import write_tiny_model

ROOT = Path(__file__).resolve().parents[3]
CONFIG = EngineConfig(max_model_len=256, kv_cache_gib=0.1)
HASHES = """
import json, os, sys
from pathlib import Path
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
from vllm import envs
from vllm.engine.arg_utils import EngineArgs
from oapl_core.rollouts.engine_cache import cache_folder, stable_path
from oapl_core.rollouts.engine_start import engine_arguments
from oapl_core.settings.experiment import EngineConfig

def hashes(path, config):
    arguments = EngineArgs(**engine_arguments(path, config, True, "raw_logprobs", []))
    made = arguments.create_engine_config()
    return [made.model_config.compute_hash(), made.compute_hash()]

if __name__ == "__main__":
    first, second = map(Path, sys.argv[1:])
    config = EngineConfig(max_model_len=256, kv_cache_gib=0.1)
    found = {"direct": [hashes(first, config), hashes(second, config)], "linked": []}
    for folder in (first, second):
        with stable_path(folder, config) as path:
            found["linked"].append(hashes(path, config))
    less = config.model_copy(update={"gpu_memory_utilization": 0.5})
    with stable_path(first, less) as path:
        found["less memory"] = hashes(path, less)
    found["root"] = [envs.VLLM_CACHE_ROOT, str(cache_folder())]
    print(json.dumps(found))
"""
HOLDS = """
import sys, time
from pathlib import Path
from oapl_core.rollouts.engine_cache import stable_path
from oapl_core.settings.experiment import EngineConfig
with stable_path(Path(sys.argv[1]), EngineConfig(max_model_len=256, kv_cache_gib=0.1)) as path:
    print(path, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def epochs(tmp_path: Path) -> list[Path]:
    """Checkpoints of one architecture."""
    return [made_up_model(tmp_path / f"epoch_{number}", number) for number in range(3)]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="the engine is not installed")
def test_two_epochs_have_one_key_in_the_cache_of_vllm_and_their_folders_two(tmp_path: Path) -> None:
    first = write_tiny_model(tmp_path / "epoch_01", seed=1)
    second = shutil.copytree(first, tmp_path / "epoch_02")
    script = tmp_path / "hashes.py"
    script.write_text(HASHES)
    command = [sys.executable, str(script), str(first), str(second)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for direct, linked in zip(zip(*found["direct"], strict=True), zip(*found["linked"], strict=True), strict=True):
        assert direct[0] != direct[1], "vLLM's key has the path: without that, the link is not needed any more"
        assert linked[0] == linked[1]
    assert found["less memory"] != found["linked"][0], "vLLM leaves it out of its key; its plan of the memory needs it"
    assert found["root"][0] == found["root"][1]


def test_the_link_leads_to_the_checkpoint_and_the_next_checkpoint_has_the_same_path(epochs: list[Path]) -> None:
    paths = []
    for epoch in epochs:
        with stable_path(epoch, CONFIG) as path:
            assert path.resolve() == epoch.resolve()
            paths.append(path)
    assert len(set(paths)) == 1


def test_engines_of_one_checkpoint_share_a_path_and_no_engine_moves_the_path_of_another(epochs: list[Path]) -> None:
    with ExitStack() as stack:
        one, same, other, third = [
            stack.enter_context(stable_path(epoch, CONFIG)) for epoch in (epochs[0], epochs[0], epochs[1], epochs[2])
        ]
        assert one == same
        assert len({one, other, third}) == 3
        assert [path.resolve() for path in (one, other, third)] == [epoch.resolve() for epoch in epochs]
    with stable_path(epochs[2], CONFIG) as path:
        assert path == one, "free again"


def test_other_architectures_and_other_settings_have_paths_of_their_own(tmp_path: Path, epochs: list[Path]) -> None:
    wider = made_up_model(tmp_path / "wider")
    (wider / "config.json").write_text('{"eos_token_id": 2, "hidden_size": 64}')
    quantised = CONFIG.model_copy(update={"options": {"quantization": "fp8"}})
    found = []
    for model, config in [(epochs[0], CONFIG), (wider, CONFIG), (epochs[0], quantised)]:
        with stable_path(model, config) as path:
            found.append(path)
    assert len(set(found)) == 3


def test_a_killed_engine_has_no_path(epochs: list[Path]) -> None:
    command = [sys.executable, "-c", HOLDS, str(epochs[0])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        held = Path(holder.stdout.readline().strip())
        with stable_path(epochs[1], CONFIG) as path:
            assert path != held
        holder.send_signal(signal.SIGKILL)
    with stable_path(epochs[1], CONFIG) as path:
        assert path == held


def test_many_that_start_at_once_all_have_their_own_checkpoint(epochs: list[Path]) -> None:
    wrong: list[tuple[Path, Path]] = []

    def start(number: int) -> None:
        for turn in range(10):
            epoch = epochs[(number + turn) % 3]
            with stable_path(epoch, CONFIG) as path:
                time.sleep(0.001 * (number % 3))
                if path.resolve() != epoch.resolve():
                    wrong.append((path, epoch))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_cache_that_cannot_be_written_costs_the_link_and_says_so(
    cache: Path, epochs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    cache.write_text("a file, not a folder")
    with stable_path(epochs[0], CONFIG) as path, compiled_once("key"):
        assert path == epochs[0]
    assert "set VLLM_CACHE_ROOT to another folder" in capsys.readouterr().out


def test_one_engine_compiles_while_the_others_wait_and_later_ones_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with compiled_once("key"):
            entered.set()
            leave.wait()
            done.append("first")

    def later(name: str) -> None:
        with compiled_once("key"):
            done.append(name)

    threads = [threading.Thread(target=first)]
    threads[0].start()
    entered.wait()
    threads += [threading.Thread(target=later, args=(f"later {number}",)) for number in range(2)]
    for thread in threads[1:]:
        thread.start()
    while capsys.readouterr().out.count("another engine compiles") < 1:
        time.sleep(0.01)
    assert not done
    leave.set()
    for thread in threads:
        thread.join()
    assert done[0] == "first"
    assert len(done) == 3
    with compiled_once("key"), compiled_once("key"):
        pass  # neither waits for the other


def test_the_next_one_compiles_where_the_first_failed() -> None:
    with pytest.raises(RuntimeError), compiled_once("key"):
        raise RuntimeError("no memory")
    assert not list((cache_folder() / "oapl").glob("*.compiled"))
    with compiled_once("key"):
        pass
    assert list((cache_folder() / "oapl").glob("*.compiled"))
