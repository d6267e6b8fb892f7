"""One session: which sequence number may come, and what is known about those that came.

A *member* (a client process of a shared log) numbers what it sends 1, 2, 3 … and says with each how far it has received
answers: its `floor`. Answers from there on are kept. A number may be missing only below the floor: then its sender was
informed of the refusal. A *producer* (`log.producer(name)`) has no floor: its newest answers are kept, so many, and no
number may ever be missing.

    below the floor         forgotten: nobody knows whether it was written, so it never is
    answered                the same answer again
    under way               a repeat waits for the same
    the expected one        written
    beyond the expected     a gap: Invalid, which says what is expected
    between, not answered   it was refused while later ones were written, and stays refused

Pure: it learns what was put, stored and refused. Guarded by the queue's lock.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from holdfast.errors import Corrupt, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.journal.sessions.outcomes import Outcome, Outcomes
from holdfast.model.control_rows import SESSION_NAME_BYTES_MAX, SessionRow

MEMBER, PRODUCER = b"m", b"p"
"""What names of sessions begin with, as they are stored."""

_encode = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(tuple[int, Outcomes]).decode
_decode_answers = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_number = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw]).decode


class PendingNumber(Protocol):
    """What was put under a sequence number and is not stored yet."""

    @property
    def is_lost(self) -> bool: ...  # noqa: D102


class SessionState:
    """What is known about one session."""

    __slots__ = (
        "answers", "floor", "is_producer", "last", "name", "pending", "put", "refused", "start", "used_us", "weight",
    )  # fmt: skip

    def __init__(self, name: bytes, used_us: int, start: int = 1) -> None:
        self.name = name
        self.is_producer = name.startswith(PRODUCER)
        """Whether it is one with numbers of its user's own."""
        self.last = 0
        """The highest number that was stored …"""
        self.put = 0
        """… and the highest that was put."""
        self.floor = self.start = start
        self.used_us = used_us
        self.weight = 0
        """What it adds to the log's sum; 0: it is not stored yet."""
        self.answers: dict[int, bytes] = {}
        """What was stored, from the floor on, encoded with its number."""
        self.pending: dict[int, PendingNumber] = {}
        self.refused: dict[int, Outcomes] = {}
        """Of a member: what was refused, and that its sender may not have heard of yet."""

    @property
    def is_stored(self) -> bool:
        """Whether the log has it."""
        return bool(self.weight)

    def expected(self, floor: int = 0) -> int:
        """The number that may come next."""
        if self.is_producer:
            return (self.put or self.last) + 1 if self.put or self.last else self.start
        return max(max(self.put, self.last) + 1, floor)

    def ask(self, sequence: int, floor: int) -> PendingNumber | Outcomes | None:
        """What is known about a number; None: it may be written now. Raises if it never may."""
        pending = self.pending.get(sequence)
        if pending is not None and pending.is_lost:
            del self.pending[sequence]
            self.put = max(self.pending, default=self.last)
            pending = None
        known: PendingNumber | Outcomes | None = pending or self.refused.get(sequence)
        if known is not None:
            return known
        if (answer := self.answers.get(sequence)) is not None:
            return _decode_answer(answer)[1]
        if sequence < self.floor:
            raise self._forgotten(sequence)
        expected = self.expected(floor)
        if sequence > expected:
            raise SequenceGap(sequence, expected)
        if sequence < expected:
            raise _passed(sequence, expected)
        return None

    def newest(self) -> Outcomes:
        """What became of the newest number that was stored, as far as that is remembered."""
        answer = next(reversed(self.answers.values()), None)
        return () if answer is None else _decode_answer(answer)[1]

    def note_floor(self, floor: int) -> None:
        """A member has received all answers below this."""
        if self.refused:
            self.refused = {number: error for number, error in self.refused.items() if number >= floor}

    def note_put(self, sequence: int, pending: PendingNumber) -> None:
        """This number is under way."""
        self.pending[sequence] = pending
        self.put = sequence

    def note_failed(self, sequence: int, outcomes: Outcomes) -> None:
        """Nothing of this number was stored; of a producer nothing behind it will be, before it comes again."""
        self.pending.pop(sequence, None)
        if self.is_producer:
            for later in [number for number in self.pending if number > sequence]:
                del self.pending[later]
            self.put = max(self.pending, default=self.last)
        else:
            self.refused[sequence] = outcomes

    def _forgotten(self, sequence: int) -> HoldfastError:
        if self.is_producer and sequence < self.start and not self.last:
            return SequenceGap(sequence, self.start)
        if self.is_producer:
            return Invalid(
                f"this was written before, and its receipt is not remembered any more sequence={sequence}"
                f" last={self.last}",
                hint=f"use sequence={self.last + 1}; journal.session_answers_max says how many are remembered",
            )
        return OutcomeUnknown(
            f"a group of a session came again after its answer was forgotten sequence={sequence} floor={self.floor}",
            hint="read back what it may have written",
        )


class SequenceGap(Invalid):
    """A number is missing; `expected` is the one that may come."""

    def __init__(self, sequence: int, expected: int) -> None:
        self.expected = expected
        super().__init__(
            f"a sequence number is missing; nothing was written sequence={sequence} expected={expected}",
            hint=f"send sequence={expected} first: numbers of one producer follow each other without a gap",
        )


def _passed(sequence: int, expected: int) -> Unavailable:
    return Unavailable(
        f"this was refused, and later ones were written since; nothing was written sequence={sequence}",
        hint=f"append it again under the next number sequence={expected}",
    )


def _array(length: int) -> bytes:
    """How MessagePack begins an array of this length: its items, which are encoded already, follow."""
    return bytes((0x90 | length,)) if length < 16 else b"\xdd" + length.to_bytes(4, "big")


class StagedSession:
    """What a group is about to make of a session."""

    __slots__ = ("answers", "floor", "last", "session")

    def __init__(self, session: SessionState) -> None:
        self.session = session
        self.last = session.last
        self.floor = session.floor
        self.answers = session.answers
        """Never changed, always replaced: the session has it until the group is durable."""

    def take(self, sequence: int, floor: int, outcomes: Outcomes, answers_max: int) -> None:
        """One more number is stored with this group."""
        self.last = max(self.last, sequence)
        answer = _encode((sequence, outcomes))
        if floor >= sequence:  # what most of them are: everything else was received
            self.floor, self.answers = floor, {sequence: answer}
            return
        answers = {**self.answers, sequence: answer}
        if self.session.is_producer:
            while len(answers) > answers_max:
                del answers[next(iter(answers))]
            floor = next(iter(answers))
        if floor > self.floor:
            self.floor = floor
            answers = {number: answer for number, answer in answers.items() if number >= floor}
        self.answers = answers

    def row(self, used_us: int, key_epoch: int) -> SessionRow:
        """The session as it will be stored."""
        answers = _array(len(self.answers)) + b"".join(self.answers.values())
        return SessionRow(self.session.name, self.last, self.floor, used_us, answers, key_epoch)

    def accept(self, used_us: int, weight: int) -> None:
        """It is durable."""
        session = self.session
        session.last, session.floor, session.answers = self.last, self.floor, self.answers
        session.used_us, session.weight = used_us, weight


def restored(row: SessionRow, weight: int) -> SessionState:
    """A session as it was stored; raises Corrupt where that cannot be."""
    session = SessionState(row.name, row.used_us)
    session.last, session.floor, session.weight = row.last, row.floor, weight
    try:
        answers = {_decode_number(answer)[0]: bytes(answer) for answer in _decode_answers(row.answers)}
        for answer in answers.values():
            _decode_answer(answer)
    except msgspec.MsgspecError:
        raise Corrupt("what a session was answered cannot be read") from None
    if not (
        row.name[:1] in (MEMBER, PRODUCER)
        and 1 < len(row.name) <= SESSION_NAME_BYTES_MAX
        and 0 < row.floor <= row.last + 1
        and all(row.floor <= number <= row.last for number in answers)
    ):
        raise Corrupt("a session is not what it must be")
    session.answers = answers
    return session


def refused_all(items: int, error: HoldfastError) -> Outcomes:
    """The same refusal for each of so many items."""
    return (Outcome.refused(error),) * items
