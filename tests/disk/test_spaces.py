"""Spaces: kept state that changes in one commit with records, fails alone, and is proved when it is loaded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.disk.test_writer import _Xor, put_unit, run_of
from tests.failing_commits import refuse_next_commit
from tests.stalled import stalled

import holdfast
from holdfast import Closed, Corrupt, Full, Invalid, Log, OutcomeUnknown, Unavailable
from holdfast.journal.state import spaces
from holdfast.journal.state.operations import ChangeSpace, CreateTopic
from holdfast.model.control_rows import DiskFailed
from holdfast.model.record_columns import Columns
from holdfast.testing import Fault, FaultyDisk

pytestmark = pytest.mark.disk


def change(log: Log, name: str, *given: Any, **options: Any) -> Any:
    return log._journal.spaces.change(name, *given, timeout=options.pop("timeout", 10), **options)


def changed(log: Log, name: str, *given: Any, **options: Any) -> None:
    change(log, name, *given, **options).result()


def loaded(log: Log, name: str) -> list[Any]:
    return log._journal.spaces.load(name)


def record(log: Log, payload: bytes, topic: str = "t") -> Any:
    """A record to append with a change."""
    log.topic(topic)
    return log._journal.topics[topic][0], Columns([payload], [0])


def payloads(log: Log) -> list[bytes]:
    return [found.payload for found in log.topic("t").read()]


def item(key: str, number: int = 0, body: str = "") -> tuple[bytes, int, bytes]:
    return key.encode(), number, (body or f"body of {key}").encode()


# -- what is kept -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
def test_what_was_put_is_there_after_reopening(open_log, keyring, keyed):
    """Items come back by number, then key; those that were replaced or deleted do not."""
    ring = keyring if keyed else None
    log = open_log(keyring=ring)
    changed(log, "s", [item("b", 2), item("a", 2), item("snapshot", -1, "old"), item("z", 1), item("gone")])
    changed(log, "s", [item("snapshot", 9, "new")], [b"gone", b"was never there"])
    wanted = [item("z", 1), item("a", 2), item("b", 2), item("snapshot", 9, "new")]
    assert loaded(log, "s") == wanted
    log.close()
    again = open_log(keyring=ring)
    assert loaded(again, "s") == wanted
    changed(again, "s", [item("a", 0)], [b"z"])
    assert loaded(again, "s") == [item("a", 0), item("b", 2), item("snapshot", 9, "new")]


def test_names_are_any_text(open_log):
    """Names of up to their limit, also of bytes that are no text; listed sorted, each with its own items."""
    log = open_log()
    names = ["b", "a/ü", "\udcff\udc00"[:1], "x" * spaces.NAME_BYTES_MAX, "nul\0", "\U0001f600"]
    for name in names:
        changed(log, name, [item("k", 0, repr(name))])
    log.close()
    again = open_log()
    assert again._journal.spaces.names() == sorted(names)
    assert [loaded(again, name) for name in names] == [[item("k", 0, repr(name))] for name in names]


def test_a_space_that_is_not_there_is_empty(open_log):
    """Loading it gives nothing; deleting from it and dropping it are no errors and make nothing."""
    log = open_log()
    assert loaded(log, "s") == []
    changed(log, "s", [], [b"k"])
    changed(log, "s", drop=True)
    changed(log, "s")
    assert log._journal.spaces.names() == []
    assert log._journal._state.row.spaces == 0


def test_a_space_stays_when_its_last_item_is_deleted(open_log):
    """Only dropping ends it."""
    log = open_log()
    changed(log, "s", [item("k")])
    changed(log, "s", [], [b"k"])
    assert (log._journal.spaces.names(), loaded(log, "s")) == (["s"], [])
    log.close()
    assert open_log()._journal.spaces.names() == ["s"]


@pytest.mark.parametrize("together", [False, True])
def test_a_dropped_space_begins_anew(open_log, keyring, together):
    """What is put after the drop is all there is, whether in the same group or later; neighbours keep theirs."""
    log = open_log(keyring=keyring)
    changed(log, "other", [item("k")])
    changed(log, "s", [item("a"), item("b")])
    if together:
        with stalled(log.topic("t")):
            tickets = [
                change(log, "s", [item("lost")]),
                change(log, "s", drop=True),
                change(log, "s", [item("b", 7)]),
                change(log, "s", drop=True),
                change(log, "s", [item("c"), item("d")], [b"b"]),
                change(log, "s", [], [b"d"]),
            ]
        for ticket in tickets:
            ticket.result()
    else:
        changed(log, "s", drop=True)
        assert log._journal.spaces.names() == ["other"]
        changed(log, "s", [item("c")])
    assert loaded(log, "s") == [item("c")]
    assert stored(log) == {("other", b"k"), ("s", b"c")}
    changed(log, "new", [item("k")])
    log.close()
    again = open_log(keyring=keyring)
    assert {name: loaded(again, name) for name in again._journal.spaces.names()} == {
        "new": [item("k")],
        "other": [item("k")],
        "s": [item("c")],
    }


def stored(log: Log) -> set[tuple[str, bytes]]:
    """Space and key of every row, as anybody sees them; rows of no space have an empty name."""
    db = apsw.Connection(str(log.path / "durable.db"), flags=apsw.SQLITE_OPEN_READONLY)
    sql = "SELECT coalesce(spaces.name, x''), key FROM space_items LEFT JOIN spaces ON spaces.id = space_id"
    found = {(name.decode(), key) for name, key in db.execute(sql)}
    db.close()
    return found


def test_a_drop_leaves_no_row_behind(open_log):
    """Neither the space's row nor any of its items."""
    log = open_log()
    changed(log, "s", [item(f"{n}") for n in range(1000)])
    changed(log, "s", drop=True)
    assert stored(log) == set()
    log.close()
    assert open_log()._journal.spaces.names() == []


def test_the_newest_of_many_changes_in_a_group_is_written_once(open_log, monkeypatch):
    """A hundred snapshots of one space in one group are one row, the last one; so is a put that was deleted again."""
    log = open_log()
    changed(log, "s", [item("old")])
    rows: list[Any] = []
    backend = log._journal._backend
    store, delete = backend.store_items, backend.delete_items
    monkeypatch.setattr(backend, "store_items", lambda found: (rows.extend(found), store(found)))
    monkeypatch.setattr(backend, "delete_items", lambda found: (rows.extend(found), delete(found)))
    with stalled(log.topic("t")):
        for n in range(100):
            last = change(log, "s", [item("snapshot", n, f"{n}"), item(f"passing {n}")], [f"passing {n - 1}".encode()])
        change(log, "s", [], [b"passing 99"])
    last.result()
    log.flush()
    assert [row.key for row in rows] == [b"snapshot"]
    assert loaded(log, "s") == [item("old"), item("snapshot", 99, "99")]
    log.close()
    assert loaded(open_log(), "s") == [item("old"), item("snapshot", 99, "99")]


def test_bodies_of_an_encrypted_log_are_not_in_its_files(open_log, keyring):
    """A body is in no file in the clear, and the same one encrypted twice gives other bytes."""
    log = open_log(keyring=keyring)
    for name in ("s", "t"):
        changed(log, name, [item("k", 0, "SECRET BODY " * 9)], append=record(log, b"SECRET RECORD"))
    content = b"".join(file.read_bytes() for file in Path(log.path).iterdir() if file.is_file())
    assert b"SECRET" not in content
    db = apsw.Connection(str(log.path / "durable.db"), flags=apsw.SQLITE_OPEN_READONLY)
    assert len(set(db.execute("SELECT body FROM space_items"))) == 2
    db.close()
    plain = open_log("plain")
    changed(plain, "s", [item("k", 0, "SECRET BODY")])
    assert any(b"SECRET" in file.read_bytes() for file in Path(plain.path).iterdir() if file.is_file())


def test_keys_are_rotated_in_between(open_log, keyring):
    """Items keep the key epoch that encrypted them, and are replaced and deleted under newer ones, in one group too."""
    log = open_log(keyring=keyring)
    changed(log, "s", [item("a"), item("b"), item("c")])
    newer = keyring.rotated("newer")
    with stalled(log.topic("t")):
        before = change(log, "s", [item("d")], [b"c"])
        rotation = threading.Thread(target=log.rotate_key, args=(newer,))
        rotation.start()
        while len(log._journal._queue._open.items) < 2:
            pass
        after = change(log, "s", [item("b", 1, "newer")])
    rotation.join()
    before.result()
    after.result()
    changed(log, "s", [item("e")], [b"a"])
    wanted = [item("d"), item("e"), item("b", 1, "newer")]
    assert loaded(log, "s") == wanted
    log.close()
    again = open_log(keyring=newer)
    assert loaded(again, "s") == wanted
    changed(again, "s", [], [b"d", b"b"])
    assert loaded(again, "s") == [item("e")]


def test_a_rebuilt_log_has_no_spaces_and_takes_new_ones(open_log, tmp_path):
    """Spaces live in the database alone: a log whose database is made anew begins without them."""
    log = open_log()
    log.topic("t").append(b"x")
    changed(log, "s", [item("k")])
    log.seal()
    log.close()
    from holdfast.recovery.rebuild import rebuild

    rebuild(tmp_path / "log")
    again = open_log()
    assert payloads(again) == [b"x"]
    assert again._journal.spaces.names() == []
    changed(again, "s", [item("anew")])
    assert loaded(again, "s") == [item("anew")]


# -- one commit -------------------------------------------------------------------------------------------


def test_a_change_and_its_record_are_one_commit(open_log):
    """Both are there once the ticket is done, and both count as one group."""
    log = open_log()
    log.topic("t")
    before = log._journal._state.row.groups
    ticket = change(log, "s", [item("k")], append=record(log, b"x"))
    assert ticket.result() is None
    assert ticket.done
    assert (payloads(log), loaded(log, "s")) == ([b"x"], [item("k")])
    assert log._journal._state.row.groups == before + 1


class Moody(_Xor):
    """A cipher that refuses some bodies."""

    def encrypt(self, plaintext, associated):
        if b"bad" in plaintext:
            raise ConnectionError("the HSM is away")
        return super().encrypt(plaintext, associated)


def test_a_change_that_cannot_be_encrypted_fails_alone(open_log):
    """Neither its items nor its record are there; its neighbours in the group are, in dense offsets."""
    log = open_log(cipher=Moody())
    with stalled(log.topic("t")):
        first = change(log, "s", [item("a")], append=record(log, b"1"))
        failing = change(log, "s", [item("b"), (b"c", 0, b"bad")], [b"a"], append=record(log, b"fine"))
        new = change(log, "new", [(b"c", 0, b"bad")], append=record(log, b"fine"))
        last = change(log, "s", [item("d")], append=record(log, b"2"))
    for ticket in (failing, new):
        with pytest.raises(Unavailable) as caught:
            ticket.result()
        assert isinstance(caught.value.__cause__, ConnectionError)
    first.result()
    last.result()
    assert (payloads(log), loaded(log, "s")) == ([b"1", b"2"], [item("a"), item("d")])
    assert log._journal.spaces.names() == ["s"]
    log.close()
    again = open_log(cipher=Moody())
    assert (payloads(again), loaded(again, "s")) == ([b"1", b"2"], [item("a"), item("d")])


def test_records_of_changes_that_cannot_be_encrypted_refuse_their_group(open_log):
    """They become one entry with those of their neighbours: nothing of it is written, and all may try again."""
    log = open_log(cipher=Moody())
    with stalled(log.topic("t")):
        tickets = [change(log, "s", [item("a")], append=record(log, payload)) for payload in (b"1", b"bad", b"2")]
    for ticket in tickets:
        with pytest.raises(Unavailable) as caught:
            ticket.result()
        assert isinstance(caught.value.__cause__, ConnectionError)
    assert (payloads(log), log._journal.spaces.names()) == ([], [])
    changed(log, "s", [item("a")], append=record(log, b"1"))
    assert (payloads(log), loaded(log, "s")) == ([b"1"], [item("a")])


def test_records_of_neighbours_keep_their_order_among_others(open_log):
    """Gathered or not: what was put first has the lower offset."""
    log = open_log()
    topic = log.topic("t")
    with stalled(topic):
        change(log, "s", [item("a")], append=record(log, b"1"))
        change(log, "u", [item("a")], append=record(log, b"2"))
        ticket = topic.submit(b"3", key=b"k")
        change(log, "s", [item("b")], append=record(log, b"4"))
        batch = topic.submit_batch([b"5", b"6"])
        change(log, "u", [item("b")], append=record(log, b"7"))
    assert ticket.result().offset == 2
    assert [receipt.offset for receipt in batch.result()] == [4, 5]
    log.flush()
    assert payloads(log) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


def test_units_of_other_operations_are_undone_with_their_changes(open_log):
    """A unit that fails behind a savepoint takes its puts, deletes and drops back; light units around it stay."""
    log = open_log()
    topic = log.topic("t")
    changed(log, "s", [item("a"), item("b")])
    changed(log, "u", [item("k")])

    def heavy(*operations: Any, failing: bool) -> Any:
        more = [CreateTopic("t", 1)] if failing else [CreateTopic("other", 1)]
        return log._journal._queue.put_control([*operations, *more])

    with stalled(topic):
        change(log, "s", [item("c")])
        failed = [
            heavy(ChangeSpace(b"s", [item("x")], [b"a", b"c"]), run_of(topic, b"no"), failing=True),
            heavy(ChangeSpace(b"s", drop=True), ChangeSpace(b"s", [item("y")]), failing=True),
            heavy(ChangeSpace(b"fresh", [item("z")]), ChangeSpace(b"u", drop=True), failing=True),
        ]
        change(log, "s", [item("d")], [b"b"], append=record(log, b"yes"))
        kept = heavy(run_of(topic, b"too"), ChangeSpace(b"s", [item("e")]), ChangeSpace(b"u", drop=True), failing=False)
        last = change(log, "s", [item("f")])
    last.result()
    kept.check_stored()
    for unit in failed:
        with pytest.raises(Invalid):
            unit.check_stored()
    wanted = [item("a"), item("c"), item("d"), item("e"), item("f")]
    for _ in range(2):
        assert (loaded(log, "s"), log._journal.spaces.names(), payloads(log)) == (wanted, ["s"], [b"yes", b"too"])
        log.close()
        log = open_log()


def test_a_scope_of_changes_never_has_a_hole(open_log):
    """When a change of a scope fails, later ones fail with the same cause until it is issued again."""
    log = open_log(cipher=Moody())
    changed(log, "s", [item("1")], scope="a")
    with stalled(log.topic("t")):
        bad = change(log, "s", [(b"2", 0, b"bad")], scope="a")
        later = change(log, "s", [item("3")], append=record(log, b"3"), scope="a")
        other = change(log, "other", [item("k")], scope="b")
    other.result()
    for ticket in (bad, later, change(log, "s", [item("4")], scope="a")):
        with pytest.raises(Unavailable, match="cipher"):
            ticket.result()
    changed(log, "s", [item("2")], scope="a", reissue=True)
    changed(log, "s", [item("3")], append=record(log, b"3"), scope="a")
    assert loaded(log, "s") == [item("1"), item("2"), item("3")]
    assert payloads(log) == [b"3"]


def test_a_refused_group_changes_nothing_and_breaks_its_scopes(open_log, monkeypatch):
    """What was refused is as if it had never been: the next change adds up, new spaces and drops included."""
    log = open_log()
    topic = log.topic("t")
    changed(log, "s", [item("a"), item("b")])
    changed(log, "u", [item("k")])
    with stalled(topic):
        tickets = [
            change(log, "s", [item("a", 1, "refused"), item("c")], [b"b"], append=record(log, b"no"), scope="s"),
            change(log, "fresh", [item("k")]),
            change(log, "u", drop=True),
        ]
        refuse_next_commit(topic, monkeypatch, Unavailable("the disk is full; nothing was written"), skip=1)
    for ticket in tickets:
        with pytest.raises(Unavailable):
            ticket.result()
    with pytest.raises(Unavailable):
        changed(log, "s", [item("d")], scope="s")
    assert (loaded(log, "s"), log._journal.spaces.names(), payloads(log)) == ([item("a"), item("b")], ["s", "u"], [])
    changed(log, "s", [item("a", 1, "again")], [b"b"], append=record(log, b"yes"), scope="s", reissue=True)
    changed(log, "u", [item("l")])
    for _ in range(2):
        assert loaded(log, "s") == [item("a", 1, "again")]
        assert loaded(log, "u") == [item("k"), item("l")]
        assert (log._journal.spaces.names(), payloads(log)) == (["s", "u"], [b"yes"])
        log.close()
        log = open_log()


def test_a_full_disk_refuses_changes_and_takes_them_again(tmp_path):
    """ENOSPC refuses the group; once there is room the same change is stored, and all adds up when reopened."""
    root = tmp_path / "disk"
    root.mkdir()
    with FaultyDisk(root) as disk:
        with holdfast.open(root / "log") as log:
            changed(log, "s", [item("a"), item("b")])
            disk.arm(Fault(1, "enospc", op="write", sticky=True))
            for n in range(3):
                with pytest.raises(Unavailable, match="full"):
                    changed(log, "s", [item("a", n)], [b"b"], append=record(log, b"no"))
            assert loaded(log, "s") == [item("a"), item("b")]
            disk.disarm()
            changed(log, "s", [item("a", 7)], [b"b"], append=record(log, b"yes"))
        with holdfast.open(root / "log") as log:
            assert (loaded(log, "s"), payloads(log)) == ([item("a", 7)], [b"yes"])


def test_a_failed_sync_leaves_a_change_unknown(open_log, monkeypatch):
    """Its waiters learn that the outcome is unknown, everybody later gets Closed."""
    log = open_log()
    changed(log, "s", [item("a")])
    backend = log._journal._backend
    monkeypatch.setattr(backend, "commit", lambda: (_ for _ in ()).throw(DiskFailed("fsync")))
    with pytest.raises(OutcomeUnknown):
        changed(log, "s", [item("b")])
    with pytest.raises(Closed):
        change(log, "s", [item("b")])
    with pytest.raises(Closed):
        log.close()


# -- tickets and bounds -----------------------------------------------------------------------------------


def test_a_ticket_serves_threads_and_coroutines(open_log):
    """result() and await both return once the change is durable, and raise what became of it."""
    log = open_log(cipher=Moody())

    async def several() -> list[Any]:
        tickets = [change(log, "s", [item(f"{n}")]) for n in range(20)] + [change(log, "s", [(b"x", 0, b"bad")])]
        return await asyncio.gather(*tickets, return_exceptions=True)

    outcomes = asyncio.run(several())
    assert outcomes[:20] == [None] * 20
    assert isinstance(outcomes[20], Unavailable)
    assert len(loaded(log, "s")) == 20


def test_a_ticket_that_runs_out_of_time_can_be_asked_again(open_log):
    """OutcomeUnknown from result() and from await, then the outcome; the ticket keeps no bodies alive."""
    log = open_log()
    with stalled(log.topic("t")):
        ticket = change(log, "s", [item("k")], timeout=0.02)
        with pytest.raises(OutcomeUnknown, match="for a change"):
            ticket.result()

        async def wait() -> None:
            await ticket

        with pytest.raises(OutcomeUnknown):
            asyncio.run(wait())
        assert not ticket.done
    ticket.result(10)
    assert "done=True" in repr(ticket)
    assert ticket.unit.operations[0].puts == ()


def test_changes_are_bounded_like_records(open_log):
    """Beyond the queue's bounds a change waits, then raises Full, and nothing of it was written."""
    log = open_log(journal={"queue_records_max": 2, "queue_bytes_max": "16MiB"})
    with stalled(log.topic("t")):
        held = [change(log, "s", [item("a")]), change(log, "s", [item("b")])]
        for timeout in (0, 0.02):
            with pytest.raises(Full):
                change(log, "s", [item("c")], timeout=timeout)
    for ticket in held:
        ticket.result()
    assert loaded(log, "s") == [item("a"), item("b")]
    assert log.stats().journal.queue_records == log.stats().journal.queue_bytes == 0
    assert log.stats().journal.refused_total == 1


def test_bytes_of_changes_count(open_log):
    """Bodies and payloads fill the queue, and one change that is larger than all of it is Invalid."""
    log = open_log(journal={"queue_bytes_max": "16MiB"})
    large = [(b"k", 0, bytes(3 * 2**20))]
    with stalled(log.topic("t")):
        held = [change(log, "s", large, append=record(log, bytes(2**20))) for _ in range(3)]
        assert log.stats().journal.queue_bytes == 3 * (4 * 2**20 + 1)
        with pytest.raises(Full):
            change(log, "s", [(b"k", 0, bytes(4 * 2**20))], timeout=0)
    for ticket in held:
        ticket.result()
    with pytest.raises(Invalid, match="too large"):
        change(log, "s", [(b"%d" % n, 0, bytes(4 * 2**20)) for n in range(5)])


def test_records_that_could_not_be_read_back_are_not_appended(open_log):
    """As many and as large as those of a batch, and no more: Invalid, and nothing is written."""
    log = open_log(journal={"batch_bytes_max": "64KiB", "batch_records_max": 3})
    partition, _ = record(log, b"")
    for payloads_ in ([b"x" * 65_537], [b"x"] * 4):
        with pytest.raises(Invalid, match="too many records"):
            change(log, "s", [item("k")], append=(partition, Columns(payloads_, [0] * len(payloads_))))
    changed(log, "s", [item("k")], append=(partition, Columns([b"x" * 65_534, b"y", b"z"], [0, 1, 2])))
    assert [len(payload) for payload in payloads(log)] == [65_534, 1, 1]


def test_limits_are_checked_before_anything_is_written(open_log):
    """Names, keys, numbers, bodies and what contradicts itself: Invalid with a hint, and no space is made."""
    log = open_log()
    for name, puts, deletes, drop in (
        ("", [item("k")], [], False),
        ("x" * (spaces.NAME_BYTES_MAX + 1), [item("k")], [], False),
        ("\ud800", [item("k")], [], False),
        (b"bytes", [item("k")], [], False),
        ("s", [(b"k" * 2049, 0, b"")], [], False),
        ("s", [("k", 0, b"")], [], False),
        ("s", [(b"k", 2**63, b"")], [], False),
        ("s", [(b"k", True, b"")], [], False),
        ("s", [(b"k", 0.5, b"")], [], False),
        ("s", [(b"k", 0, bytes(spaces.BODY_BYTES_MAX + 1))], [], False),
        ("s", [(b"k", 0, bytearray(3))], [], False),
        ("s", [item("k"), item("k")], [], False),
        ("s", [item("k")], [b"k"], False),
        ("s", [], [b"k" * 2049], False),
        ("s", [item("k")], [], True),
        ("s", [], [b"k"], True),
        ("s", [], [b""], True),
    ):
        with pytest.raises(Invalid) as caught:
            change(log, name, puts, deletes, drop=drop)
        assert caught.value.hint
    largest = (
        "x" * spaces.NAME_BYTES_MAX,
        [(b"k" * 2048, -(2**63), bytes(spaces.BODY_BYTES_MAX)), (b"", 2**63 - 1, b"")],
    )
    changed(log, *largest)
    assert log._journal.spaces.names() == ["x" * spaces.NAME_BYTES_MAX]
    log.close()
    assert loaded(open_log(), largest[0]) == largest[1]


def test_a_space_that_is_full_takes_no_more_until_something_is_deleted(open_log, monkeypatch):
    """The last item fits; one more fails alone, with its record; replacing and trading one for another goes on."""
    monkeypatch.setattr(spaces, "ITEMS_MAX", 5)
    monkeypatch.setattr("holdfast.journal.commit.space_changes.ITEMS_MAX", 5)
    log = open_log()
    changed(log, "s", [item(f"{n}") for n in range(4)])
    with stalled(log.topic("t")):
        fits = change(log, "s", [item("4")])
        beyond = change(log, "s", [item("5")], append=record(log, b"no"))
        traded = change(log, "s", [item("0", 1), item("6")], [b"1", b"1"])
    fits.result()
    with pytest.raises(Invalid, match="up to 5 items space='s'"):
        beyond.result()
    traded.result()
    with pytest.raises(Invalid):
        change(log, "new", [item(f"{n}") for n in range(6)])
    assert [key for key, _, _ in loaded(log, "s")] == [b"2", b"3", b"4", b"6", b"0"]
    assert payloads(log) == []


def test_a_cipher_that_adds_too_much_is_refused(open_log):
    """What could not be read back is not written."""

    class Padding(_Xor):
        def encrypt(self, plaintext, associated):
            return super().encrypt(plaintext, associated) + bytes(70_000)

    log = open_log(cipher=Padding())
    changed(log, "s", [item("k")])
    with pytest.raises(Invalid, match="too long"):
        changed(log, "s", [(b"k", 0, bytes(spaces.BODY_BYTES_MAX))])


def test_a_closed_or_reading_handle_changes_nothing(open_log, tmp_path):
    """Invalid for a reader, Closed afterwards."""
    log = open_log()
    changed(log, "s", [item("k")])
    with holdfast.open(tmp_path / "log", read_only=True) as observer, pytest.raises(Invalid, match="reading only"):
        change(observer, "s", [item("l")])
    log.close()
    with pytest.raises(Closed):
        change(log, "s", [item("l")])


# -- what the writer remembers ----------------------------------------------------------------------------


def test_the_writer_proves_a_space_that_nobody_has_loaded(open_log, monkeypatch):
    """After reopening, the first change finds the old weights by itself, or takes those that loading has learned."""
    log = open_log()
    changed(log, "s", [item("a"), item("b")])
    changed(log, "t", [item("a"), item("b")])
    log.close()
    log = open_log()
    proofs: list[bytes] = []
    original = spaces.proved
    monkeypatch.setattr(
        spaces, "proved", lambda v, p, row, items: (proofs.append(row.name), original(v, p, row, items))[1]
    )
    changed(log, "s", [item("a", 1)], [b"b"])
    loaded(log, "t")
    changed(log, "t", [item("a", 1)], [b"b"])
    changed(log, "t", [item("c")])
    assert proofs == [b"s", b"t"]
    assert loaded(log, "s") == [item("a", 1)]
    assert loaded(log, "t") == [item("c"), item("a", 1)]


def test_what_was_learned_of_another_moment_is_not_used(open_log):
    """Weights that were loaded before somebody else's change do not count after it."""
    log = open_log()
    changed(log, "s", [item("a"), item("b")])
    journal = log._journal
    with journal._backend.reading() as rows:
        row, items = spaces.load(rows, journal.path, journal._state.vault, b"s")
    weights = spaces.proved(journal._state.vault, journal.path, row, items)
    changed(log, "s", [item("a", 5)])
    journal._state.spaces._weights.clear()
    journal._state.spaces._known = 0
    journal._state.spaces.learn(row, weights)
    changed(log, "s", [item("c")], [b"a"])
    assert loaded(log, "s") == [item("b"), item("c")]


def test_what_is_remembered_is_bounded(open_log, monkeypatch):
    """Weights of spaces that were changed longest ago are let go, and found again when they are needed."""
    monkeypatch.setattr(spaces, "_KNOWN_MAX", 10)
    log = open_log()
    known = log._journal._state.spaces
    for turn in range(3):
        for n in range(8):
            changed(log, f"{n}", [item(f"{turn}"), item("k", turn)], [f"{turn - 1}".encode()])
            assert known._known == sum(map(len, known._weights.values())) <= 10
    for n in range(8):
        loaded(log, f"{n}")
    assert known._learned_items == sum(len(weights) for _, weights in known._learned.values()) <= 10
    changed(log, "0", drop=True)
    assert known._learned_items == sum(len(weights) for _, weights in known._learned.values())
    for n in range(1, 8):
        assert loaded(log, f"{n}") == [item("2"), item("k", 2)]
    log.close()
    assert len(open_log()._journal.spaces.names()) == 7


# -- readers ----------------------------------------------------------------------------------------------

READER = """
import sys, holdfast
from holdfast import Keyring
ring = Keyring.from_file(sys.argv[2])
with holdfast.open(sys.argv[1], read_only=True, keyring=ring) as log:
    print("ready", flush=True)
    last = -1
    for line in sys.stdin:
        for _ in range(200):
            items = log._journal.spaces.load("s")
            turn = items[0][1]
            assert [key for key, _, _ in items] == [b"snapshot", b"%d" % turn, b"%d" % (turn + 1)], items
            assert items[0][2] == b"%d" % turn and turn >= last, (turn, last)
            last = turn
        assert log._journal.spaces.names() == ["s"]
        print(last, flush=True)
"""


def test_a_reader_in_another_process_sees_whole_commits_while_the_owner_writes(open_log, keyring, tmp_path):
    """Each load is one commit's state, also after keys were rotated; never a mixture, never older than before."""
    newer = keyring.rotated("newer")
    newer.save(tmp_path / "ring")
    log = open_log(keyring=keyring)

    def turn(n: int) -> Any:
        puts = [(b"snapshot", n, b"%d" % n), (b"%d" % (n + 1), 2**40 + n + 1, b"x" * (n % 7))]
        puts += [(b"0", 2**40, b"")] if not n else []
        return change(log, "s", puts, [b"%d" % (n - 1)])

    turn(0).result()
    command = [sys.executable, "-c", READER, str(tmp_path / "log"), str(tmp_path / "ring")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "ready\n"
        done, seen = 0, []
        for part in range(3):
            if part == 1:
                log.rotate_key(newer)
            reader.stdin.write("go\n")
            reader.stdin.flush()
            waiting = threading.Thread(target=lambda: seen.append(int(reader.stdout.readline())))
            waiting.start()
            while len(seen) == part:
                done += 1
                turn(done).result()
            waiting.join()
        reader.stdin.close()
        assert reader.wait(30) == 0
    assert 0 < seen[0] <= seen[1] <= seen[2] <= done


def test_a_reader_that_was_there_before_sees_new_spaces(open_log, tmp_path):
    """Loading asks the database, not what was recovered when the handle was opened."""
    log = open_log()
    with holdfast.open(tmp_path / "log", read_only=True) as observer:
        assert observer._journal.spaces.names() == []
        changed(log, "s", [item("k")])
        assert loaded(observer, "s") == [item("k")]
        assert observer._journal.spaces.names() == ["s"]
        changed(log, "s", drop=True)
        assert (loaded(observer, "s"), observer._journal.spaces.names()) == ([], [])


def test_a_damaged_space_fails_alone_and_can_be_dropped(open_log, tmp_path):
    """Changes of it are refused and break its scope only; other spaces go on; dropping it makes room for a new one."""
    log = open_log()
    changed(log, "s", [item("a"), item("b")])
    changed(log, "t", [item("k")])
    log.close()
    db = apsw.Connection(str(tmp_path / "log" / "durable.db"))
    for key in (b"two", b"too many"):
        db.execute("INSERT INTO space_items VALUES (1, ?, 0, 0, x'')", (key,))
    db.close()
    log = open_log(journal={"checkpoint_bytes": 1})
    with stalled(log.topic("t")):
        bad = change(log, "s", [item("c")], append=record(log, b"no"))
        good = change(log, "t", [item("l")], append=record(log, b"yes"))
    with pytest.raises(Corrupt, match="space='s'") as caught:
        bad.result()
    assert "drop" in caught.value.hint
    good.result()
    log.flush()
    before = log.stats().journal.checkpoints_total
    changed(log, "t", [item("l")])
    log.flush()
    assert log.stats().journal.checkpoints_total > before  # no statement was left half-way
    with pytest.raises(Corrupt, match="space='s'"):
        loaded(log, "s")
    changed(log, "s", drop=True)
    changed(log, "s", [item("anew")])
    assert (loaded(log, "s"), loaded(log, "t"), payloads(log)) == ([item("anew")], [item("k"), item("l")], [b"yes"])


def test_a_plain_item_in_an_encrypted_log_is_refused(open_log, keyring, tmp_path):
    """A forger without the key can put in no item, whatever its key epoch says."""
    log = open_log(keyring=keyring)
    changed(log, "s", [item("a")])
    log.close()
    db = apsw.Connection(str(tmp_path / "log" / "durable.db"))
    db.execute("UPDATE space_items SET key_epoch=0, body=?", (b"forged",))
    db.close()
    log = open_log(keyring=keyring)
    with pytest.raises(Corrupt, match="not encrypted"):
        loaded(log, "s")
    with pytest.raises(Corrupt, match="not encrypted"):
        changed(log, "s", [item("b")])


def test_records_and_changes_of_one_scope_break_it_for_each_other(open_log):
    """A unit of records that fails takes a change behind it along, until the scope is issued again."""
    log = open_log()
    topic = log.topic("t")
    with stalled(topic):
        bad = put_unit(topic, b"x", scope="a", failing=True)
        light = change(log, "s", [item("k")], scope="a")
        again = change(log, "s", [item("k")], scope="a", reissue=True)
    again.result()
    with pytest.raises(Invalid):
        bad.check_stored()
    with pytest.raises(Invalid, match="refused a row"):
        light.result()
    assert loaded(log, "s") == [item("k")]
