"""What users see when something goes wrong in one of Spark's Python processes: the error, once, and what it is about.

Spark prints the whole way that an error took through Python. Of ours the kind, the message and the hint are enough, so
they leave without it; one of the store says which store, because nobody sees the options of a query in its error. A
pipe that Spark itself closes, when `limit` or `show` have seen enough, is no error at all.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.errors import HoldfastError, Unavailable
from holdfast.store.port import StoreRefused

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Placed(Protocol):
    """Whoever knows which store it speaks to."""

    def _where(self) -> tuple[str, str]:
        """The root and the endpoint, which may be empty."""
        ...


Owner = TypeVar("Owner", bound=Placed)


def in_short(method: Callable[Concatenate[Owner, Given], Answer]) -> Callable[Concatenate[Owner, Given], Answer]:
    """A method whose errors are short and name the store."""

    @wraps(method)
    def called(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        try:
            return method(self, *args, **kwargs)
        except HoldfastError as error:
            raise _short(error, self) from None

    return called


def each_in_short(owner: Placed, rows: Iterator[Answer]) -> Iterator[Answer]:
    """The same for what is given piece by piece."""
    try:
        yield from rows
    except HoldfastError as error:
        raise _short(error, owner) from None


@contextmanager
def naming_store(root: str, endpoint: str) -> Iterator[None]:
    """Errors of the store say which store."""
    try:
        yield
    except (Unavailable, StoreRefused) as error:
        error.message += f" root={root}" + (f" endpoint={endpoint}" if endpoint else "")
        raise


def _short(error: HoldfastError, owner: Placed) -> HoldfastError:
    if isinstance(error, Unavailable | StoreRefused):
        root, endpoint = owner._where()
        error.message += f" root={root}" + (f" endpoint={endpoint}" if endpoint else "")
    return error.with_traceback(None)


def hush_closed_pipes() -> None:
    """In a worker of Spark: have its daemon print nothing when Spark closed the pipe before all was said."""
    if traceback.print_exc is _print_exc:
        traceback.print_exc = _print_others


_print_exc = traceback.print_exc


def _print_others(*args: Any, **kwargs: Any) -> None:
    error = sys.exception()
    if not isinstance(error, BrokenPipeError | ConnectionResetError) or not _is_daemons(error):
        _print_exc(*args, **kwargs)


def _is_daemons(error: BaseException) -> bool:
    """Whether an error rose in Spark's daemon itself, and not in what it called."""
    way = list(traceback.walk_tb(error.__traceback__))
    return bool(way) and way[-1][0].f_code.co_filename.endswith("pyspark/daemon.py")
