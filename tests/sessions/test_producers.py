"""Producers with sequence numbers of their own: each number is written once, whatever is restarted in between."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import apsw
import pyarrow as pa
import pytest

import holdfast
from holdfast import Corrupt, Full, Invalid, Keyring, NotFound, OutcomeUnknown, Record, Settings
from holdfast.testing.manual_clock import ManualClock
from tests.stalled import stalled

pytestmark = pytest.mark.disk

SCHEMA = pa.schema([("name", pa.string()), ("cents", pa.int64())])


@pytest.fixture
def log(tmp_path):
    with holdfast.open(tmp_path / "log") as log:
        yield log


def payloads(log):
    return [record.payload for record in log.topic("t").read()]


def test_a_number_is_written_once_across_restarts(tmp_path):
    """A repeat gives the original receipt; a gap names the number that is expected; `last` says where to go on."""
    with holdfast.open(tmp_path / "log") as log:
        device = log.producer("device-7")
        assert (device.last, device.next) == (None, 1)
        first = device.append("t", b"1", sequence=1, key="k", headers={"h": b"v"}, kind="reading")
        assert not first.repeated
    for _ in range(2):
        with holdfast.open(tmp_path / "log") as log:
            device = log.producer("device-7")
            again = device.append("t", b"1", sequence=1, key="k")
            assert (again, again.repeated, device.last) == (first, True, 1)
            with pytest.raises(Invalid, match="sequence=3 expected=2"):
                device.append("t", b"3", sequence=3)
            assert payloads(log) == [b"1"]


def test_batches_and_rows_are_numbered_too(log):
    """One number for a batch, in one partition or in several, and for rows of a typed topic."""
    device = log.producer("device")
    log.topic("t", partitions=3)
    batch = [b"a", Record(b"b", key=b"x"), Record(b"c", key=b"y"), b"d"]
    written = list(device.append_batch("t", batch, sequence=1))
    again = list(device.append_batch("t", batch, sequence=1))
    assert (again, [one.repeated for one in again]) == (written, [True] * 4)
    typed = log.topic("typed", schema=SCHEMA)
    rows = [{"name": "a", "cents": 1}, {"name": "b", "cents": 2}]
    assert list(device.append(typed, rows, sequence=2)) == list(device.append(typed, rows, sequence=2))
    assert sorted(payloads(log)) == [b"a", b"b", b"c", b"d"]
    assert [row["cents"] for row in typed.read()] == [1, 2]
    with pytest.raises(Invalid, match="other content"):
        device.append("t", b"a", sequence=2)
    with pytest.raises(Invalid, match="typed"):
        device.append_batch(typed, [b"x"], sequence=3)


def test_a_producer_takes_topics_of_its_own_log_only(log, tmp_path):
    """A raw topic or a typed one of another log is refused, and so is what rows cannot have; nothing is written."""
    device = log.producer("device")
    typed = log.topic("typed", schema=SCHEMA)
    with holdfast.open(tmp_path / "other") as other:
        for topic in (other.topic("t"), other.topic("typed", schema=SCHEMA)):
            with pytest.raises(Invalid, match="another log") as caught:
                device.append(topic, b"x", sequence=1)
            assert caught.value.hint == "a producer is of one log"
    with pytest.raises(Invalid, match="rows have no key, headers or kind"):
        device.append(typed, [{"name": "a", "cents": 1}], sequence=1, key="k")
    with pytest.raises(Invalid, match="not int"):
        device.append_batch(7, [b"x"], sequence=1)
    assert device.last is None


def test_coroutines_and_tickets(log):
    """All of it under asyncio; a ticket settles after a time-out."""
    device = log.producer("device")

    async def work():
        first = await device.append_async("t", b"1", sequence=1)
        assert (await device.append_async("t", b"1", sequence=1)).repeated
        tickets = [device.submit("t", b"%d" % n, sequence=n) for n in range(2, 10)]
        receipts = [await ticket for ticket in tickets]
        assert [one.offset for one in receipts] == list(range(1, 9))
        assert (await device.append_batch_async("t", [b"10"], sequence=10))[0].offset == 9
        with pytest.warns(RuntimeWarning, match="append_async"):
            device.append("t", b"10", sequence=11)
        return first

    assert asyncio.run(work()).offset == 0
    with stalled(log.topic("t")):
        ticket = device.submit("t", b"12", sequence=12)
        with pytest.raises(OutcomeUnknown, match="sequence=12") as caught:
            ticket.result(0.01)
        assert "same sequence number" in caught.value.hint
        twin = device.submit("t", b"12", sequence=12)
    assert (ticket.result().repeated, twin.result().repeated) == (False, True)
    assert ticket.result() == twin.result()


def test_older_receipts_are_forgotten_and_never_written_again(tmp_path):
    """The newest are remembered; an older number is refused, and the error says where to go on."""
    settings = Settings.from_mapping({"journal": {"session_answers_max": 4}})
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        device = log.producer("device")
        receipts = [device.append("t", b"%d" % n, sequence=n) for n in range(1, 11)]
        assert [device.append("t", b"x", sequence=n) for n in range(7, 11)] == receipts[6:]
        with pytest.raises(Invalid, match="last=10"):
            device.append("t", b"x", sequence=6)
        assert len(payloads(log)) == 10


def test_a_producer_that_was_forgotten_begins_where_it_says(tmp_path):
    """Expired, or forgotten on purpose: the log knows nothing, and `start` says what comes first."""
    clock = ManualClock()
    with holdfast.open(tmp_path / "log", clock=clock) as log:
        log.producer("old").append("t", b"1", sequence=1)
        clock.advance(8 * 86_400)
        log.producer("new", start=500).append("t", b"500", sequence=500)
        assert [(one.producer, one.last) for one in log.producers()] == [("new", 500)]
        with pytest.raises(Invalid, match="expected=1"):
            log.producer("old").append("t", b"2", sequence=2)
        log.producer("old", start=2).append("t", b"2", sequence=2)
        log.forget_producer("new")
        with pytest.raises(NotFound):
            log.forget_producer("new")
        assert [one.producer for one in log.producers()] == ["old"]
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        assert [(one.producer, one.last, one.first_known) for one in log.producers()] == [("old", 2, 2)]
        with pytest.raises(Invalid, match="reading only"):
            log.producer("old")


def test_three_times_as_many_producers_as_there_may_be(tmp_path):
    """All used within a minute: those beyond are refused, and none of the others is lost."""
    settings = Settings.from_mapping({"journal": {"sessions_max": 5}})
    with holdfast.open(tmp_path / "log", settings=settings, clock=ManualClock()) as log:
        for n in range(15):
            if n < 5:
                log.producer(f"device-{n}").append("t", b"%d" % n, sequence=1)
            else:
                with pytest.raises(Full, match="sessions_max"):
                    log.producer(f"device-{n}").append("t", b"%d" % n, sequence=1)
        assert len(log.producers()) == 5
        assert log.producer("device-0").append("t", b"0", sequence=1).repeated


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", b"bytes", None, 7])
def test_a_name_that_is_none_is_refused(log, name):
    """Before anything is written."""
    with pytest.raises(Invalid):
        log.producer(name)


@pytest.mark.parametrize("number", [0, -1, 2**63, "1", 1.5, None])
def test_a_number_that_is_none_is_refused(log, number):
    """Before anything is written."""
    with pytest.raises(Invalid):
        log.producer("device").append("t", b"x", sequence=number)
    assert payloads(log) == []


def test_processes_that_share_a_log_share_its_producers(tmp_path):
    """A number that one of them sent is known to the others, and after the owner has gone."""
    path = tmp_path / "log"
    with holdfast.open(path, share=True) as owner, holdfast.open(path, share=True) as member:
        first = member.producer("device").append("t", b"1", sequence=1)
        again = owner.producer("device").append("t", b"1", sequence=1)
        assert (again, again.repeated) == (first, True)
        with pytest.raises(Invalid, match="expected=2"):
            member.producer("device").append("t", b"3", sequence=3)
        batch = [b"2", b"3"]
        written = list(owner.producer("device").append_batch("t", batch, sequence=2))
        assert list(member.producer("device").append_batch("t", batch, sequence=2)) == written
        assert member.producer("device").last == 2
        member.producer("other").append("t", b"4", sequence=1)
        member.forget_producer("other")
        assert [one.producer for one in owner.producers()] == ["device"]
    with holdfast.open(tmp_path / "log") as log:
        assert log.producer("device").append("t", b"1", sequence=1) == first
        assert payloads(log) == [b"1", b"2", b"3", b"4"]


def holdfast_cli(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_the_command_line_lists_and_forgets(tmp_path):
    """`holdfast producer list|forget`, with `--json`; a name that is not there is refused with those that are."""
    with holdfast.open(tmp_path / "log") as log:
        log.producer("device-7").append("t", b"1", sequence=1)
        listed = holdfast_cli("producer", "list", tmp_path / "log", "--json")  # while the log is owned
        line = json.loads(listed.stdout)
        assert (line["producer"], line["last"], line["first_known"]) == ("device-7", 1, 1)
    unknown = holdfast_cli("producer", "forget", tmp_path / "log", "device-8")
    assert unknown.returncode
    assert "device-7" in unknown.stderr
    assert "device-7" in holdfast_cli("producer", "forget", tmp_path / "log", "device-7").stderr
    assert holdfast_cli("producer", "list", tmp_path / "log", "--json").stdout == ""


@pytest.mark.parametrize("keyring", [None, Keyring({"k": bytes(32)})], ids=["plain", "keyed"])
def test_sessions_that_were_changed_are_found(tmp_path, keyring):
    """The owner is refused; a reader learns of it when it asks, and so does an inspection."""
    with holdfast.open(tmp_path / "log", keyring=keyring) as log:
        log.producer("device").append("t", b"1", sequence=1)
        log.producer("device").append("t", b"2", sequence=2)
    database = apsw.Connection(str(tmp_path / "log" / "durable.db"))
    database.execute("UPDATE sessions SET used_us=used_us+1")
    database.close()
    with pytest.raises(Corrupt, match="vouches for"):
        holdfast.open(tmp_path / "log", keyring=keyring)
    with holdfast.open(tmp_path / "log", keyring=keyring, read_only=True) as log:
        assert payloads(log) == [b"1", b"2"]
        with pytest.raises(Corrupt, match="vouches for"):
            log.producers()
    if keyring is None:
        inspected = holdfast_cli("inspect", tmp_path / "log")
        assert (inspected.returncode, "vouches for" in inspected.stdout + inspected.stderr) == (3, True)
