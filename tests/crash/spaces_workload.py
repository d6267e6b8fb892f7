"""Spaces whose whole state follows from the number of their records, so that any half of a commit shows.

Turn n of space i appends one record to partition i and, in the same unit, replaces a snapshot, puts an item and deletes
one; every seventh turn drops the space instead. Bodies of some are larger than a page.
"""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast import Keyring, Log, Settings
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.spaces import Item
from holdfast.model.record_columns import Columns
from holdfast.testing import ManualClock
from tests.stalled import stalled

SPACES = 3
_KEPT, _ROUND = 3, 7
SETTINGS = Settings.from_mapping(
    {"journal": {"checkpoint_bytes": "64KiB", "ack_timeout_ms": "60s"}, "segments": {"seal_on_close": False}}
)


class Notes:
    """The last turn of each space that was acknowledged, and the last that was begun."""

    def __init__(self) -> None:
        self.acked = [-1] * SPACES
        self.begun = [-1] * SPACES
        self.keyring = Keyring.generate("k1", clock=ManualClock(seed=3))


def name_of(space: int) -> str:
    return f"space-{space}"


def payload_of(space: int, turn: int) -> bytes:
    return b"%d-%d" % (space, turn)


def body_of(space: int, turn: int) -> bytes:
    return payload_of(space, turn) * (turn % 3 * 700 + 1)


def state_after(space: int, turn: int) -> list[Item]:
    """What a space holds after a turn; before the first, nothing."""
    if turn < 0 or turn % _ROUND == _ROUND - 1:
        return []
    first = max(turn // _ROUND * _ROUND, turn - _KEPT + 1)
    items = [(b"item %d" % n, n, body_of(space, n)) for n in range(first, turn + 1)]
    return [(b"snapshot", -1, body_of(space, turn) + b"!"), *items]


def begin_turn(log: Log, space: int, turn: int) -> UnitTicket:
    """One turn, in one unit."""
    journal = log._journal
    append = journal.topics["t"][space], Columns([payload_of(space, turn)], [turn])
    if turn % _ROUND == _ROUND - 1:
        return journal.spaces.change(name_of(space), drop=True, append=append, timeout=60)
    puts = [(b"snapshot", -1, body_of(space, turn) + b"!"), (b"item %d" % turn, turn, body_of(space, turn))]
    return journal.spaces.change(name_of(space), puts, [b"item %d" % (turn - _KEPT)], append=append, timeout=60)


def open_log(directory: Path, keyring: Keyring) -> Log:
    log = holdfast.open(directory, keyring=keyring, settings=SETTINGS)
    log.topic("t", partitions=SPACES)
    return log


def live(directory: Path, notes: Notes, opens: int = 2) -> None:
    """Turns one by one and many in a group, a rotation, checkpoints, close; twice."""
    for number in range(opens):
        with open_log(directory, notes.keyring) as log:
            work(log, notes, number)


def work(log: Log, notes: Notes, number: int = 0) -> None:
    for _ in range(3):
        _take(log, notes, 1)
    newer = notes.keyring.rotated(f"k{number + 2}", clock=ManualClock(seed=number + 10))
    notes.keyring, older = newer, notes.keyring
    try:
        log.rotate_key(newer)
    except holdfast.HoldfastError:
        # It may have happened or not: the old key goes on being the current one, and all are there.
        notes.keyring = Keyring({**older._keys, newer.current: newer.key(newer.current)})
        raise
    with stalled(log.topic("t")):
        tickets = [begin_all(log, notes) for _ in range(6)]
    for turns in tickets:
        _settle(notes, turns)
    _take(log, notes, 4)


def _take(log: Log, notes: Notes, count: int) -> None:
    for _ in range(count):
        _settle(notes, begin_all(log, notes))


def begin_all(log: Log, notes: Notes) -> list[tuple[int, int, UnitTicket]]:
    """The next turn of every space."""
    begun = []
    for space in range(SPACES):
        notes.begun[space] += 1
        begun.append((space, notes.begun[space], begin_turn(log, space, notes.begun[space])))
    return begun


def _settle(notes: Notes, turns: list[tuple[int, int, UnitTicket]]) -> None:
    for space, turn, ticket in turns:
        ticket.result()
        notes.acked[space] = turn


def check(directory: Path, acked: list[int], keyring: Keyring) -> list[int]:
    """Open what is left: records and items are of one and the same turn, and not before the acknowledged one."""
    with open_log(directory, keyring) as log:
        found = [check_space(log, space, acked[space]) for space in range(SPACES)]
        for space, turn in enumerate(found):
            begin_turn(log, space, turn + 1).result()
            check_space(log, space, turn + 1)
    return found


def check_space(log: Log, space: int, acked: int) -> int:
    """Returns the turn that a space is at."""
    payloads = [record.payload for record in log.topic("t").read(partition=space)]
    turn = len(payloads) - 1
    assert turn >= acked, f"lost: {space} is at {turn}, acknowledged was {acked}"
    assert payloads == [payload_of(space, n) for n in range(turn + 1)]
    items = log._journal.spaces.load(name_of(space))
    assert items == state_after(space, turn), f"torn: {space} has records of turn {turn} and items {summary(items)}"
    return turn


def summary(items: list[Item]) -> list[tuple[bytes, int, int]]:
    return [(key, number, len(body)) for key, number, body in items]
