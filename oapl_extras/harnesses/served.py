"""A checkpoint behind vLLM's own OpenAI-compatible server on a free port, for as long as a context lasts.

Ends with the context, and with us: the server is a child in the process tree that the stage's guard watches.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from oapl_core.errors import StageFailed
from oapl_core.model_files.model_folder import parameters
from oapl_core.rollouts.engine_cache import stable_path
from oapl_core.settings.experiment import EngineConfig

MODEL = "served"
"""Name that servers give to the model that they hold."""
_START_S, _ASK_S = 1800.0, 1.0
_ON_CPU = ("--enforce-eager", "--no-enable-chunked-prefill", "--block-size", "32")


@contextmanager
def served(model: Path, config: EngineConfig, log: Path) -> Iterator[str]:
    """Start a server that holds ``model``, and yield its address; what it prints goes to ``log``.

    Raises:
        StageFailed: the server ended, or was not ready in half an hour.
    """
    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--generation-config", "vllm"]
    environment, on_cpu = dict(os.environ), not torch.cuda.is_available()
    at_once = config.at_once(parameters(model), on_cpu)
    command += ["--max-model-len", str(config.max_model_len), "--max-num-seqs", str(at_once)]
    if on_cpu:  # as engine_start.py starts the engine there
        command += [*_ON_CPU, "--dtype", "float32" if config.dtype == "auto" else config.dtype]
        command += ["--max-num-batched-tokens", str(max(config.max_model_len, 8192))]
        environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, round(config.kv_cache_gib)))
    else:
        command += ["--dtype", config.dtype, "--tensor-parallel-size", str(config.tensor_parallel_size)]
        command += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
    url = f"http://127.0.0.1:{port}"
    with stable_path(model, config) as path, log.open("ab") as sink:
        server = subprocess.Popen([*command, "--model", str(path)], stdout=sink, stderr=sink, env=environment)
        try:
            _await(server, f"{url}/health", log)
            yield url
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _await(server: "subprocess.Popen[bytes]", health: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise StageFailed(f"vLLM's server ended with {server.returncode} before it was ready; see {log}")
        try:
            with urlopen(health, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(_ASK_S)
    raise StageFailed(f"vLLM's server was not ready after {_START_S:.0f} s; see {log}")
