import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from headstart.errors import EngineError
from headstart.lab.load.local import running, running_server, serve_command

# Stands for a server: says where it is, and its process id in a file, then stays until SIGTERM.
SERVER = """
import os, pathlib, signal, sys, time
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
print("INFO loading", file=sys.stderr)
print("  address   http://127.0.0.1:4321   ", flush=True)
print("x" * 1_000_000, flush=True)  # more than a pipe holds
signal.pause()
"""


def server(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_it_runs_inside_the_block_only(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with running_server(server(SERVER, pid_file)) as url:
        assert url == "http://127.0.0.1:4321"
        pid = int(pid_file.read_text())
        assert is_running(pid)
    assert not is_running(pid)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_it_ends_with_the_block_whatever_happens(tmp_path: Path, error: type[BaseException]) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(error), running_server(server(SERVER, pid_file)):
        raise error
    assert not is_running(int(pid_file.read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_us_ends_it_too(tmp_path: Path, number: signal.Signals) -> None:
    pid_file = tmp_path / "pid"
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as left, running_server(server(SERVER, pid_file)):
        signal.raise_signal(number)
    assert left.value.code == 128 + number
    assert not is_running(int(pid_file.read_text()))
    assert signal.getsignal(number) == before


def test_what_it_leaves_behind_is_killed(tmp_path: Path) -> None:
    # The server has a child that ignores SIGTERM and holds the output open, as a hung engine would.
    code = """
import os, pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if child := os.fork():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pathlib.Path(sys.argv[1]).write_text(str(child))
    print("http://127.0.0.1:4321", flush=True)
signal.pause()
"""
    pid_file = tmp_path / "pid"
    with running_server(server(code, pid_file)):
        pid = int(pid_file.read_text())
    while is_running(pid):  # SIGKILL was sent, and takes its time; the test's timeout is the limit
        time.sleep(0.01)


def test_it_ends_before_it_serves() -> None:
    code = "print('some log line'); raise SystemExit('headstart serve: there is no model')"
    with (
        pytest.raises(EngineError, match=r"the server ended before it served: (.|\n)*there is no model"),
        running_server(server(code)),
    ):
        pytest.fail("the block must not be entered")


def test_it_never_says_where_it_is() -> None:
    with (
        pytest.raises(EngineError, match=r"did not serve within 0\.1 seconds: \(it said nothing\)"),
        running_server(server("import signal; signal.pause()"), start_timeout=0.1),
    ):
        pytest.fail("the block must not be entered")


def test_it_does_not_inherit_keys_that_are_for_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_API_KEY", "canary")
    monkeypatch.setenv("HEADSTART_TEST", "passed on")
    source = "import os; print(os.environ['HEADSTART_TEST'], os.environ.get('HEADSTART_API_KEY'))"
    with (
        running([sys.executable, "-c", source]) as process,
        pytest.raises(EngineError, match="passed on None"),
    ):
        process.address(timeout=60)


def test_it_can_be_used_outside_the_main_thread(tmp_path: Path) -> None:
    urls = []

    def use() -> None:
        with running_server(server(SERVER, tmp_path / "pid")) as url:
            urls.append(url)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert urls == ["http://127.0.0.1:4321"]


def test_the_command_is_headstarts_own() -> None:
    command = serve_command("some-model", "--no-enable-prefix-caching")
    assert command[:5] == [sys.executable, "-m", "headstart", "serve", "some-model"]
    assert command[5:] == ["--host", "127.0.0.1", "--port", "0", "--no-enable-prefix-caching"]
