"""What a log has and a client of a server has not, each with its reason; a test compares it with both faces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.errors import Invalid

REFUSED: dict[str, str] = {
    "path": "the log's directory is the server's; log.id says which log this is",
    "channels": "a participant's state belongs to one process: open the log where its messages arrive",
    "kept_channels": "look at them where the log is: holdfast channel list DIR",
    "kept_channel": "look at it where the log is: holdfast channel show DIR",
    "execution": "steps must be recorded by the process that runs them: open the log, or share it with share=True;"
    " log.executions.start(…) has a worker run one",
    "worker": "a worker runs where the log is: holdfast.open(path, share=True)",
    "subscribe": "the shipper's events stay in the server; wait for ticket.shipped(), or look at log.stats().shipping",
    "rotate_key": "keys never travel: rotate them where the log is: holdfast keys rotate DIR",
}
"""Verbs of the log."""

REFUSED_EXECUTIONS: dict[str, str] = {
    "prune": "prune() works; dry_run=True is asked where the log is: holdfast execution prune DIR --dry-run",
    "settle_encoded": "use log.executions.settle(…)",
    "start_encoded": "use log.executions.start(…)",
    "schedule": "schedules are declared by the process that has the log; it runs them, too",
    "unschedule": "schedules are declared by the process that has the log",
    "schedules": "schedules are looked at where the log is",
}
"""Verbs of `log.executions`."""


class RefusedVerbs:
    """Stands where a log that is open here has its channels, its keys and the events of its shipper."""

    def __init__(self) -> None:
        self.open = refused("channels")
        self.kept = refused("kept_channels")
        self.load = refused("kept_channel")
        self.rotate = refused("rotate_key")
        self.subscribe = refused("subscribe")

    def close(self) -> None:
        """Nothing was opened."""

    def forget(self) -> None:
        """In a forked child: nothing was opened."""


def refused(verb: str) -> Callable[..., NoReturn]:
    """In the place of a verb: refuses each call."""

    def refusing(*_: Any, **__: Any) -> NoReturn:
        refuse(verb)

    return refusing


def refuse(verb: str) -> NoReturn:
    """Say that this does not work over HTTP, and what does."""
    reason = {**REFUSED, **REFUSED_EXECUTIONS}[verb]
    raise Invalid(f"{verb} does not work over HTTP", hint=reason)
