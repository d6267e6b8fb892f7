"""What other processes ask of a log's executions: the owner does it at once, and once, whatever dies in between."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import Keyring
from holdfast.errors import Invalid, NotFound, PromiseRejected, Unavailable
from holdfast.execution.journal.entries import SignalSent
from holdfast.execution.waits.promise_token import Token
from holdfast.execution.work import answered_requests
from holdfast.execution.work.execution_request import ExecutionRequest
from holdfast.log.execution_requests import request
from holdfast.log.local_parts import parts_of
from holdfast.sharing.callers import calling
from holdfast.sharing.opening import open_or_call
from holdfast.testing import FaultyDisk, ManualClock
from holdfast.testing.fault import Fault
from tests.executions.test_signals_sent import signal
from tests.executions.waiting_room import ID, Aside, open_log, promise_at, room_of, running, settings

pytestmark = pytest.mark.disk


@pytest.fixture(params=[False, True], ids=["plain", "keyed"])
def keys(request) -> Keyring | None:
    return Keyring.generate() if request.param else None


def reading(path: Path, keys: Keyring | None = None):
    return holdfast.open(path, settings=settings(), keyring=keys, read_only=True)


def sent(log) -> list[object]:
    """The values of all signals that were sent, in order."""
    blocks = room_of(log).store.load(ID)[0]
    found = [entry for block in blocks for entry in block() if isinstance(entry, SignalSent)]
    return [msgspec.msgpack.decode(entry.payload) for entry in found]


def a_signal(value: object = 1, *, at_us: int | None = None, number: bytes | None = None) -> ExecutionRequest:
    fields = {"id": str(ID), "name": "paid", "payload": msgspec.msgpack.encode(value), "signal": str(ID)}
    return ExecutionRequest(number or os.urandom(16), at_us or holdfast.clock.SystemClock().now_us(), "signal", fields)


def begun(path: Path, keys: Keyring | None = None, **options):
    """A log with one execution."""
    with open_log(path, keyring=keys, **options) as log, running(log):
        pass


# -- what it is for -------------------------------------------------------------------------------------------


def test_a_process_that_reads_the_log_settles_promises_and_sends_signals_through_its_owner(tmp_path, keys):
    with open_log(tmp_path / "log", keyring=keys) as log, running(log) as live:
        promise = promise_at(log, live)
        token = promise.token()
        waiter = Aside(promise.result)
        with reading(tmp_path / "log", keys) as other:
            assert other.executions.resolve(token, {"answer": 42}) is True
            assert other.executions.resolve(token, 1) is False
            assert other.executions.signal(ID, "paid", 7) is True
        assert waiter.result() == {"answer": 42}
        assert signal(log, live).result() == 7


def test_errors_come_back_as_what_they_are(tmp_path, keys):
    with open_log(tmp_path / "log", keyring=keys) as log, running(log) as live:
        promise = promise_at(log, live)
        promise.token()
        with reading(tmp_path / "log", keys) as other:
            with pytest.raises(PromiseRejected) as caught:
                other.executions.resolve(Token(ID, promise.id.bytes, bytes(32)).text(), 1)
            assert caught.value.hint
            with pytest.raises(NotFound):
                other.executions.signal(promise.id, "paid")
            with pytest.raises(Invalid, match="nothing that can be asked for"):
                other._executions.ask("frobnicate", {})
            with pytest.raises(Invalid, match="nothing that can be asked for"):
                other._executions.ask("signal", {})


def test_a_request_is_done_here_when_nobody_owns_the_log_and_there_when_somebody_does(tmp_path, keys):
    begun(tmp_path / "log", keys)
    fields = {"id": str(ID), "name": "paid", "payload": msgspec.msgpack.encode(5), "signal": str(ID)}

    def ask(**changed):
        return request(lambda: open_or_call(tmp_path / "log", settings(), keys), "signal", {**fields, **changed})

    assert ask() is True
    with open_log(tmp_path / "log", keyring=keys) as log:
        assert ask() is False
        assert ask(signal=str(Token(ID, ID.bytes, b"").execution).replace("8", "9")) is True
        assert sent(log) == [5, 5]


def test_an_owner_is_asked_though_nobody_there_uses_executions_and_has_no_thread_for_it_before(tmp_path):
    begun(tmp_path / "log")
    with open_log(tmp_path / "log") as log:
        assert log._executions._room is log._executions._background is None
        with reading(tmp_path / "log") as other:
            assert other.executions.signal(ID, "paid", 7)
        assert sent(log) == [7]


def test_somebody_who_reads_a_log_that_nobody_owns_learns_so(tmp_path):
    begun(tmp_path / "log")
    with reading(tmp_path / "log") as other, pytest.raises(Unavailable, match="nobody owns"):
        other.executions.signal(ID, "paid", 1)


def test_a_reader_of_a_shared_log_asks_its_owner_whatever_settings_it_has(tmp_path):
    with open_log(tmp_path / "log", share=True) as log, holdfast.open(tmp_path / "log", read_only=True) as other:
        started = other.executions.start("import")
        assert [one.id for one in log.executions.list()] == [started]


# -- exactly once ---------------------------------------------------------------------------------------------


def test_a_request_that_is_asked_again_is_done_once_also_by_the_next_owner(tmp_path, keys):
    begun(tmp_path / "log", keys)
    one = a_signal()
    for _ in range(3):
        with open_log(tmp_path / "log", keyring=keys) as log:
            with open_or_call(tmp_path / "log", settings(), keys) as caller:
                assert parts_of(caller).executions.bring(one, 30).result() is True
            log.executions.signal(ID, "paid", "between")
    with open_log(tmp_path / "log", keyring=keys) as log:
        assert sent(log) == [1, "between", "between", "between"]


def test_what_is_not_idempotent_by_itself_is_done_once_as_well(tmp_path, monkeypatch):
    """The note in the space is what counts, not the request's own good manners."""
    begun(tmp_path / "log")
    with open_log(tmp_path / "log") as log:
        done = []
        requests = room_of(log).requests
        monkeypatch.setattr(requests, "_do", lambda action, fields: done.append(action) or len(done))
        one = a_signal()
        assert [requests.apply(one).result() for _ in range(3)] == [1, 1, 1]
        assert len(done) == 1


def test_old_requests_cannot_be_asked_again_when_they_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(answered_requests, "KEPT", 3)
    begun(tmp_path / "log")
    clock = ManualClock()
    with open_log(tmp_path / "log", clock=clock) as log:
        requests, done = room_of(log).requests, []
        monkeypatch.setattr(requests, "_do", lambda action, fields: done.append(action))
        asked = [a_signal(at_us=clock.now_us() + number, number=bytes([number] * 16)) for number in range(6)]
        for one in asked:
            requests.apply(one).result()
        for one in asked[3:]:
            requests.apply(one).result()
        for one in asked[:3]:
            with pytest.raises(Invalid, match="too old"):
                requests.apply(one).result()
        assert len(done) == 6
    with open_log(tmp_path / "log", clock=clock) as log:  # also by an owner who was not there
        with pytest.raises(Invalid, match="too old"):
            room_of(log).requests.apply(asked[1]).result()
        clock.advance(86_401)
        with pytest.raises(Invalid, match="too old"):
            room_of(log).requests.apply(a_signal(at_us=asked[5].at_us, number=bytes(16))).result()
        assert len(log._journal.spaces.load("execution-requests")) <= 4


# -- deaths ---------------------------------------------------------------------------------------------------


def steps(path: Path, keys: Keyring | None) -> int:
    """How many steps on the disk there are while one request is done."""
    begun(path, keys)
    with FaultyDisk(path) as disk:
        with open_log(path, keyring=keys) as log:
            room_of(log).requests.apply(a_signal()).result()
        return len(disk.log)


VICTIM = """
import os, sys
from pathlib import Path
from holdfast import Keyring
from holdfast.testing import FaultyDisk
from tests.executions.waiting_room import open_log

path, number, reference = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def die(step, op, name):
    if step == number:
        os.kill(os.getpid(), 9)
disk = FaultyDisk(path)
disk.on_step = die
with disk:
    with open_log(path, keyring=Keyring.from_file(reference) if reference else None) as log:
        print("open", flush=True)
        sys.stdin.read()
"""


@pytest.mark.crash
@pytest.mark.parametrize("keyed", [False, True])
def test_an_owner_that_is_killed_at_any_step_does_a_request_once(tmp_path, keyed, some, monkeypatch):
    """While it opens, in the middle of the work, between that and the note, after it: the caller goes on."""
    monkeypatch.setattr(calling, "_NO_OWNER_S", 0.02)
    keys, reference = None, ""
    if keyed:
        keys, reference = Keyring.generate(), str(tmp_path / "keys")
        keys.save(reference)
    count = steps(tmp_path / "rehearsal", keys)
    assert count > 10
    for number in some(list(range(1, count + 1)), 2):
        path = tmp_path / f"log{number}"
        begun(path, keys)
        command = [sys.executable, "-c", VICTIM, str(path), str(number), reference]
        with subprocess.Popen(
            command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as victim:
            victim.stdout.readline()
            # It may hear that it was done before: by this very request, before the death.
            fields = a_signal().fields
            done = request(lambda path=path: open_or_call(path, settings(), keys), "signal", fields)
            assert done in (True, False)
            victim.stdin.close()
        assert victim.returncode in (0, -9)
        with open_log(path, keyring=keys) as log:
            assert sent(log) == [1]


def test_a_disk_that_fails_at_any_step_loses_no_request_and_does_none_twice(tmp_path, some, caplog):
    caplog.set_level("CRITICAL", "holdfast")
    count = steps(tmp_path / "rehearsal", None)
    for number in some(list(range(1, count + 1)), 8):
        path = tmp_path / f"log{number}"
        begun(path)
        one = a_signal()
        with FaultyDisk(path, fail=Fault(number, "eio")) as disk:
            try:
                with open_log(path) as log:
                    room_of(log).requests.apply(one)
            except (holdfast.HoldfastError, OSError):
                pass
            assert disk.log
        with open_log(path) as log:
            assert room_of(log).requests.apply(one).result() in (True, False)
            assert sent(log) == [1]
