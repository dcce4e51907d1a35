import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from headstart.lab.load.family import Member, family, send

# A leader that starts a child in a session of its own and, through a parent that ends at once, an orphan.
LEADER = """
import os, signal, subprocess, sys
sleep = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]
child = subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
between = f"import subprocess; print(subprocess.Popen({sleep!r}, stdout=subprocess.DEVNULL).pid)"
orphan = subprocess.run([sys.executable, "-c", between], stdout=subprocess.PIPE, text=True).stdout
print(child.pid, orphan, flush=True)
signal.pause()
"""


@contextmanager
def leading() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    command = [sys.executable, "-c", LEADER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as leader:
        assert leader.stdout is not None
        pids = [int(word) for word in leader.stdout.readline().split()]
        try:
            yield leader, pids
        finally:
            send(signal.SIGKILL, family(leader.pid))


def test_children_in_sessions_of_their_own_and_orphans_belong_to_it() -> None:
    with leading() as (leader, pids):
        members = [member.pid for member in family(leader.pid)]
        assert members[0] == leader.pid
        assert set(members) == {leader.pid, *pids}
        assert len(pids) == 2
    while family(leader.pid):  # SIGKILL takes its time; the test's timeout is the limit
        time.sleep(0.001)


def test_all_are_stopped_and_go_on() -> None:
    with leading() as (leader, pids):
        processes = [psutil.Process(pid) for pid in (leader.pid, *pids)]
        send(signal.SIGSTOP, family(leader.pid))
        for process in processes:
            while (
                process.status() != psutil.STATUS_STOPPED
            ):  # the kernel takes its time; the test's limit is ours
                pass
        send(signal.SIGCONT, family(leader.pid))
        assert psutil.STATUS_STOPPED not in [process.status() for process in processes]


def test_a_later_process_with_the_same_number_is_left_alone() -> None:
    with leading() as (leader, _):
        (member, *_) = family(leader.pid)
        send(signal.SIGKILL, [Member(member.pid, member.started - 1)])
        assert leader.poll() is None
