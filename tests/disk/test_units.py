"""Units of several records and several spaces: one commit, receipts for every run, and nothing of one that fails."""

from __future__ import annotations

from typing import Any

import apsw
import pyarrow as pa
import pytest
from tests.disk.test_writer import _Xor
from tests.failing_commits import refuse_next_commit
from tests.stalled import stalled

from holdfast import Corrupt, Full, Invalid, Log, Unavailable
from holdfast.journal.journal import Run, Unit
from holdfast.journal.state.operations import ChangeSpace
from holdfast.log.topics.validation import Validation
from holdfast.model.record_columns import Columns

pytestmark = pytest.mark.disk


@pytest.fixture
def open_log(open_log):
    """Logs that have their topics, for none can be created while the writer stands still."""

    def opened(name: str = "log", **options: Any) -> Log:
        log = open_log(name, **options)
        for topic in ("a", "b", "t", "v", "mine", "other"):
            log.topic(topic, partitions=2)
        return log

    return opened


def part(log: Log, topic: str, partition: int = 0) -> Any:
    log.topic(topic, partitions=2)
    return log._journal.topics[topic][partition]


def run(log: Log, topic: str, *payloads: bytes, partition: int = 0) -> Run:
    return Run.unplaced(part(log, topic, partition), Columns(list(payloads), [7] * len(payloads)))


def keyed(log: Log, topic: str, **payloads: bytes) -> Run:
    """Records with idempotency keys."""
    found, checks = Run.unplaced(part(log, topic)), Validation(topic, log.settings.journal)
    found.keyed = True
    for key, payload in payloads.items():
        found.rows.append((payload, 7, None, checks.unique_record(key, payload, None)[1]))
    return found


def put(name: str, **items: str) -> ChangeSpace:
    return ChangeSpace(name.encode(), [(key.encode(), 0, body.encode()) for key, body in items.items()])


def transact(log: Log, *operations: Any, **options: Any) -> Any:
    records = sum(len(one) for one in operations if isinstance(one, Run))
    return log._journal.transact(list(operations), records=records, size=100, timeout=10, **options)


def items(log: Log, name: str) -> dict[str, str]:
    return {key.decode(): body.decode() for key, _, body in log._journal.spaces.load(name)}


def payloads(log: Log, topic: str, partition: int | None = None) -> list[bytes]:
    return [record.payload for record in log.topic(topic).read(partition=partition)]


def receipts(one: Run) -> list[tuple[str, int, int]]:
    found = [one.receipt(index) for index in range(one.count)]
    return [(receipt.topic, receipt.partition, receipt.offset) for receipt in found]


def savepoints(log: Log, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an item for each unit that was staged behind a savepoint."""
    found: list[int] = []
    backend = log._journal._backend
    savepoint = backend.savepoint
    monkeypatch.setattr(backend, "savepoint", lambda: (found.append(1), savepoint())[1])
    return found


# -- one commit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_records_of_three_topics_and_items_of_two_spaces_are_one_commit(open_log, keyring, is_encrypted):
    """All of it is there, under one group; every record has a receipt, and no savepoint was needed."""
    log = open_log(keyring=keyring if is_encrypted else None)
    runs = [run(log, "a", b"1", b"2"), run(log, "b", b"3"), run(log, "c", b"4", partition=1)]
    before = log._journal._state.row.groups
    transact(log, put("s", k="v"), put("u", l="w"), *runs).result()
    assert log._journal._state.row.groups == before + 1
    assert [receipts(one) for one in runs] == [[("a", 0, 0), ("a", 0, 1)], [("b", 0, 0)], [("c", 1, 0)]]
    assert [payloads(log, name) for name in "abc"] == [[b"1", b"2"], [b"3"], [b"4"]]
    assert (items(log, "s"), items(log, "u")) == ({"k": "v"}, {"l": "w"})
    log.close()
    again = open_log(keyring=keyring if is_encrypted else None)
    assert [payloads(again, name) for name in "abc"] == [[b"1", b"2"], [b"3"], [b"4"]]
    assert (items(again, "s"), items(again, "u")) == ({"k": "v"}, {"l": "w"})


def test_units_that_meet_are_packed_and_every_run_learns_its_place(open_log, monkeypatch):
    """Records of many units become one entry per partition; receipts are those of what is read back."""
    log = open_log()
    units = []
    counted = savepoints(log, monkeypatch)
    with stalled(log.topic("t")):
        for n in range(20):
            runs = [run(log, "a", b"a%d" % n, b"A%d" % n), run(log, "b", b"b%d" % n)]
            units.append((transact(log, *([put("s", k=str(n))] if n % 2 else []), *runs), runs))
    for ticket, _ in units:
        ticket.result()
    assert len(counted) == 1, "one is the unit that stalls"
    assert items(log, "s") == {"k": "19"}
    for topic, at in (("a", 0), ("b", 1)):
        found = {record.offset: record.payload for record in log.topic(topic).read()}
        for n, (_, runs) in enumerate(units):
            placed = [found[offset] for _, _, offset in receipts(runs[at])]
            assert placed == ([b"a%d" % n, b"A%d" % n] if topic == "a" else [b"b%d" % n])
        assert len({runs[at].receipt(0).seq for _, runs in units}) == 1


def test_order_holds_between_plain_records_batches_and_units(open_log):
    """What was put first has the lower offset, whichever way it went."""
    log = open_log()
    topic = log.topic("t", partitions=2)
    with stalled(topic):
        first = run(log, "t", b"1")
        transact(log, first)
        second = topic.submit(b"2", partition=0)
        third = run(log, "t", b"3")
        transact(log, put("s", k="v"), third)
        fourth = topic.submit_batch([b"4", b"5"], partition=0)
        last = keyed(log, "t", six=b"6")
        ticket = transact(log, last)
    ticket.result()
    fourth.result()
    assert [first.receipt(0).offset, second.result().offset, third.receipt(0).offset] == [0, 1, 2]
    assert (fourth.result()[0].offset, last.receipt(0).offset) == (3, 5)
    assert payloads(log, "t", 0) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_a_space_that_changes_twice_in_a_unit_changes_in_order(open_log, monkeypatch):
    """Dropped and begun anew, in one unit: that needs a savepoint, and takes one."""
    log = open_log()
    transact(log, put("s", old="1")).result()
    counted = savepoints(log, monkeypatch)
    both = run(log, "t", b"x")
    transact(log, ChangeSpace(b"s", drop=True), put("s", new="2"), both).result()
    assert (items(log, "s"), receipts(both), len(counted)) == ({"new": "2"}, [("t", 0, 0)], 1)


# -- what fails -------------------------------------------------------------------------------------------


class _Moody(_Xor):
    """A cipher that refuses some bodies."""

    def encrypt(self, plaintext, associated):
        if b"bad" in plaintext:
            raise ConnectionError("the HSM is away")
        return super().encrypt(plaintext, associated)


def test_a_unit_whose_last_space_fails_leaves_nothing_of_the_others(open_log):
    """Neither the first space's items nor any record; neighbours in the group commit, densely."""
    log = open_log(cipher=_Moody())
    with stalled(log.topic("t", partitions=2)):
        before = run(log, "t", b"1")
        transact(log, put("s", a="1"), before)
        lost = run(log, "t", b"lost")
        failing = transact(log, put("s", a="2", b="2"), put("fresh", c="bad"), lost)
        after = run(log, "t", b"2")
        last = transact(log, put("u", a="1"), after)
    last.result()
    with pytest.raises(Unavailable, match="the cipher could not encrypt"):
        failing.result()
    with pytest.raises(Unavailable, match="the cipher could not encrypt"):
        lost.receipt(0)
    assert (items(log, "s"), items(log, "u"), items(log, "fresh")) == ({"a": "1"}, {"a": "1"}, {})
    assert (payloads(log, "t"), receipts(before) + receipts(after)) == ([b"1", b"2"], [("t", 0, 0), ("t", 0, 1)])


def test_a_damaged_space_refuses_the_units_that_change_it(open_log):
    """Found before anything of the unit is staged; the log goes on."""
    log = open_log()
    transact(log, put("s", a="1"), put("u", a="1")).result()
    log.close()
    with apsw.Connection(str(log.path / "durable.db")) as database:
        of_u = "(SELECT id FROM spaces WHERE name = x'75')"
        database.execute(f"UPDATE space_items SET body = x'00' WHERE space_id = {of_u}")
    again = open_log()
    with pytest.raises(Corrupt, match="space='u'"):
        transact(again, put("s", a="2"), put("u", a="2"), run(again, "t", b"x")).result()
    assert (items(again, "s"), payloads(again, "t")) == ({"a": "1"}, [])
    transact(again, put("s", a="3"), run(again, "t", b"y")).result()
    assert (items(again, "s"), payloads(again, "t")) == ({"a": "3"}, [b"y"])


def test_a_refused_group_has_nothing_of_its_units(open_log, monkeypatch):
    """A disk that is full: no record, no item, and every receipt says why."""
    log = open_log()
    lost = [run(log, "t", b"1"), run(log, "v", b"2")]
    with stalled(log.topic("t")):
        refuse_next_commit(log.topic("t"), monkeypatch, Unavailable("the disk is full"), skip=1)
        ticket = transact(log, put("s", a="1"), *lost)
    for asked in (ticket.result, lambda: lost[0].receipt(0), lambda: lost[1].receipt(0)):
        with pytest.raises(Unavailable, match="the disk is full"):
            asked()
    assert (payloads(log, "t"), payloads(log, "v"), items(log, "s")) == ([], [], {})
    kept = run(log, "v", b"3")
    transact(log, put("s", a="1"), kept).result()
    assert (receipts(kept), items(log, "s")) == ([("v", 0, 0)], {"a": "1"})


def test_a_scope_that_broke_refuses_later_units(open_log):
    """As with any unit; their runs tell the same."""
    log = open_log(cipher=_Moody())
    with pytest.raises(Unavailable):
        transact(log, put("s", a="bad"), scope="x").result()
    lost = run(log, "t", b"1")
    with pytest.raises(Unavailable):
        transact(log, lost, scope="x").result()
    with pytest.raises(Unavailable):
        lost.receipt(0)
    kept = run(log, "t", b"2")
    transact(log, kept, scope="x", reissue=True).result()
    transact(log, run(log, "t", b"3"), scope="x").result()
    assert payloads(log, "t") == [b"2", b"3"]


def test_what_is_too_large_or_taken_by_somebody_else_is_refused_before_it_is_queued(open_log):
    """The bound of the queue, and a topic that another log writes on the store."""
    log = open_log()
    with pytest.raises(Invalid, match="too large"):
        log._journal.transact([run(log, "t", b"x")], records=1, size=2**40, timeout=1)
    part(log, "t", 1).refusal = Unavailable("somebody else writes this topic")
    for operations in ([run(log, "t", b"x"), run(log, "t", b"y", partition=1)], [run(log, "t", b"y", partition=1)]):
        with pytest.raises(Unavailable, match="somebody else"):
            transact(log, *operations)
    assert payloads(log, "t") == []
    with stalled(log.topic("t")), pytest.raises(Full):
        transact(log, run(log, "t", b"1"))
        log._journal.transact([run(log, "t", b"x")], records=10**6, size=1, timeout=0.01)


# -- idempotency keys -------------------------------------------------------------------------------------


def test_a_known_key_is_not_written_again_and_the_rest_is(open_log):
    """The record's receipt is the original one; in one group and in another."""
    log = open_log()
    first = keyed(log, "t", one=b"1")
    transact(log, put("s", n="1"), first).result()
    with stalled(log.topic("t")):
        again = keyed(log, "t", one=b"1", two=b"2")
        transact(log, put("s", n="2"), again, run(log, "v", b"rest"))
        once_more = keyed(log, "t", two=b"2")
        ticket = transact(log, once_more)
    ticket.result()
    original, known = first.receipt(0), again.receipt(0)
    assert (known.offset, known.seq, known.repeated) == (original.offset, original.seq, True)
    assert (again.receipt(1).offset, again.receipt(1).repeated) == (1, False)
    assert (once_more.receipt(0).offset, once_more.receipt(0).repeated) == (1, True)
    assert (payloads(log, "t"), payloads(log, "v"), items(log, "s")) == ([b"1", b"2"], [b"rest"], {"n": "2"})


def test_a_misused_key_refuses_the_whole_unit(open_log):
    """A batch of records may fail one by one; a unit may not: nothing of it is written."""
    log = open_log()
    transact(log, keyed(log, "t", one=b"1")).result()
    with stalled(log.topic("t")):
        before = transact(log, run(log, "v", b"before"))
        bad = transact(log, put("s", n="2"), keyed(log, "t", two=b"2", one=b"other"), run(log, "v", b"lost"))
        after = transact(log, keyed(log, "t", two=b"2"))
    before.result()
    after.result()
    with pytest.raises(Invalid, match="already in use for other content"):
        bad.result()
    assert (payloads(log, "t"), payloads(log, "v"), items(log, "s")) == ([b"1", b"2"], [b"before"], {})


def test_two_keyed_batches_of_rows_in_one_unit_do_not_confuse_each_other(open_log, monkeypatch):
    """One is known in all its partitions and the other is new: both are as they should be."""
    log = open_log()
    topic = log.topic("rows", schema=pa.schema([pa.field("k", pa.int64())]), key="k", partitions=4)
    many, others = ([{"k": n} for n in range(at, at + 8)] for at in (0, 8))
    taken: list[Any] = []
    put_runs = log._journal.put_runs
    monkeypatch.setattr(topic._journal, "put_runs", lambda runs, *rest: (taken.append(runs), put_runs(runs, *rest))[1])
    topic.append(many, idempotency_key="many")
    topic.submit(others, idempotency_key="others").result()
    topic.submit(many, idempotency_key="many").result()
    fresh = open_log("fresh")
    fresh.topic("rows", schema=topic.schema, key="k", partitions=4)

    def again(runs: Any) -> list[Run]:
        return [Run.unplaced(fresh._journal.topics["rows"][one.number], rows) for one, rows in runs]

    transact(fresh, *again(taken[0])).result()
    known, new = again(taken[2]), again(taken[1])
    assert len(known) > 1
    assert len(new) > 1
    transact(fresh, *known, *new).result()
    assert all(one.repeated for one in known)
    assert not any(one.repeated for one in new)
    found = [row["k"] for row in fresh.topic("rows", schema="latest").read()]
    assert sorted(found) == list(range(16))


# -- units that gather ------------------------------------------------------------------------------------


def test_runs_of_a_unit_that_gathers_get_their_receipts(open_log):
    """What `make` returns is placed in the unit's group, whichever partitions it goes to."""
    log = open_log()
    mine, other = part(log, "mine"), part(log, "other", 1)
    made: list[Run] = []

    def make(unit: Unit) -> list[Any]:
        for payload in unit.parts:
            made.extend([run(log, "mine", payload), run(log, "other", payload.upper(), partition=1)])
        return [put("s", newest=unit.parts[-1].decode()), *made]

    with stalled(log.topic("mine")):
        ticket = None
        for payload in (b"a", b"b", b"c"):
            ticket = log._journal.spaces.gather(
                payload, make, append=(mine, 1), size=1, join=ticket, others={other: 1}, timeout=5
            )
        assert (log.marks("mine")[0].appended, log.marks("other")[1].appended) == (3, 3)
    assert ticket is not None
    ticket.result()
    assert [receipts(one)[0][2] for one in made] == [0, 0, 1, 1, 2, 2]
    assert (payloads(log, "mine"), payloads(log, "other")) == ([b"a", b"b", b"c"], [b"A", b"B", b"C"])
    assert items(log, "s") == {"newest": "c"}


def test_runs_of_a_unit_that_gathers_learn_why_it_was_refused(open_log, monkeypatch):
    """The group's failure is theirs."""
    log = open_log()
    mine = part(log, "t")
    made = run(log, "t", b"x")
    with stalled(log.topic("t")):
        refuse_next_commit(log.topic("t"), monkeypatch, Unavailable("the disk is full"), skip=1)
        ticket = log._journal.spaces.gather(b"", lambda unit: [made], append=(mine, 1), size=1, timeout=5)
    with pytest.raises(Unavailable, match="the disk is full"):
        ticket.result()
    with pytest.raises(Unavailable, match="the disk is full"):
        made.receipt(0)
