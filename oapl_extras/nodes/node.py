"""One node of a training on several: runs torch's launcher here, and nothing of it outlives the holder of the run.

Where `training.launcher` is "env", every node but the first runs ``python -m oapl_extras.nodes.node RUN_DIR``. It
joins each training of the run until the run's holder gives the run folder back. With a CALL (``nodes.py``) it joins
that one, which is what srun starts. The node's processes end when its call is withdrawn, and when nobody holds the run
folder any more. Until then they keep ``run.helpers``, for which the next holder waits (``run_folder/helping.py``).
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from oapl_core.errors import OaplError
from oapl_core.launch import guarded
from oapl_core.planning.plan import finished, steps
from oapl_core.progress import say
from oapl_core.run_folder.helping import LOOK_S, Watch, holder_of, tied
from oapl_core.run_folder.run import Run
from oapl_core.stage import ERROR_PREFIX
from oapl_core.training.launching import threads_of
from oapl_extras.nodes.nodes import Call, call_file, own_number

PATIENCE_S = 3600.0
"""Seconds that a finished run may lie untaken before a node gives up. Node 0 may still wait for its image, to redo a
stage."""


def join(root: Path, call: Call, number: int, announce: bool = False) -> int:
    """Run this node's ranks to their end; returns the launcher's exit code. ``announce``: others wait for the call.

    Raises:
        Held: whoever called is gone.
    """
    with tied(root, call.holder) if call.holder else nullcontext():
        # what a cluster tells torch's launcher by PET_... would count more than what it is told here
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
        ours.setdefault("OMP_NUM_THREADS", str(threads_of(call.ranks[number])))
        with (
            guarded(launcher(root, call, number), environment=ours) as guard,
            announced(root, call) if announce else nullcontext(),
        ):
            code = guard.wait()
    if code:
        sys.stderr.write(f"node {os.uname().nodename} ended with code {code}\n")
    return code


def launcher(root: Path, call: Call, number: int) -> list[str]:
    """Return Torch's launcher for node ``number``; static, so that rank 0 is on node 0 and each resumes its own
    state.
    """
    place = [f"--nnodes={len(call.ranks)}", f"--node-rank={number}", f"--nproc-per-node={call.ranks[number]}"]
    meeting = ["--rdzv-backend=static", f"--master-addr={call.master}", f"--master-port={call.port}"]
    verb, *arguments = call.command
    module = ["-m", f"oapl_core.{verb}", str(root), *arguments]
    return [sys.executable, "-m", "torch.distributed.run", *place, *meeting, f"--rdzv-id={call.name}", *module]


def serve(root: Path, number: int, patience_s: float = PATIENCE_S) -> int:
    """Join each training that node 0 calls for, from its taking the run folder until it gives it back.

    A node that comes when the run is finished already waits ``patience_s`` seconds for somebody to take it again.
    """
    say(f"node {number}: waits for the holder of {root}")
    deadline = time.monotonic() + patience_s
    while not (root / "run.lock").is_file() or (holder := holder_of(root)) is None:
        time.sleep(LOOK_S)
        if time.monotonic() > deadline:
            if _is_finished(root):
                say(f"node {number}: {root} is finished, and nobody has taken it for {patience_s:.0f} s")
                return 0
            deadline = time.monotonic() + patience_s
    watch, last = Watch(root / "run.lock", holder), ""
    while not watch.gone():
        call = _read_call(root)
        if call and call.holder == holder and call.name != last:
            say(f"node {number}: joins {' '.join(call.command)}")
            last, code = call.name, _joined(root, call, number)
            say(f"node {number}: left {' '.join(call.command)} with code {code}")
        time.sleep(LOOK_S)
    say(f"node {number}: {root} is not held any more")
    return 0


def _is_finished(root: Path) -> bool:
    try:
        run = Run.open(root)
        return len(finished(run)) == len(steps(run.config))
    except (OaplError, OSError):  # not there yet, or a file server that is away for a moment
        return False


def _joined(root: Path, call: Call, number: int) -> int:
    command = [sys.executable, "-m", "oapl_extras.nodes.node", str(root), call.text(), "--number", str(number)]
    with guarded(command) as node:
        while node.poll() is None and (now := _read_call(root)) and now.name == call.name:
            time.sleep(LOOK_S)
        deadline = time.monotonic() + 5.0  # withdrawn, also at a good end, which the last node to end must not miss
        while node.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    return node.wait()


def _read_call(root: Path) -> Call | None:
    try:
        return Call.of(call_file(root).read_text())
    except (OSError, ValueError):  # withdrawn, or a file server that is away for a moment
        return None


@contextmanager
def announced(root: Path, call: Call) -> Iterator[None]:
    """Announce the call to nodes that others start, as long as it is on."""
    path = call_file(root)
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_text(call.text())
    temporary.rename(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def main() -> int:
    """Return the exit code of torch's launcher."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path, help="run folder, under the path that node 0 has it")
    parser.add_argument("call", nargs="?", help="given by who starts the nodes of one training")
    parser.add_argument("--number", type=int, help="of this node; unset: NODE_RANK or its like")
    parser.add_argument("--announce", action="store_true", help="call the nodes that others start")
    args = parser.parse_args()
    # A scheduler's SIGUSR1 goes to every process of the job: launchers must survive it, the ranks answer it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # so that what was begun is ended in order, and a call withdrawn
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        number = own_number() if args.number is None else args.number
        if args.call is None:
            return serve(args.run_dir.absolute(), number)
        call = Call.of(args.call)
        return join(args.run_dir, call, number, args.announce)
    except OaplError as error:
        sys.stderr.write(f"{ERROR_PREFIX}{error}\n")
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
