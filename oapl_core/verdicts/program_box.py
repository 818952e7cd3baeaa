"""The sandbox behind a Unix socket, for programs that another project's harness wants to run.

A line of JSON in, ``source`` and ``input``; a line out, ``exit_code`` and ``stdout``. Writes nothing but the socket.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from threading import Thread

from oapl_core.sandbox import Limits, Program
from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.temporary import temporary_folder

_KILLED = 137
"""Exit code by which a shell reports a program that did not end by itself."""


class _Listener(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def program_box(config: VerifierConfig) -> Iterator[Path]:
    """Yield the socket's path; every program runs under the verifier's limits.

    Raises:
        SandboxError: no level of isolation can be proven here.
    """
    limits = Limits(config.cpu_s, config.wall_s, config.memory_mb, float(config.output_mb))
    # a path of its own, since a socket's may have 107 bytes
    with (
        Sandbox(config.workers, config.minimum_level, libraries=config.libraries) as sandbox,
        temporary_folder() as folder,
    ):

        class Asked(StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    asked = json.loads(line)
                    (done,) = sandbox.run(Program(asked["source"]), [asked["input"].encode()], limits)
                    # a limit or an exception is never 0, whatever the process returned
                    code = done.exit_code if done.completed else done.exit_code or _KILLED
                    said = {"exit_code": code, "stdout": done.stdout.decode(errors="replace")}
                    self.wfile.write(json.dumps(said).encode() + b"\n")

        path = folder / "box"
        with _Listener(str(path), Asked) as listener:
            Thread(target=listener.serve_forever, daemon=True).start()
            yield path
            listener.shutdown()
