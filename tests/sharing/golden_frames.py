"""One frame of each kind, made of fixed values; `python -m tests.sharing.golden_frames` writes what is missing."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import Corrupt, Unavailable
from holdfast.journal.journal import Run
from holdfast.journal.queue.forwarded import ForwardedProduced, ForwardedRows, ForwardedUnit, Item
from holdfast.journal.sessions.outcomes import Outcome, Refusal, Repeat, RunOutcome
from holdfast.journal.state.operations import ChangeSpace
from holdfast.journal.state.partition import Partition
from holdfast.model.record_columns import Columns, EncodedRows, Row
from holdfast.owner import wire
from holdfast.owner.group_frames import PackedGroup
from holdfast.signals import Signal

PLACE = Path(__file__).parent.parent / "golden" / "frames"
LOG, SESSION = bytes(range(16)), bytes(range(16, 32))
PARTITIONS = {number: Partition(number, "orders", number - 3, LOG, Signal()) for number in (3, 4)}
ROWS: list[Row] = [
    (b"first", 1_700_000_000_000_000, None, None),
    (b"", -1, (b"key", b"kind", b"\x81\xa1h\xc4\x01v"), bytes(range(32))),
]


def items() -> list[Item]:
    """All kinds of items and operations."""
    encoded = EncodedRows(2, 5, 7, b"the bytes of an entry's body", b"fingerprint")
    encoded.key = encoded.batch = bytes(range(32))
    keyed = Run.unplaced(PARTITIONS[4])
    keyed.rows, keyed.extras, keyed.keyed = ROWS, True, True
    transaction = [
        Run.unplaced(PARTITIONS[3], Columns([b"a", b"b"], [1, 2], {1: (b"k", None, None)})),
        keyed,
        ChangeSpace(b"space/stock", ((b"chairs", 1, b"12"),), (b"tables",)),
    ]
    return [
        ForwardedRows(PARTITIONS[3], ROWS, 8),
        ForwardedUnit([Run.unplaced(PARTITIONS[4], encoded)], 2, 28, None, False, True),
        ForwardedUnit(list(transaction), 4, 30, "scope", True, False),
        ForwardedProduced(b"device-7", 9, 1, ForwardedRows(PARTITIONS[4], ROWS[:1], 5)),
    ]


def frames() -> dict[str, bytes]:
    """Every frame by its name."""
    digests = {"journal": bytes(8), "store": b"\1" * 8}
    hello = wire.Hello(1, "0.1.0", LOG, SESSION, 4711, digests, bytes(range(32)), True)
    gone = Refusal.of(Corrupt("damaged", topic="orders", partition=0, offset=7))
    outcomes = (
        Outcome(None, (RunOutcome(3, 7, 5, 2),)),
        Outcome(None, (RunOutcome(4, 9, 6, 3, False, (Repeat(1, 3, 2, 1),), ((2, gone),)),)),
        Outcome(gone),
    )
    made = {
        "hello": wire.frame(wire.HELLO, hello),
        "challenge": wire.frame(wire.CHALLENGE, wire.Challenge(bytes(range(32, 64)))),
        "proof": wire.frame(wire.PROOF, wire.Proof(b"proof")),
        "welcome": wire.frame(wire.WELCOME, wire.Welcome(1, "0.1.0", 7, 41, b"proof")),
        "refused": wire.frame(wire.REFUSED, Refusal.of(Unavailable("not now", hint="later"))),
        "group": PackedGroup(42, items()).buffers(40),
        "answer": wire.frame(wire.ANSWER, wire.GroupAnswer(42, outcomes)),
        "answer-refused": wire.frame(wire.ANSWER, wire.GroupAnswer(43, (), gone)),
        "call": wire.frame(wire.CALL, wire.Call(5, "create_topic"), b"request"),
        "result": wire.frame(wire.RESULT, wire.Result(5), b"answer"),
        "result-refused": wire.frame(wire.RESULT, wire.Result(5, gone)),
        "event": wire.frame(wire.EVENT, wire.OwnerEvent("marks"), b"body"),
        "bye": wire.frame(wire.BYE),
        "closing": wire.frame(wire.CLOSING),
    }
    return {name: b"".join(buffers) for name, buffers in made.items()}


if __name__ == "__main__":
    for name, content in frames().items():
        path = PLACE / f"{name}.frame"
        if not path.exists():
            path.write_bytes(content)
