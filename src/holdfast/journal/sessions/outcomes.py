"""What became of what a session sent, as values: kept in the log, and sent again on a repeat.

An outcome says where each run of records went, or why it was refused; it has all that a caller's receipts are made of.
An error is kept as its kind, its message, its hint and its plain fields, and comes back as the same class. No payload,
key or token is in any of them, because none is in any error.

Pure: values in, values out.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast import errors
from holdfast.errors import HoldfastError, Invalid, printable

_TEXT_MAX = 2_048
"""Characters of a message or a hint that are kept."""

Field = int | str | None


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """An error as a value."""

    kind: str
    message: str
    hint: str
    fields: dict[str, Field] = {}

    @classmethod
    def of(cls, error: HoldfastError) -> Refusal:
        """The value of an error; what is no plain value of it stays here."""
        fields: dict[str, Field] = {
            name: value
            for name, value in vars(error).items()
            if name not in ("message", "hint") and isinstance(value, (int, str))
        }
        known = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return cls(next(known), error.message[:_TEXT_MAX], error.hint[:_TEXT_MAX], fields)

    def error(self) -> HoldfastError:
        """The error again; one of a kind that this version does not know is a plain HoldfastError."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, HoldfastError)):
            kind = HoldfastError
        # Not by its constructor: that would add the values to the message a second time.
        error: HoldfastError = kind.__new__(kind, printable(self.message[:_TEXT_MAX]))
        own = _OWN.get(kind.__name__, {})
        given = {name: value for name, value in self.fields.items() if _is_like(value, own.get(name, b""))}
        error.__dict__.update({**({} if kind is Invalid else own), **given})
        error.message, error.hint = error.args[0], printable(self.hint[:_TEXT_MAX]) or kind.default_hint
        return error


_OWN: dict[str, dict[str, object]] = {
    "Corrupt": dict.fromkeys(("path", "topic", "partition", "offset")),
    "OutcomeUnknown": dict.fromkeys(("idempotency_key", "ticket")),
    "Closed": {"reason": "clean"},
    "Expired": {"first": 0},
    "Invalid": {"expected": None, "lost_partitions": None},
    "Diverged": {"path": "", "recorded": b"", "asked": b""},
    "AmbiguousEffect": {"path": "", "key": b""},
    "ExecutionHeld": {"holder": ""},
    "StepFailed": {"path": "", "type_name": ""},
    "PromiseFailed": {"reason": ""},
}
"""The fields that an error has beside its text, and what they are where nothing was said about them: no others are
taken from outside, and what is bytes stays where it is."""


def _is_like(value: Field, default: object) -> bool:
    return default is None or (isinstance(value, (int, str)) and type(value) is type(default))


class Repeat(NamedTuple):
    """A record that had been stored before: which one of the run, and where it is."""

    position: int
    partition_id: int
    offset: int
    seq: int


class RunOutcome(msgspec.Struct, frozen=True, array_like=True):
    """Where the records of one run went, one behind the other, but for those that are named."""

    partition_id: int
    first: int
    """The offset of the first record that was new; -1: none was."""
    seq: int
    count: int
    repeated: bool = False
    """All of them were stored before."""
    repeats: tuple[Repeat, ...] = ()
    refused: tuple[tuple[int, Refusal], ...] = ()
    """Records that were refused alone, by their position."""

    def place(self, position: int) -> Repeat:
        """Where one record is; raises why it was refused."""
        for at, refusal in self.refused:
            if at == position:
                raise refusal.error()
        for repeat in self.repeats:
            if repeat.position == position:
                return repeat
        gaps = sum(at < position for at, _ in self.refused) + sum(one.position < position for one in self.repeats)
        return Repeat(position, self.partition_id, self.first + position - gaps, self.seq)


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of one item: of plain rows one run, of a unit all its runs; or why nothing of it was stored."""

    error: Refusal | None = None
    runs: tuple[RunOutcome, ...] = ()

    @classmethod
    def refused(cls, error: HoldfastError) -> Outcome:
        """Nothing of it was stored."""
        return cls(Refusal.of(error))

    def again(self) -> Outcome:
        """The same, for a sender that repeats it."""
        return Outcome(self.error, tuple(msgspec.structs.replace(run, repeated=True) for run in self.runs))


Outcomes = tuple[Outcome, ...]
"""Of all items that one sequence number stands for."""
