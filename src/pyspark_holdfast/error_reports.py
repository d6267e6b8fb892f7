"""What users see when something fails in one of Spark's Python processes: the error, once, and the store it is about.

Spark prints the whole Python traceback of an error. For ours the kind, the message and the hint are enough, so we raise
them without it. An error of the store names the store, because a query's error does not show its options. When Spark
itself closes the pipe, because `limit` or `show` have seen enough, that is not an error. On the driver, an error of
ours is found again in what Spark raises.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.store.port import StoreRefused

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


_OURS = re.compile(r"holdfast\.[\w.]+\.(\w+): (.*)")
_KINDS: dict[str, type[HoldfastError]] = {
    "Corrupt": Corrupt,
    "NotFound": NotFound,
    "StoreUnavailable": Unavailable,
    "Unavailable": Unavailable,
}
"""What a worker raised; all others are Invalid."""


class StoreAware(Protocol):
    """An object that knows which store it talks to."""

    def _where(self) -> tuple[str, str]:
        """The root, and the endpoint or an empty string."""
        ...


Owner = TypeVar("Owner", bound=StoreAware)


def in_short(method: Callable[Concatenate[Owner, Given], Answer]) -> Callable[Concatenate[Owner, Given], Answer]:
    """A method whose errors are short and name the store."""

    @wraps(method)
    def called(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        try:
            return method(self, *args, **kwargs)
        except HoldfastError as error:
            raise _short(error, self) from None

    return called


def each_in_short(owner: StoreAware, rows: Iterator[Answer]) -> Iterator[Answer]:
    """The same for a generator."""
    try:
        yield from rows
    except HoldfastError as error:
        raise _short(error, owner) from None


@contextmanager
def naming_store(root: str, endpoint: str) -> Iterator[None]:
    """Make errors of the store name the store."""
    try:
        yield
    except (Unavailable, StoreRefused) as error:
        error.message += f" root={root}" + (f" endpoint={endpoint}" if endpoint else "")
        raise


def _short(error: HoldfastError, owner: StoreAware) -> HoldfastError:
    if isinstance(error, Unavailable | StoreRefused):
        root, endpoint = owner._where()
        error.message += f" root={root}" + (f" endpoint={endpoint}" if endpoint else "")
    return error.with_traceback(None)


def hush_closed_pipes() -> None:
    """In a Spark worker: keep its daemon quiet when Spark closes the pipe early."""
    if traceback.print_exc is _print_exc:
        traceback.print_exc = _print_others


_print_exc = traceback.print_exc


def _print_others(*args: Any, **kwargs: Any) -> None:
    error = sys.exception()
    if not isinstance(error, BrokenPipeError | ConnectionResetError) or not _is_daemons(error):
        _print_exc(*args, **kwargs)


def _is_daemons(error: BaseException) -> bool:
    """Whether an error was raised in Spark's daemon itself, and not in what it called."""
    way = list(traceback.walk_tb(error.__traceback__))
    return bool(way) and way[-1][0].f_code.co_filename.endswith("pyspark/daemon.py")


def raised_by_worker(error: BaseException) -> HoldfastError | None:
    """The error of ours that a Python worker raised, found in what Spark made of it; None if there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [(at, found) for at, line in enumerate(lines) if (found := _OURS.match(line))]
    if not ours:
        return None
    at, found = ours[-1]
    behind = lines[at + 1] if at + 1 < len(lines) else ""
    hint = behind.removeprefix("hint: ") if behind.startswith("hint: ") else ""
    return _KINDS.get(found[1], Invalid)(found[2], hint=hint)


def kind_of(error: HoldfastError) -> str:
    """The documented kind of an error; what was raised may be a subclass that a room keeps to itself."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == HoldfastError.__module__)
