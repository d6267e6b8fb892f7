"""Checks of arguments: a value of the right type, or `Invalid` with what to write instead. Pure.

A newcomer's first mistake should be answered in holdfast's words, before anything is opened or written, and not by
whatever Python says three layers below. A value that may be a secret is named by its type alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from math import isnan
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any, TypeGuard

from holdfast.errors import Invalid

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SERVER = re.compile(r"https?://", re.IGNORECASE)
_HERE = re.compile(r"\.{1,2}(/|\Z)|~")
_SECONDS_MAX = min(TIMEOUT_MAX, 1e9)
_PATIENCE_S = 60.0


def path_of(value: object, what: str = "a log") -> Path:
    """A path of this machine, absolute."""
    if not isinstance(value, str | os.PathLike) or not isinstance(text := os.fspath(value), str) or not text:
        raise Invalid(f"the path of {what} is text or a pathlib.Path, not {_kind(value)}", hint="for instance 'data'")
    if _URL.match(text):
        raise Invalid(
            f"the path of {what} is a directory of this machine, not a URL",
            hint="a log that a server has is opened by holdfast.connect('https://…')"
            if _SERVER.match(text)
            else "give the store's address as store=…: holdfast.open('data', store='s3://bucket/prefix')",
        )
    if "\0" in text or not is_text(text):
        raise Invalid(f"the path of {what} has characters that no file system allows", hint="give another name")
    return Path(text).absolute()


def store_address(value: object) -> str:
    """A store's address. A directory may be relative if it is plainly one: a path, or text such as './backup'."""
    if isinstance(value, os.PathLike) and isinstance(text := os.fspath(value), str):
        return os.path.abspath(os.path.expanduser(text))
    if not isinstance(value, str):
        raise Invalid(f"a store is a URL or a path, not {_kind(value)}", hint="for instance store='s3://bucket/prefix'")
    if not value or _URL.match(value) or value.startswith(("/", "file:")):
        return value
    if _HERE.match(value):
        return os.path.abspath(os.path.expanduser(value))
    raise Invalid(  # it may be a bucket without its scheme: no directory must be created by mistake
        "a store is a URL, or a path that is plainly one",
        hint="s3://bucket/prefix for a bucket; './backup' or pathlib.Path('backup') for a directory of this machine",
    )


def seconds(value: object, name: str = "timeout") -> float:
    """A duration. A negative one counts as 0 (to a lock, -1 would mean forever), a long one as the longest wait."""
    if type(value) is float and 0.0 <= value <= _SECONDS_MAX:  # the quick way; NaN is in no range
        return value
    if not isinstance(value, int | float) or isnan(value):
        raise Invalid(f"{name} is a number of seconds, not {_kind(value)}", hint=f"for instance {name}=2.5")
    return float(min(max(value, 0), _SECONDS_MAX))


def patience(timeout: float | None) -> float:
    """How many seconds a verb of a log waits; a minute, unless the caller says so."""
    return _PATIENCE_S if timeout is None else seconds(timeout)


def whole(value: object, name: str) -> int:
    """A whole number."""
    index = getattr(value, "__index__", None)
    if index is None or isinstance(value, type):
        raise Invalid(f"{name} is a whole number, not {_kind(value)}", hint=f"for instance {name}=10")
    return int(index())


def flag(value: object, name: str) -> bool:
    """True or False: a text such as 'no' would pass for true."""
    if not isinstance(value, bool):
        raise Invalid(f"{name} is True or False, not {_kind(value)}", hint=f"for instance {name}=True")
    return value


def text(value: object, name: str, example: str) -> str:
    """A text."""
    if not is_text(value):
        raise Invalid(f"{name} is text, not {_kind(value)}", hint=f"for instance {name}={example!r}")
    return value


def texts(value: object, name: str, example: str) -> tuple[str, ...]:
    """Several texts; a single text is not split into letters."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise Invalid(f"{name} is a list of names, not {_kind(value)}", hint=f"for instance {name}=[{example!r}]")
    return tuple(text(item, name, example) for item in value)


def several(value: object, name: str, example: str) -> Iterable[Any]:
    """Several things; text and bytes are one thing, not many."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        raise Invalid(f"{name} is a list, not {_kind(value)}", hint=f"for instance {example}")
    return value


def having(value: object, verbs: Collection[str], what: str, hint: str) -> None:
    """An object of the caller's own class must have these attributes."""
    missing = [verb for verb in verbs if not hasattr(value, verb)]
    if missing or isinstance(value, type):
        raise Invalid(f"{_kind(value)} is not a {what}: it lacks {', '.join(missing) or 'an instance'}", hint=hint)


def _kind(value: object) -> str:
    """The type of a value, without the value."""
    if value is None:
        return "None"
    name = type(value).__name__
    return "empty text" if value == "" else "text" if isinstance(value, str) else name


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is text that can be encoded."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
