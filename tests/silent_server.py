"""A server that says it is healthy and answers nothing else, as a frozen one that was asked a moment ago."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class SilentServer:
    """A Prefect server in outline; ``url`` is its API's."""

    def __init__(self, port: int = 0) -> None:
        """It listens."""
        self._port, self._over = port, threading.Event()
        over = self._over

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not self.path.endswith("/health"):
                    over.wait(60)
                self.send_response(200)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"true")

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Nothing to say."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/api"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
