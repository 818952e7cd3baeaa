"""Processes of tests end with them, also where an assertion fails."""

import sys

import psutil
import pytest

from tests.processes import end_orphans, kill_alone, started, wait_until

PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1).wait()"


def test_a_process_and_what_it_started_do_not_outlive_a_failed_assertion() -> None:
    found = list[psutil.Process]()
    with pytest.raises(AssertionError, match="not so"), started([sys.executable, "-c", PARENT]) as process:
        one = psutil.Process(process.pid)
        wait_until(lambda: bool(one.children()))
        found += [one, *one.children()]
        raise AssertionError("not so")
    assert len(found) == 2
    assert not psutil.wait_procs(found, timeout=10)[1]


def test_what_is_below_a_process_that_is_killed_alone_is_left_until_the_test_ends() -> None:
    with started([sys.executable, "-c", PARENT.replace("input()", "import time; time.sleep(60)")]) as process:
        wait_until(lambda: bool(psutil.Process(process.pid).children()))
        (child,) = psutil.Process(process.pid).children()
        kill_alone(process)
    assert child.is_running() and child.status() != psutil.STATUS_ZOMBIE, "as the next start would find it"
    end_orphans()
    assert not psutil.wait_procs([child], timeout=10)[1]
