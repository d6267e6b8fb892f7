"""Transactions whose whole effect follows from the number of records in one topic, so that any half of one shows.

Turn n of actor i appends to its partition of three topics, and changes its two spaces, in one transaction. Most turns
are plain; every fourth has an idempotency key and rows of a typed topic, which the writer stages behind a savepoint.
Some bodies are larger than a page. A turn that raises in its block comes before each: it must leave nothing.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow as pa

import holdfast
from holdfast import Keyring, Log, Settings
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.log.transactions.transaction import Transaction
from holdfast.testing import ManualClock

ACTORS = 3
_KEPT = 3
SCHEMA = pa.schema([pa.field("turn", pa.int64())])
SETTINGS = Settings.from_mapping(
    {"journal": {"checkpoint_bytes": "64KiB", "ack_timeout_ms": "60s"}, "segments": {"seal_on_close": False}}
)

Items = list[tuple[bytes, bytes]]


class _GivenUp(Exception):
    """What a block raises that is to write nothing."""


class Notes:
    """The last turn of each actor that was acknowledged, and the last that was begun."""

    def __init__(self) -> None:
        self.acked = [-1] * ACTORS
        self.begun = [-1] * ACTORS
        self.keyring = Keyring.generate("k1", clock=ManualClock(seed=3))


def body_of(actor: int, turn: int) -> bytes:
    return b"%d-%d" % (actor, turn) * (turn % 3 * 700 + 1)


def is_keyed(turn: int) -> bool:
    return turn % 4 == 3


# -- what should be there ---------------------------------------------------------------------------------


def lines_after(actor: int, turn: int) -> list[bytes]:
    """The second topic: none, one or two records a turn."""
    return [b"%d-%d/%d" % (actor, n, at) for n in range(turn + 1) for at in range(n % 3)]


def rows_after(turn: int) -> list[int]:
    """The typed topic: a row for each keyed turn."""
    return [n for n in range(turn + 1) if is_keyed(n)]


def items_after(actor: int, turn: int) -> tuple[Items, Items]:
    """Both spaces."""
    if turn < 0:
        return [], []
    kept = [(b"item %06d" % n, body_of(actor, n)) for n in range(max(0, turn - _KEPT + 1), turn + 1)]
    return [*kept, (b"newest", b"%d" % turn)], [(b"newest", b"%d!" % turn)]


# -- what is done -----------------------------------------------------------------------------------------


class Topics:
    """The topics of an open log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.orders = log.topic("orders", partitions=ACTORS)
        self.lines = log.topic("lines", partitions=ACTORS)
        self.rows = log.topic("rows", schema=SCHEMA, partitions=ACTORS)


def open_log(directory: Path, keyring: Keyring) -> Topics:
    return Topics(holdfast.open(directory, keyring=keyring, settings=SETTINGS))


def fill(tx: Transaction, topics: Topics, actor: int, turn: int) -> None:
    """All that a turn does."""
    key = f"{actor}/{turn}" if is_keyed(turn) else None
    tx.append(topics.orders, body_of(actor, turn), partition=actor, idempotency_key=key)
    tx.put(f"first-{actor}", "newest", b"%d" % turn)
    tx.put(f"first-{actor}", f"item {turn:06}", body_of(actor, turn))
    tx.delete(f"first-{actor}", f"item {turn - _KEPT:06}")
    for at in range(turn % 3):
        tx.append(topics.lines, b"%d-%d/%d" % (actor, turn, at), partition=actor)
    if key is not None:
        tx.append(topics.rows, {"turn": turn}, partition=actor, idempotency_key=key)
    tx.put(f"second-{actor}", "newest", b"%d!" % turn)


def take_turn(topics: Topics, actor: int, turn: int) -> None:
    """One turn, durable when this returns; before it, one that is given up."""
    with suppress(_GivenUp), topics.log.transaction() as tx:
        fill(tx, topics, actor, turn)
        raise _GivenUp
    with topics.log.transaction() as tx:
        fill(tx, topics, actor, turn)
    assert len(tx.receipts) == 1 + turn % 3 + is_keyed(turn)


def begin_turn(topics: Topics, actor: int, turn: int) -> UnitTicket:
    """One turn whose commit nobody waits for yet: several of them meet in one group."""
    tx = topics.log.transaction()
    tx.__enter__()
    fill(tx, topics, actor, turn)
    content = tx._end(is_wanted=True)
    assert content is not None
    return tx._hand_over(content, 60)


def live(directory: Path, notes: Notes, opens: int = 2) -> None:
    """Turns one by one and many in a group, a rotation, checkpoints, close; several times."""
    for number in range(opens):
        topics = open_log(directory, notes.keyring)
        with topics.log:
            work(topics, notes, number)


def work(topics: Topics, notes: Notes, number: int = 0) -> None:
    for _ in range(3):
        for actor in range(ACTORS):
            notes.begun[actor] += 1
            take_turn(topics, actor, notes.begun[actor])
            notes.acked[actor] = notes.begun[actor]
    newer = notes.keyring.rotated(f"k{number + 2}", clock=ManualClock(seed=number + 10))
    notes.keyring, older = newer, notes.keyring
    try:
        topics.log.rotate_key(newer)
    except holdfast.HoldfastError:
        # It may have happened or not: the old key goes on being the current one, and all are there.
        notes.keyring = Keyring({**older._keys, newer.current: newer.key(newer.current)})
        raise
    for _ in range(8):
        # Those that come while the first one is committed are one group. Of an actor only one is under way: a group
        # that the disk refuses leaves a hole, and the next one would be behind it.
        begun = [_begin(topics, notes, actor) for actor in range(ACTORS)]
        for actor, turn, ticket in begun:
            ticket.result()
            notes.acked[actor] = turn


def _begin(topics: Topics, notes: Notes, actor: int) -> tuple[int, int, UnitTicket]:
    notes.begun[actor] += 1
    turn = notes.begun[actor]
    return actor, turn, begin_turn(topics, actor, turn)


# -- what is left -----------------------------------------------------------------------------------------


def check(directory: Path, acked: list[int], keyring: Keyring) -> list[int]:
    """Open what is left: all of it is of one and the same turn, not before the acknowledged one, and goes on."""
    topics = open_log(directory, keyring)
    with topics.log:
        found = [check_actor(topics, actor, acked[actor]) for actor in range(ACTORS)]
        for actor, turn in enumerate(found):
            take_turn(topics, actor, turn + 1)
            check_actor(topics, actor, turn + 1)
    return found


def check_actor(topics: Topics, actor: int, acked: int) -> int:
    """Returns the turn that an actor is at."""
    orders = [record.payload for record in topics.orders.read(partition=actor)]
    turn = len(orders) - 1
    assert turn >= acked, f"lost: {actor} is at {turn}, acknowledged was {acked}"
    assert orders == [body_of(actor, n) for n in range(turn + 1)]
    lines = [record.payload for record in topics.lines.read(partition=actor)]
    assert lines == lines_after(actor, turn), f"torn: {actor} is at {turn}, its lines are not"
    rows = [row["turn"] for row in topics.rows.read(partition=actor)]
    assert rows == rows_after(turn), f"torn: {actor} is at {turn}, its rows are not"
    spaces = topics.log.space(f"first-{actor}"), topics.log.space(f"second-{actor}")
    items = tuple(space.items() for space in spaces)
    assert items == items_after(actor, turn), f"torn: {actor} is at {turn}, its spaces are not"
    return turn
