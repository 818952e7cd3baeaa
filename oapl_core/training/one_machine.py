"""Torch's launcher for ranks of one machine, whose stores nobody else can reach: ``python -m`` this, its arguments.

The launcher keeps two stores (TCPStore) by which ranks find each other. The stores authenticate nobody, and torch has
them listen on every interface, whatever address they are given. Only a socket that is bound already changes that.
"""

import socket
import sys
from collections.abc import Sequence
from typing import Any

HOST = "127.0.0.1"


def listening(port: int) -> int:
    """Return the descriptor of a socket that takes connections from this machine alone."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, port))
        server.listen(socket.SOMAXCONN)
        return server.detach()


def main(arguments: Sequence[str]) -> None:
    """Run the launcher to its end; it ends this process with its own exit code."""
    import torch.distributed

    distributed: Any = torch.distributed

    class Local(distributed.TCPStore):  # type: ignore[misc]
        """A store that listens on the loopback interface."""

        def __init__(self, host_name: str, port: int, *args: Any, **options: Any) -> None:
            """Open the store like torch's; the launcher gives ``is_master`` by name."""
            if options.get("is_master"):
                descriptor = listening(port)
                if not port:
                    with socket.socket(fileno=descriptor) as bound:
                        port = bound.getsockname()[1]
                        bound.detach()
                host_name, options["master_listen_fd"] = HOST, descriptor
            super().__init__(host_name, port, *args, **options)

    distributed.TCPStore = Local  # before the launcher takes it from there
    from torch.distributed.run import main as launch

    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOST}:0", f"--local-addr={HOST}"]
    launch([*meeting, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
