"""A local S3 server that answers one request at a time: ``python -m tests.s3_server PORT``.

moto's own server has a thread for each request, and one may write between another one's look and write: a conditional
put would not be what it is at S3.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


def main(port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    run_simple("127.0.0.1", port, DomainDispatcherApplication(create_backend_app), threaded=False)


@contextmanager
def s3_server(log: Path) -> Iterator[str]:
    """``s3://runs/{}?...`` with the bucket ``runs``; the credentials are in the environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    os.environ |= ENVIRONMENT
    command = [sys.executable, "-m", "tests.s3_server", where.partition(":")[2]]
    with log.open("wb") as sink:
        server = subprocess.Popen(command, stdout=sink, stderr=sink, cwd=Path(__file__).parents[1])
    try:
        for _ in range(300):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", int(where.partition(":")[2]))) == 0:
                    break
            time.sleep(0.1)
        urlopen(Request(f"http://{where}/runs", method="PUT")).close()
        yield f"s3://runs/{{}}?region=us-east-1&endpoint=http://{where}"
    finally:
        server.terminate()
        server.wait()
        for name in ENVIRONMENT:
            os.environ.pop(name, None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
