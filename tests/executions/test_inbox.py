"""Messages of other processes: applied once, whatever dies in between; and nothing else in that folder is believed."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import Keyring
from holdfast.errors import Full, Invalid, NotFound, OutcomeUnknown, PromiseRejected, Unavailable
from holdfast.execution.journal.entries import SignalSent
from holdfast.execution.waits import inbox as inbox_module
from holdfast.execution.waits.inbox_folder import InboxFolder
from holdfast.execution.waits.inbox_message import MESSAGE, Message, encode, file_name, message
from holdfast.execution.waits.promise_token import Token
from holdfast.log.execution_requests import request
from holdfast.testing import FaultyDisk, ManualClock
from holdfast.testing.fault import Fault
from tests.executions.test_signals_sent import signal
from tests.executions.waiting_room import ID, Aside, open_log, promise_at, room_of, running, settings, wait_until

pytestmark = pytest.mark.disk

MOST = 1_000_000


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


def a_signal(value: object = 1, *, at_us: int | None = None, random: bytes | None = None) -> Message:
    fields = {"id": str(ID), "name": "paid", "payload": msgspec.msgpack.encode(value), "signal": str(ID)}
    return message(at_us or holdfast.clock.SystemClock().now_us(), random or os.urandom(16), "signal", fields)


def begun(path: Path, keys: Keyring | None = None, **options):
    """A log with one execution, its room closed again: nobody takes messages up."""
    log = open_log(path, keyring=keys, **options)
    with running(log):
        pass
    log.close()


def leave(path: Path, one: Message, keys: Keyring | None = None, name: str = "", content: bytes | None = None) -> Path:
    """A message's file, as its sender leaves it, or changed."""
    folder = path / "inbox"
    folder.mkdir(mode=0o700, exist_ok=True)
    if content is None:
        with reading(path, keys) as log:
            content = encode(one, log._journal.message_keys)
    place = folder / (name or file_name(one))
    place.write_bytes(content)
    place.chmod(0o600)
    return place


def is_taken(place: Path) -> bool:
    return not os.path.lexists(place)


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
        assert list((tmp_path / "log/inbox").iterdir()) == []


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
            with pytest.raises(Invalid, match="no such request"):
                other._executions.ask("frobnicate", {})
            with pytest.raises(Unavailable, match="KeyError"):
                other._executions.ask("signal", {})


def test_a_request_is_done_here_when_nobody_owns_the_log_and_there_when_somebody_does(tmp_path, keys):
    begun(tmp_path / "log", keys)
    fields = {"id": str(ID), "name": "paid", "payload": msgspec.msgpack.encode(5), "signal": str(ID)}

    def ask(**changed):
        own = lambda: open_log(tmp_path / "log", keyring=keys)  # noqa: E731
        return request(tmp_path / "log", own, lambda: reading(tmp_path / "log", keys), "signal", {**fields, **changed})

    assert ask() is True
    assert not (tmp_path / "log/inbox").exists()
    with open_log(tmp_path / "log", keyring=keys) as log:
        assert ask() is False
        assert ask(signal=str(Token(ID, ID.bytes, b"").execution).replace("8", "9")) is True
        assert sent(log) == [5, 5]


def test_an_owner_takes_messages_up_though_nobody_there_asked_for_executions(tmp_path):
    begun(tmp_path / "log")
    with open_log(tmp_path / "log") as log:
        assert log._executions._room is None
        with reading(tmp_path / "log") as other:
            assert other.executions.signal(ID, "paid", 7)
        assert sent(log) == [7]


def test_a_log_that_has_no_executions_looks_for_no_messages(tmp_path):
    with open_log(tmp_path / "log") as log:
        log.topic("events").append(b"1")
    with open_log(tmp_path / "log") as log:
        assert log._executions._background is None


def test_somebody_who_reads_a_log_that_nobody_owns_is_told_so(tmp_path):
    begun(tmp_path / "log")
    with reading(tmp_path / "log") as other, pytest.raises(Unavailable, match="nobody owns"):
        other.executions.signal(ID, "paid", 1)


def test_a_message_whose_answer_does_not_come_in_time_is_applied_all_the_same(tmp_path):
    begun(tmp_path / "log")
    with open_log(tmp_path / "log", executions={"poll_interval_ms": 3_600_000}) as log:
        wait_until(lambda: log._executions._background._pause() > 1000)
        with reading(tmp_path / "log") as other, pytest.raises(OutcomeUnknown, match="inbox"):
            other._executions.ask("signal", a_signal().fields, timeout=0.05)
    with open_log(tmp_path / "log") as log:
        wait_until(lambda: not list((tmp_path / "log/inbox").glob("*.message")))
        assert sent(log) == [1]


# -- exactly once ---------------------------------------------------------------------------------------------


def test_a_message_that_lies_there_twice_is_applied_once(tmp_path, keys):
    begun(tmp_path / "log", keys)
    one = a_signal()
    for _ in range(3):
        place = leave(tmp_path / "log", one, keys)
        copy = place.read_bytes()
        with open_log(tmp_path / "log", keyring=keys) as log:
            wait_until(partial(is_taken, place))
            log.executions.signal(ID, "paid", "between")
    leave(tmp_path / "log", one, keys, content=copy)  # put back by somebody who kept it
    with open_log(tmp_path / "log", keyring=keys) as log:
        wait_until(lambda: is_taken(place))
        assert sent(log) == [1, "between", "between", "between"]


def test_what_is_not_idempotent_by_itself_is_done_once_as_well(tmp_path, monkeypatch):
    """The note in the space is what counts, not the request's own good manners."""
    begun(tmp_path / "log")
    with open_log(tmp_path / "log", executions={"poll_interval_ms": 3_600_000}) as log:
        done = []
        box = room_of(log).inbox
        monkeypatch.setattr(box, "_do", lambda action, fields: done.append(action) or len(done))
        one = a_signal()
        assert [box.apply(one).result() for _ in range(3)] == [1, 1, 1]
        assert len(done) == 1


def test_old_messages_cannot_be_put_back_when_they_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(inbox_module, "KEPT", 3)
    begun(tmp_path / "log")
    clock = ManualClock()
    with open_log(tmp_path / "log", clock=clock) as log:
        box, done = room_of(log).inbox, []
        monkeypatch.setattr(box, "_do", lambda action, fields: done.append(action))
        messages = [a_signal(at_us=clock.now_us() + number, random=bytes([number] * 16)) for number in range(6)]
        for one in messages:
            box.apply(one).result()
        for one in messages[3:]:
            box.apply(one).result()
        for one in messages[:3]:
            with pytest.raises(Invalid, match="too old"):
                box.apply(one).result()
        assert len(done) == 6
    with open_log(tmp_path / "log", clock=clock) as log:  # also by an owner who was not there
        with pytest.raises(Invalid, match="too old"):
            room_of(log).inbox.apply(messages[1]).result()
        clock.advance(86_401)
        with pytest.raises(Invalid, match="too old"):
            room_of(log).inbox.apply(a_signal(at_us=messages[5].at_us, random=bytes(16))).result()
        assert len(log._journal.spaces.load("execution-inbox")) <= 4


# -- what is not believed -------------------------------------------------------------------------------------


@pytest.fixture
def quiet(caplog):
    caplog.set_level(logging.CRITICAL + 1, "holdfast.executions")


def others_are_taken_up(path: Path, keys: Keyring | None, *hostile: Path) -> None:
    """The owner takes the hostile ones away, and an honest message behind them is applied."""
    good = leave(path, a_signal("good", at_us=holdfast.clock.SystemClock().now_us() + 60_000_000), keys)
    with open_log(path, keyring=keys) as log:
        wait_until(lambda: is_taken(good) and all(map(is_taken, hostile)))
        assert sent(log) == ["good"]


def test_forged_messages_are_taken_away_unread_in_a_log_with_keys(tmp_path, caplog):
    keys = Keyring.generate()
    begun(tmp_path / "log", keys)
    begun(tmp_path / "plain")
    begun(tmp_path / "other", Keyring.generate())
    one, two, three = a_signal("evil"), a_signal("evil"), a_signal("evil")
    with reading(tmp_path / "plain") as plain:
        unsigned = encode(one, plain._journal.message_keys)
    real = leave(tmp_path / "log", two, keys)
    body = real.read_bytes()
    flipped = body[:-20] + bytes([body[-20] ^ 1]) + body[-19:]
    hostile = [
        leave(tmp_path / "log", one, content=unsigned),
        leave(tmp_path / "log", two, content=flipped),
        leave(tmp_path / "log", three, content=body),  # under another id
        leave(tmp_path / "log", a_signal("evil"), content=body[:50]),
    ]
    with reading(tmp_path / "log", keys) as log:
        own = log._journal.message_keys
        answer = encode(holdfast.execution.waits.inbox_message.answer(one, True), own)
    hostile.append(leave(tmp_path / "log", a_signal("evil"), content=answer))
    # Of another log with the same keys: ids of logs are bound.
    begun(tmp_path / "twin", keys)
    with reading(tmp_path / "twin", keys) as twin:
        four = a_signal("evil")
        hostile.append(leave(tmp_path / "log", four, content=encode(four, twin._journal.message_keys)))
    others_are_taken_up(tmp_path / "log", keys, *hostile)
    assert "evil" not in caplog.text
    assert sum("is no message" in line for line in caplog.messages) == len(hostile)


def test_forged_answers_are_not_believed_in_a_log_with_keys(tmp_path):
    keys = Keyring.generate()
    begun(tmp_path / "log", keys)
    begun(tmp_path / "plain")
    one = a_signal()
    with reading(tmp_path / "plain") as plain:
        forged = encode(holdfast.execution.waits.inbox_message.answer(one, "forged"), plain._journal.message_keys)
    leave(tmp_path / "log", one, keys)
    leave(tmp_path / "log", one, keys, name=file_name(one, ".answer"), content=forged)
    with reading(tmp_path / "log", keys) as other:
        assert other._executions._outbox()._found(one) is None
        with open_log(tmp_path / "log", keyring=keys):
            assert other._executions.leave(one, 30).result() is True


def test_nothing_of_a_message_can_be_read_on_disk_in_a_log_with_keys(tmp_path):
    keys = Keyring.generate()
    begun(tmp_path / "log", keys)
    place = leave(tmp_path / "log", a_signal("very secret"), keys)
    assert b"very secret" not in place.read_bytes()
    assert b"paid" not in place.read_bytes()
    begun(tmp_path / "plain")
    assert b"very secret" in leave(tmp_path / "plain", a_signal("very secret")).read_bytes()


def test_a_file_that_is_too_large_is_taken_away_unread(tmp_path, quiet):
    begun(tmp_path / "log")
    place = leave(tmp_path / "log", a_signal(), content=b"hfm1")
    os.truncate(place, 5 * 2**30)
    others_are_taken_up(tmp_path / "log", None, place)


def test_links_pipes_and_sockets_are_taken_away_and_what_they_lead_to_stays(tmp_path, quiet):
    begun(tmp_path / "log")
    target = tmp_path / "target"
    with reading(tmp_path / "log") as log:
        one = a_signal("evil")
        target.write_bytes(encode(one, log._journal.message_keys))
    target.chmod(0o600)
    folder = tmp_path / "log/inbox"
    folder.mkdir(mode=0o700)
    link, pipe = folder / file_name(one), folder / file_name(a_signal())
    link.symlink_to(target)
    os.mkfifo(pipe, 0o600)
    others_are_taken_up(tmp_path / "log", None, link, pipe)
    assert target.exists()


def test_a_folder_in_the_place_of_a_message_harms_nobody(tmp_path, quiet):
    begun(tmp_path / "log")
    (tmp_path / "log/inbox").mkdir(mode=0o700)
    (tmp_path / "log/inbox" / file_name(a_signal())).mkdir()
    others_are_taken_up(tmp_path / "log", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_other_users_are_taken_away(tmp_path, quiet):
    begun(tmp_path / "log")
    place = leave(tmp_path / "log", a_signal("evil"))
    os.chown(place, 12345, -1)
    others_are_taken_up(tmp_path / "log", None, place)


def test_files_that_others_may_write_to_are_taken_away(tmp_path, quiet):
    begun(tmp_path / "log")
    place = leave(tmp_path / "log", a_signal("evil"))
    place.chmod(0o622)
    others_are_taken_up(tmp_path / "log", None, place)


@pytest.mark.parametrize("how", ["writable", "file"])
def test_a_folder_that_others_may_write_to_or_that_is_none_is_not_used(tmp_path, how, caplog):
    begun(tmp_path / "log")
    place = leave(tmp_path / "log", a_signal("evil"))
    folder = tmp_path / "log/inbox"
    if how == "writable":
        folder.chmod(0o777)
    else:
        folder.rename(tmp_path / "aside")
        folder.write_bytes(b"")
        assert not InboxFolder.of(tmp_path / "log", MOST).has_messages()
    with open_log(tmp_path / "log") as log:
        room_of(log).inbox.tick()
        wait_until(lambda: "inbox is not used" in caplog.text)
        room_of(log).inbox.tick()
        assert sent(log) == []
        assert sum("inbox is not used" in line for line in caplog.messages) == 1
        with reading(tmp_path / "log") as other, pytest.raises((Invalid, Unavailable)):
            other.executions.signal(ID, "paid", 1)
    assert how != "writable" or place.exists()


def test_files_and_folder_are_for_the_logs_user_alone(tmp_path):
    begun(tmp_path / "log")
    with open_log(tmp_path / "log", executions={"poll_interval_ms": 3_600_000}) as log:
        wait_until(lambda: log._executions._background._pause() > 1000)
        with reading(tmp_path / "log") as other, pytest.raises(OutcomeUnknown):
            other._executions.ask("signal", a_signal().fields, timeout=0)
        folder = tmp_path / "log/inbox"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (place,) = folder.iterdir()
        assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_no_more_messages_lie_there_than_may(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.execution.waits.inbox_folder.MESSAGES_MAX", 2)
    folder = InboxFolder.of(tmp_path, MOST)
    folder.make()
    for number in range(2):
        folder.check_room()
        folder.write(f"{number}{MESSAGE}", b"", "t")
    with pytest.raises(Full):
        folder.check_room()
    with pytest.raises(Invalid, match="too large"):
        folder.write(f"3{MESSAGE}", bytes(MOST * 2), "t")


def test_many_thousand_messages_and_names_of_others_are_worked_through(tmp_path, quiet):
    """Three times what one look takes, with rubbish among them."""
    begun(tmp_path / "log")
    folder = tmp_path / "log/inbox"
    folder.mkdir(mode=0o700)
    for number in range(300):
        (folder / f"rubbish {number}").write_bytes(b"x")
        place = folder / file_name(a_signal(at_us=2**50 + number))
        place.write_bytes(os.urandom(100))
        place.chmod(0o600)
    others_are_taken_up(tmp_path / "log", None)
    assert len(list(folder.glob("*.message"))) == 0


def test_answers_that_nobody_fetched_and_unfinished_files_go_after_a_while(tmp_path):
    begun(tmp_path / "log")
    folder = tmp_path / "log/inbox"
    folder.mkdir(mode=0o700)
    now = holdfast.clock.SystemClock().now_us()
    old, new = a_signal(at_us=now - 3_700_000_000), a_signal(at_us=now)
    gone = [folder / file_name(old, ".answer"), folder / f"{file_name(old)}.abcd.tmp"]
    kept = [folder / file_name(new, ".answer"), folder / f"{file_name(new)}.abcd.tmp", folder / "note.answer"]
    for place in gone + kept:
        place.write_bytes(b"x")
    with open_log(tmp_path / "log") as log:
        room_of(log)
        wait_until(lambda: not any(place.exists() for place in gone))
    assert all(place.exists() for place in kept)


# -- deaths ---------------------------------------------------------------------------------------------------


def moments(path: Path, keys: Keyring | None) -> list[tuple[int, str, str]]:
    """Every step on the disk while one message is taken up."""
    begun(path, keys)
    place = leave(path, a_signal(), keys)
    with FaultyDisk(path) as disk:
        with open_log(path, keyring=keys) as log:
            room_of(log)
            wait_until(lambda: is_taken(place))
        return [(step.number, step.op, step.name) for step in disk.log]


VICTIM = """
import os, sys
from pathlib import Path
from holdfast import Keyring
from holdfast.testing import FaultyDisk
from tests.executions.waiting_room import open_log, room_of, wait_until

path, number, reference = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def die(step, op, name):
    if step == number:
        os.kill(os.getpid(), 9)
disk = FaultyDisk(path)
disk.on_step = die
with disk:
    with open_log(path, keyring=Keyring.from_file(reference) if reference else None) as log:
        room_of(log)
        wait_until(lambda: not list((path / "inbox").glob("*.message")))
"""


@pytest.mark.crash
@pytest.mark.parametrize("keyed", [False, True])
def test_an_owner_that_is_killed_at_any_step_applies_a_message_once(tmp_path, keyed, some):
    """Between the file and the commit, between the commit and the answer, between the answer and the end."""
    keys, reference = None, ""
    if keyed:
        keys, reference = Keyring.generate(), str(tmp_path / "keys")
        keys.save(reference)
    count = len(moments(tmp_path / "rehearsal", keys))
    assert count > 10
    killed = 0
    for number in some(list(range(1, count + 1)), 2):
        path = tmp_path / f"log{number}"
        begun(path, keys)
        one = a_signal()
        leave(path, one, keys)
        done = subprocess.run(
            [sys.executable, "-c", VICTIM, str(path), str(number), reference],
            cwd=Path(__file__).parents[2],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, -9), done.stderr
        killed += done.returncode == -9
        with open_log(path, keyring=keys) as log, reading(path, keys) as other:
            room_of(log)
            # The sender asks again. It may hear that it was done before: by this very message, before the death.
            assert other._executions.leave(one, 30).result() in (True, False)
            assert sent(log) == [1]
    assert killed


def test_a_disk_that_fails_at_any_step_loses_no_message_and_applies_none_twice(tmp_path, some, quiet):
    count = len(moments(tmp_path / "rehearsal", None))
    for number in some(list(range(1, count + 1)), 8):
        path = tmp_path / f"log{number}"
        begun(path)
        one = a_signal()
        leave(path, one)
        with FaultyDisk(path, fail=Fault(number, "eio")) as disk:
            try:
                with open_log(path) as log:
                    room_of(log).inbox.tick()
            except (holdfast.HoldfastError, OSError):
                pass
            assert disk.log
        with open_log(path) as log, reading(path) as other:
            room_of(log)
            assert other._executions.leave(one, 30).result() in (True, False)
            assert sent(log) == [1]


def test_a_sender_whose_owner_dies_does_it_itself_and_it_counts_once(tmp_path):
    path = tmp_path / "log"
    begun(path)
    one = a_signal()
    leave(path, one)
    with open_log(path) as log:  # the sender, who owns it now; the message that it left is there as well
        assert log._executions.apply(one).result() is True
        wait_until(lambda: not list((path / "inbox").glob("*.message")))
        assert sent(log) == [1]
