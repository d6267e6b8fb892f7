"""An owner that nobody shares its log with: it listens at next to no cost, and does what callers ask of it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import holdfast
from holdfast import Closed, Invalid, Keyring, Log, OutcomeUnknown, Unavailable
from holdfast.errors import Denied
from holdfast.log.local_parts import parts_of
from holdfast.owner import wire
from holdfast.sharing import socket_place
from holdfast.sharing.callers import calling, lone_owner
from holdfast.sharing.callers.calling import open_caller
from holdfast.sharing.frame_reader import receive_one, send
from holdfast.sharing.membership import settings_digests
from holdfast.sharing.opening import open_or_call
from tests.sharing.members import ENVIRON

pytestmark = [pytest.mark.crash, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

SETTINGS = {"segments": {"seal_on_close": False}}
OTHERS = {"segments": {"seal_on_close": False, "rows_max": 77}}
"""A caller has settings of its own."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def open_log(path: Path, **options: object) -> Log:
    return holdfast.open(path, settings=SETTINGS, **options)  # type: ignore[arg-type]


@contextmanager
def owner_process(path: Path, more: str = "") -> Iterator[subprocess.Popen[str]]:
    program = (
        "import sys, holdfast\n"
        f"log = holdfast.open({str(path)!r}, settings={SETTINGS!r})\n"
        f"topic = log.topic('t')\nprint('ready', flush=True)\nsys.stdin.read()\n{more}"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRON
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def threads() -> set[str]:
    return {one.name for one in threading.enumerate()}


# -- what it costs, and what it does --------------------------------------------------------------------------


def test_until_somebody_comes_nothing_that_serves_is_imported(path: Path) -> None:
    program = f"""
import sys, threading, holdfast
from holdfast.sharing.opening import open_or_call
rooms = {{"holdfast.sharing.hosting.host", "holdfast.owner.verbs", "holdfast.sharing.membership", "selectors"}}
log = holdfast.open({str(path)!r})
assert not rooms & {{one for one in sys.modules if one.startswith("holdfast")}}
assert "holdfast-host" not in [one.name for one in threading.enumerate()]
with open_or_call({str(path)!r}) as caller:
    caller.topic("t").append(b"1")
    names = [one.name for one in threading.enumerate()]
    assert "holdfast-host" in names and "holdfast-door" not in names, names
log.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("keyed", [False, True])
def test_a_caller_appends_makes_topics_and_asks_for_verbs(path: Path, keyed: bool) -> None:
    keys = Keyring.generate() if keyed else None
    with open_log(path, keyring=keys) as log, open_or_call(path, OTHERS, keys) as caller:
        assert not caller.is_owner
        assert caller.topic("t", partitions=2).append(b"1", key="a").offset == 0
        with caller.transaction() as both:
            both.append("t", b"2", key="a")
            both.put("stock", "chairs", b"1")
        caller.seal()
        assert sum(one.sealed for one in log.topic("t").marks()) == 2
        assert [record.payload for record in log.topic("t").read()] == [b"1", b"2"]
        assert log.space("stock").get("chairs") == b"1"
        assert caller.retain().removed == ()
        with caller.topic("t").consumer("c", start="first") as consumer:
            assert next(consumer).payload == b"1"


def test_a_caller_without_the_logs_keys_is_refused(path: Path) -> None:
    with open_log(path, keyring=Keyring.generate()):
        for wrong in (None, Keyring.generate()):
            with pytest.raises(Invalid, match="keys"):
                open_or_call(path, SETTINGS, wrong)


def test_callers_find_the_owner_of_a_long_path(path: Path) -> None:
    long = path.parent / ("x" * 110) / "log"
    long.parent.mkdir()
    with open_log(long) as log, open_or_call(long, SETTINGS) as caller:
        assert caller.topic("t").append(b"1").offset == 0
        assert log.topic("t").append(b"2").offset == 1


def test_an_owner_whose_directory_was_moved_leaves_the_socket_of_the_one_in_its_place(path: Path) -> None:
    log = open_log(path)
    path.rename(path.parent / "moved")
    with open_log(path) as other:
        with open_or_call(path, SETTINGS) as caller:
            assert caller.topic("t").append(b"1").offset == 0
        with pytest.raises(Closed, match=r"moved|not where"):
            log.close()
        with open_or_call(path, SETTINGS) as caller:
            assert caller.topic("t").append(b"2").offset == 1
        assert [record.payload for record in other.topic("t").read()] == [b"1", b"2"]


# -- who shares, and who does not -----------------------------------------------------------------------------


def test_a_log_that_is_not_shared_gets_no_members(path: Path) -> None:
    with open_log(path) as log:
        with pytest.raises(Unavailable, match="does not share it") as refused:
            open_log(path, share=True)
        assert "share=True there, too" in refused.value.hint
        digests, session = settings_digests(log.settings), os.urandom(16)
        hello = wire.Hello(wire.PROTOCOL, "x", bytes.fromhex(log.id), session, 1, digests, os.urandom(32))
        with socket_place.connect(path, 5) as sock:  # one that looked before this owner came
            send(sock, wire.frame(wire.HELLO, hello))
            kind, said, _ = receive_one(sock)
        assert kind == wire.REFUSED
        assert isinstance(said.error(), Closed)  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="is open in"), open_log(path), open_log(path):
        pass


@pytest.mark.parametrize("share", [False, True])
def test_a_log_is_not_handed_over_to_a_caller(path: Path, share: bool) -> None:
    with open_log(path, share=share) as log:
        with caller_of(path) as caller:
            with pytest.raises(Denied, match="'own'"):
                parts_of(caller).executions.room()
            with pytest.raises((Denied, Invalid)):
                caller.rotate_key(Keyring.generate())
            assert caller.topic("t").append(b"goes on").offset == 0
        assert log.is_owner


def caller_of(path: Path) -> Log:
    from holdfast.log.open_log import asked_for

    return open_caller(asked_for(path, None, OTHERS, None, None, None, read_only=False))


# -- where nobody can listen ----------------------------------------------------------------------------------


def test_a_log_opens_where_no_socket_can_be_made_and_callers_learn_why(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(directory: Path) -> None:
        raise Unavailable(f"cannot listen in the log's directory path={directory}: Operation not permitted")

    monkeypatch.setattr(socket_place, "listen", refuse)
    monkeypatch.setattr(calling, "JOIN_S", 0.05)
    with open_log(path) as log:
        assert [one.action for one in caplog.records] == ["not_listening"]  # type: ignore[attr-defined]
        assert log.topic("t").append(b"1").offset == 0
        with pytest.raises(Unavailable, match="cannot be asked") as refused:
            open_or_call(path, SETTINGS)
        assert "log output" in refused.value.hint
    with open_log(path), open_log(path, read_only=True):
        assert not (path / "SOCKET").exists()


# -- ends -----------------------------------------------------------------------------------------------------


def test_a_closed_log_leaves_no_socket_and_its_callers_learn_why(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_NO_OWNER_S", 0.05)
    before = threads()
    log = open_log(path)
    assert (path / "SOCKET").exists()
    log.close()
    assert "holdfast-door" not in threads() - before
    assert not (path / "SOCKET").exists()
    log = open_log(path)
    caller = open_or_call(path, SETTINGS)
    topic = caller.topic("t")
    assert topic.append(b"1").offset == 0
    log.close()
    assert not (path / "SOCKET").exists()
    with pytest.raises((Closed, OutcomeUnknown)):
        topic.append(b"2")
    with pytest.raises((Closed, Unavailable)):
        caller.seal()
    with pytest.raises(Closed):
        caller.close()
    with open_log(path) as log:
        assert [record.payload for record in log.topic("t").read()] == [b"1"]


def test_a_caller_goes_on_with_the_next_owner_and_what_it_sent_is_written_once(path: Path) -> None:
    with owner_process(path) as first, open_or_call(path, SETTINGS) as caller:
        topic = caller.topic("t")
        topic.append(b"1")
        first.kill()
        first.wait()
        assert (path / "SOCKET").exists()  # it died: the next owner replaces it
        tickets = [topic.submit(b"%d" % number) for number in range(2, 50)]
        with open_log(path) as log:
            assert [ticket.result(30).offset for ticket in tickets] == list(range(1, 49))
            assert len(list(log.topic("t").read())) == 49
            caller.close()


def test_a_process_that_ends_with_an_open_log_and_callers_ends_and_leaves_no_socket(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "_NO_OWNER_S", 0.05)
    with owner_process(path) as owner, open_or_call(path, SETTINGS) as caller:
        assert caller.topic("t").append(b"1").offset == 0
        assert owner.stdin is not None
        owner.stdin.close()
        assert owner.wait(30) == 0
        assert not (path / "SOCKET").exists()


def test_a_log_that_is_forgotten_ends_also_when_it_had_callers(path: Path) -> None:
    log = open_log(path)
    gone = weakref.ref(log)
    with open_or_call(path, SETTINGS) as caller:
        caller.topic("t").append(b"1")
    with pytest.warns(ResourceWarning, match="unclosed log"):
        del log
        gc.collect()
    assert gone() is None
    open_log(path).close()


# -- forks ----------------------------------------------------------------------------------------------------


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    return pid


def sockets() -> set[str]:
    """What this process has open of sockets, as Linux names them."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {one for one in found if one.startswith("socket:")}


def check_ended(pid: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("served", [False, True])
def test_a_child_neither_answers_nor_keeps_the_socket(path: Path, served: bool) -> None:
    before = sockets()
    log = open_log(path)
    caller = open_or_call(path, SETTINGS) if served else None
    if caller is not None:
        assert caller.topic("t").append(b"1").offset == 0
    read, write = os.pipe()
    begun, begins = os.pipe()

    def work() -> None:
        os.close(write)
        os.write(begins, b"x")
        assert "holdfast-host" not in threads()
        assert sockets() <= before
        with pytest.raises(Closed):
            log.topic("t").append(b"child")
        os.read(read, 1)  # until the parent has seen all it wants to see
        with open_log(path.parent / "own") as own, open_or_call(path.parent / "own", SETTINGS) as other:
            assert other.topic("t").append(b"1").offset == own.topic("t").marks()[0].durable - 1

    pid = forked(work)
    assert os.read(begun, 1)  # until then it may have the parent's lock
    if caller is not None:
        assert caller.topic("t").append(b"2").offset == 1  # the parent goes on with whom it had
        caller.close()
    with open_or_call(path, SETTINGS) as another:
        another.topic("t").append(b"3")
    log.close()
    with pytest.raises(OSError, match=r"No such file|refused"):
        socket_place.connect(path, 1)
    open_log(path).close()
    os.close(write)
    check_ended(pid)


def test_a_fork_waits_until_the_host_is_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child would else inherit modules that are half imported, and wait for them forever."""
    making, go_on, made = threading.Event(), threading.Event(), lone_owner.LoneOwner._serve

    def slowly(self: lone_owner.LoneOwner, log: Log) -> None:
        making.set()
        assert go_on.wait(30)
        made(self, log)

    monkeypatch.setattr(lone_owner.LoneOwner, "_serve", slowly)
    with open_log(path) as log:
        with socket_place.connect(path, 5):
            making.wait(30)
            shared = parts_of(log).lifetime.shared
            assert isinstance(shared, lone_owner.LoneOwner)
            threading.Timer(0.05, go_on.set).start()
            check_ended(forked(lambda: None))
            assert shared._host is not None
        with open_or_call(path, SETTINGS) as caller:
            assert caller.topic("t").append(b"1").offset == 0
