"""Texts for other machines: what they quote of this one's paths is left out. Pure."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

Result = TypeVar("Result")

_PATH = re.compile(r" path=.*?(?=: | [a-z_]+=|$)", re.DOTALL)
_PLACE = re.compile(r"(?:file://|(?<![\w.:/<])/(?!v1/|docs\b|metrics\b))[^\s'\"]+")
"""A path of this machine in a text; routes of the server are none."""


def without_places(text: str) -> str:
    """Without a path of this machine."""
    return _PLACE.sub("…", _PATH.sub("", text))


def without_places_in(value: Result) -> Result:
    """The same of all texts in a report."""
    stripped = _stripped(msgspec.to_builtins(value, builtin_types=(bytes,)))
    return msgspec.convert(stripped, type(value), builtin_types=(bytes,))


def _stripped(value: Any) -> Any:
    if isinstance(value, str):
        return without_places(value)
    if isinstance(value, dict):
        return {name: _stripped(one) for name, one in value.items()}
    return [_stripped(one) for one in value] if isinstance(value, list | tuple) else value
