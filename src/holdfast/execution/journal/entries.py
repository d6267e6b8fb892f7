"""Entries: what an execution's journal consists of, and a row per execution. Values and their bytes, no I/O.

The kinds of entries are a closed set; one that this version does not know is refused (`UnsupportedEntryKind`), never
skipped, because a replay without it would run an effect again. Entries are stored in *blocks*: what one commit brought,
in order. A block says which execution it belongs to and which number its first entry has, so that blocks of another
execution, and gaps between blocks, are found. (That nothing was edited, lost or put back is the space's business.)

All of it is MessagePack. Structs are arrays with a number in front; fields may be added at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from holdfast.errors import Corrupt, HoldfastError, UnsupportedEntryKind
from holdfast.execution.journal.execution_id import ExecutionId

VERSION = 1
_NEWER = "it was written by a newer holdfast: use that one to continue this execution"

Status = Literal["queued", "running", "completed", "failed", "aborted", "canceled"]
STATUSES: tuple[Status, ...] = get_args(Status)
ENDED: frozenset[str] = frozenset({"completed", "failed", "aborted", "canceled"})

Effect = Literal["idempotent", "at_least_once", "exactly_once_guarded"]
OnAmbiguous = Literal["skip", "fail", "rerun"]


class StepResult(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """A step is finished: what it gave, or (`is_error`) what it raised."""

    path: str
    key: bytes
    effect: str
    payload: bytes
    at_us: int
    started_us: int = 0
    attempts: int = 1
    is_error: bool = False
    reference: bytes = b""
    """Where the payload is, if it is not here (a claim check)."""


class EffectIntent(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """A guarded effect is about to happen."""

    path: str
    key: bytes
    effect: str
    at_us: int


class PromiseCreated(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """A holder of the token may settle this promise."""

    path: str
    promise: bytes
    token_hash: bytes
    at_us: int


class PromiseResolved(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """The promise is settled; the first one counts."""

    promise: bytes
    payload: bytes
    at_us: int
    is_error: bool = False


class TimerArmed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """The program sleeps until then."""

    path: str
    timer: bytes
    due_us: int
    at_us: int


class TimerFired(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """That time has come."""

    path: str
    timer: bytes
    at_us: int


class Folded(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """What entries before it come to, in one entry; those that no longer matter are left out.

    It has one number, and stands for the `count` entries below `upto`. In a block of its own (`folded`) it has the
    number of the last of them. At the beginning of an ordinary block (a past that was written anew) it has the number
    `upto`, and stands for everything before.
    """

    upto: int
    count: int
    entries: tuple[bytes, ...]
    at_us: int
    steps: int = 0
    """Steps among them that are finished: they no longer count."""


class SignalSent(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=8):
    """A signal came from outside; it waits for a program that takes its name."""

    name: str
    signal: bytes
    payload: bytes
    at_us: int


class SignalTaken(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=9):
    """The program got this signal, or (empty) its time was up."""

    path: str
    signal: bytes
    at_us: int


class AttemptFailed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=10):
    """A step was tried and raised; it is tried again."""

    path: str
    attempt: int
    error: str
    at_us: int
    retry_us: int


class AmbiguityResolved(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=11):
    """Nobody knows whether a guarded effect happened; this is what was decided: the audit record."""

    path: str
    key: bytes
    effect: str
    policy: str
    at_us: int


class VersionMarked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=12):
    """Which version of a changed piece of program this execution runs."""

    path: str
    version: int
    at_us: int


class Opened(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=13):
    """A process began, or went on; everything behind this entry was written by it."""

    epoch: int
    at_us: int
    generation: int = 0


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=14):
    """The program's end: what it returned, or (`failed`) what it raised."""

    status: str
    payload: bytes
    at_us: int


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=15):
    """A long step is alive, and how far it is."""

    path: str
    payload: bytes
    at_us: int


class Administered(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=16):
    """An intervention from outside: canceled, resumed, forked, rewound."""

    action: str
    detail: str
    at_us: int


class Forked(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=17):
    """All before this entry happened in another execution, which this one was forked from: its keys are that one's."""

    origin: bytes
    at_us: int


Entry = (
    StepResult
    | EffectIntent
    | PromiseCreated
    | PromiseResolved
    | TimerArmed
    | TimerFired
    | Folded
    | SignalSent
    | SignalTaken
    | AttemptFailed
    | AmbiguityResolved
    | VersionMarked
    | Opened
    | Ended
    | Heartbeat
    | Administered
    | Forked
)
"""The closed set."""


class ExecutionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of an execution without its journal."""

    id: bytes
    kind: str
    status: str
    created_us: int
    updated_us: int
    ended_us: int = 0
    epoch: int = 0
    """The ownership of the log under which it was opened last; if that is over, its program is not running."""
    generation: int = 0
    """How often it was begun anew after its end."""
    entries: int = 0
    """Entries when it was opened or ended last."""
    size: int = 0
    """Their bytes."""
    queue: str = ""
    priority: int = 0
    due_us: int = 0
    """Not before this time."""
    attempts: int = 0
    input: bytes = b""
    """What the function is called with, for executions that a worker runs."""
    note: str = ""
    """Why it ended as it did; no payload."""
    parent: bytes = b""
    """The execution that it was forked from, or that began it."""

    @property
    def execution(self) -> ExecutionId:
        """The id as a UUID."""
        return ExecutionId(bytes=self.id)


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Entries of one commit."""

    version: int
    execution: bytes
    first: int
    entries: Sequence[Entry]


_encoder = msgspec.msgpack.Encoder()
_blocks = msgspec.msgpack.Decoder(Block)
_entries: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)
_rows = msgspec.msgpack.Decoder(ExecutionRow)

encode_entry = encode_row = _encoder.encode


def encode_block(execution: ExecutionId, first: int, entries: Sequence[Entry]) -> bytes:
    """A block's bytes."""
    return _encoder.encode(Block(VERSION, execution.bytes, first, entries))


def decode_block(body: bytes, execution: ExecutionId, first: int) -> Sequence[Entry]:
    """The entries of a block of this execution that begins with this number."""
    block = decode_any_block(body)
    if block.execution != execution.bytes or block.first != first:
        raise Corrupt(f"a block of an execution's journal is not in its place execution={execution} entry={first}")
    return block.entries


def decode_any_block(body: bytes) -> Block:
    """A block whose place is not known yet, as records of the topic have it."""
    try:
        block = _blocks.decode(body)
    except msgspec.DecodeError as error:
        raise _refused(error) from None
    if block.version != VERSION:
        raise UnsupportedEntryKind(
            f"an execution's journal has a block of an unknown version={block.version}", hint=_NEWER
        )
    return block


def decode_entry(body: bytes) -> Entry:
    """One entry out of a folded prefix."""
    try:
        return _entries.decode(body)
    except msgspec.DecodeError as error:
        raise _refused(error) from None


def decode_row(body: bytes) -> ExecutionRow:
    """The row of an execution."""
    try:
        row = _rows.decode(body)
    except msgspec.DecodeError:
        raise Corrupt("the row of an execution does not decode") from None
    if len(row.id) != 16 or row.status not in STATUSES:
        raise Corrupt("the row of an execution is none")
    return row


def _refused(error: msgspec.DecodeError) -> HoldfastError:
    if str(error).startswith("Invalid value "):
        return UnsupportedEntryKind(
            f"an execution's journal has an entry of a kind that this version does not know: {error}", hint=_NEWER
        )
    return Corrupt("an entry of an execution's journal does not decode")
