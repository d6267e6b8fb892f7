"""Everything holdfast raises, in one small tree.

    HoldfastError
    ├── Invalid          fix the call or the setting; nothing was written
    │   └── Undecodable  a record's payload is not what its codec, or the reader's type, says
    ├── NotFound         it is not here (any more)
    │   └── Expired      retention has removed it; `.first` is what is left
    ├── Denied           the caller may not do that
    ├── Unavailable      not now; try again later
    │   └── Full         refused for lack of room; nothing was written
    ├── Closed           this handle is finished: clean, fenced, forked or poisoned
    ├── Corrupt          stored data is damaged or was tampered with
    ├── OutcomeUnknown   it may or may not be durable: ask again with the key
    └── ExecutionError   an execution cannot continue as requested
        ├── Diverged               the program is not the one that was recorded
        ├── AmbiguousEffect        it is unknown whether a guarded effect happened: decide
        ├── ExecutionHeld          another program is running it
        ├── ExecutionCanceled      it was canceled, for good
        ├── StepFailed             a step raised something that cannot be raised again as it was
        ├── PromiseRejected        the token is not the promise's
        └── UnsupportedEntryKind   a newer version wrote this journal

A kind exists only where the caller would act differently. Every error carries `.hint`, the remedy in
one line. Values stand at the end of a message as `key=value`; no payload, key or nonce ever does.
Messages may change; kinds and attributes are the interface.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Literal, NoReturn, Self

if TYPE_CHECKING:
    from holdfast.journal.queue.ticket import BatchTicket, Ticket, UnitTicket

ClosedReason = Literal["clean", "fenced", "forked", "poisoned"]


def printable(text: str) -> str:
    """The text with an escape in place of everything that does not print: it may quote a name, a path or a peer."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


class HoldfastError(Exception):
    """The root of all errors that holdfast raises on purpose; `hint` is the remedy in one line."""

    default_hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = printable(message)
        super().__init__(self.message)
        self.hint = self.default_hint if hint is None else printable(hint)

    def again(self) -> Self:
        """A fresh copy to raise: one outcome may be raised in many threads, each with its own traceback."""
        twin = copy(self)
        twin.__cause__ = self.__cause__
        return twin

    def __copy__(self) -> Self:
        # Copies and pickles take the fields as they are: a message that has its values already gets them once.
        twin = type(self).__new__(type(self), *self.args)
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).__new__, (type(self), *self.args), self._fields()

    def _fields(self) -> dict[str, object]:
        """What goes along to another process."""
        return self.__dict__

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class Invalid(HoldfastError):
    """The call or a setting is wrong, an argument's type included; nothing was written. The hint says what to write."""


class Undecodable(Invalid):
    """A payload is not what its topic's codec, or the reader's type, says; `record.payload` has it."""

    default_hint = "record.payload has the bytes; a reader's type may be another one than the writer's"

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset
        super().__init__(_placed(message, topic=topic, partition=partition, offset=offset), hint=hint)


def _placed(message: str, **places: object) -> str:
    where = " ".join(f"{name}={value}" for name, value in places.items() if value is not None)
    return f"{message} {where}" if where else message


def other_version(what: str, **values: object) -> Invalid:
    """What is said of data whose format is not ours: nobody can keep a promise about one that he does not know."""
    said = " ".join(f"{name}={value}" for name, value in values.items())
    return Invalid(
        f"another version of holdfast wrote this {what} {said}",
        hint="use the version that wrote it; if that is a newer one: pip install -U holdfast-log",
    )


class NotFound(HoldfastError):
    """What was asked for is not here, or no longer here; for a mistyped name the message has the one that was
    probably meant.
    """


class Expired(NotFound):
    """Retention has removed these records; `first` is the first offset that is left: go on with `start=error.first`,
    or `consumer.seek("first")`.
    """

    def __init__(self, message: str, *, first: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.first = first


class Denied(HoldfastError):
    """The caller may not do that: no token, or one that does not allow it. Nothing was done."""

    default_hint = "give a token that allows it: holdfast token create DIR NAME --scope … --topic …"


class Unavailable(HoldfastError):
    """Not possible now: locked, a full disk, stalled, not sealed or not shipped in time, a store that does not
    answer. The same call may succeed later.
    """


class Full(Unavailable):
    """Refused because a bound is reached; nothing was written."""

    default_hint = "wait for earlier tickets before submitting more, or raise journal.queue_records_max"


class Closed(HoldfastError):
    """This handle can no longer be used; `reason` says why.

    `clean`: it was closed. `poisoned`: a disk error or a defect. `fenced`: another process took over the log, here or
    on the store, or its directory was moved away or removed. `forked`: it was opened before a fork.
    """

    def __init__(self, message: str, *, reason: ClosedReason = "clean", hint: str | None = None) -> None:
        super().__init__(message, hint=_REOPEN[reason] if hint is None else hint)
        self.reason: ClosedReason = reason


_REOPEN: dict[ClosedReason, str] = {
    "clean": "open the log again with holdfast.open(path)",
    "fenced": "another process owns this log now; open it there",
    "forked": "open the log after the fork, in the process that uses it; with share=True it works before and after",
    "poisoned": "close the log and open it again: recovery keeps everything that was acknowledged",
}


class Corrupt(HoldfastError):
    """Stored data is damaged: it says where, and nothing damaged is ever returned as good."""

    default_hint = (
        "what is intact can still be read with holdfast.open(path, read_only=True); restore the rest from a copy"
    )

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.path, self.topic, self.partition, self.offset = path, topic, partition, offset
        super().__init__(_placed(message, path=path, topic=topic, partition=partition, offset=offset), hint=hint)


class OutcomeUnknown(HoldfastError):
    """The append may or may not be durable.

    With an idempotency key the same append can simply be repeated: it writes nothing twice and returns
    the original receipt. Without one, `ticket` still settles for as long as the process lives.
    """

    def __init__(
        self,
        message: str,
        *,
        idempotency_key: bytes | None = None,
        ticket: Ticket | UnitTicket | BatchTicket | None = None,
        hint: str | None = None,
    ) -> None:
        if hint is None:
            hint = (
                "repeat the append with the same idempotency_key: it returns the original receipt"
                if idempotency_key is not None
                else "wait on error.ticket, or read the topic back; give idempotency_key to make retries safe"
            )
        super().__init__(message, hint=hint)
        self.idempotency_key = idempotency_key
        self.ticket = ticket

    def _fields(self) -> dict[str, object]:
        return {**self.__dict__, "ticket": None}  # it settles in this process alone


class ExecutionError(HoldfastError):
    """An execution cannot go on as requested; the root of those below."""


class Diverged(ExecutionError):
    """The program asks for something else than what was recorded at this place; nothing was run."""

    def __init__(self, message: str, *, path: str, recorded: bytes, asked: bytes, hint: str | None = None) -> None:
        super().__init__(f"{message} step={path} recorded={recorded[:8].hex()} asked={asked[:8].hex()}", hint=hint)
        self.path, self.recorded, self.asked = path, recorded, asked

    default_hint = (
        "run the program that began this execution, or mark the change with ctx.version(…), or fork the execution"
        " before this step"
    )


class AmbiguousEffect(ExecutionError):
    """A guarded effect was begun and nobody knows whether it happened; the step was not run again."""

    def __init__(self, message: str, *, path: str, key: bytes, hint: str | None = None) -> None:
        super().__init__(f"{message} step={path} key={key[:8].hex()}", hint=hint)
        self.path, self.key = path, key

    default_hint = (
        "find out whether the effect happened, then record its result with `holdfast execution settle`, or run again"
        " with on_ambiguous='rerun' or 'skip'"
    )


class ExecutionHeld(ExecutionError):
    """Another program runs this execution right now, or its writer abandoned it."""

    def __init__(self, message: str, *, holder: str, hint: str | None = None) -> None:
        super().__init__(f"{message} holder={holder}", hint=hint)
        self.holder = holder

    default_hint = "wait for its end, or cancel it first"


class ExecutionCanceled(ExecutionError):
    """The execution was canceled and never goes on."""

    default_hint = "begin another one, or fork it"


class StepFailed(ExecutionError):
    """A step raised something that cannot be made again here, or whose class is in no module that is loaded, for a
    journal imports nothing. Its type and message are all there is.
    """

    def __init__(self, message: str, *, path: str, type_name: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path, self.type_name = path, type_name


class PromiseRejected(ExecutionError):
    """The token does not belong to this promise; nothing was changed."""

    default_hint = "settle it with the token that was given out when it was made"


class PromiseFailed(ExecutionError):
    """The holder of the promise's token rejected it; `reason` is what they said."""

    def __init__(self, message: str, *, reason: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class WaitTimedOut(ExecutionError, TimeoutError):
    """What the program waited for did not come in time; that is recorded, and every later run gets the same. Also a
    `TimeoutError`.
    """


class UnsupportedEntryKind(ExecutionError):
    """The journal has a kind of entry that this version does not know; nothing was run or written. Use the newer
    version.
    """


def refuse_to_travel(_: object) -> NoReturn:
    """`__reduce__` of what is at work in this process, so that nobody wonders what it was that cannot be pickled."""
    raise TypeError(
        "an open log, its topics, tickets and consumers cannot be sent to another process;"
        " pass the path, and open the log there with holdfast.open(path, share=True)"
    )
