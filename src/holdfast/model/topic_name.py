"""Names of topics, consumers and spaces: each is also a valid object key and directory name everywhere."""

from __future__ import annotations

import re

from holdfast.errors import Denied, Invalid

MEMBERS_WRITE = frozenset({"_consumers", "_tokens"})
"""Holdfast's own topics that processes which share a log write through its owner: where consumers are, and how often
the tokens were changed."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\Z")


def check_name(name: str, what: str = "topic") -> str:
    """A topic's name (or a consumer's, a space's …), or Invalid; '007' stays '007', and no name is a path."""
    if not isinstance(name, str) or not _NAME.match(name) or ".." in name:
        raise Invalid(
            f"not a {what} name: {name!r}",
            hint="use 1 to 200 ASCII letters, digits, '.', '_' or '-', not starting with '.' or '-', no '..'",
        )
    return name


def is_name(name: str) -> bool:
    """Whether this could be a topic's name."""
    try:
        return bool(check_name(name))
    except Invalid:
        return False


def is_own(topic: str) -> bool:
    """Whether a topic is holdfast's own: executions, channels and positions of consumers are kept in such topics."""
    return topic.startswith("_")


def check_users(topic: str) -> str:
    """A topic that users may create and append to; Denied for holdfast's own."""
    if is_own(check_name(topic)):
        raise Denied(
            f"holdfast alone writes topics whose names begin with an underscore topic={topic}",
            hint="append to a topic with another name; this one can be read",
        )
    return topic
