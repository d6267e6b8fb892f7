"""Loose ends: messages of history that no other message of history names.

A message names the newest ones only. Of those sent at the same time some may be named by none, and a participant that
missed one of them would never learn of it; from the loose ends, all of history is found. Kept up to date with each
message that comes and goes, so that every message that is sent can name them.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.channels.wire.message import SdsMessage


class LooseEnds:
    """The loose ends of one history, in the order in which they came."""

    def __init__(self) -> None:
        self._naming: dict[str, int] = {}
        """How often messages of history name an id."""
        self._here: set[str] = set()
        self._loose: dict[str, int] = {}
        """With the number of messages that had come by then."""
        self._count = 0

    def add(self, message: SdsMessage) -> None:
        """A message came into history."""
        self._count += 1
        self._here.add(message.message_id)
        naming, loose = self._naming, self._loose
        for entry in message.causal_history:
            named = entry.message_id
            naming[named] = naming.get(named, 0) + 1
            loose.pop(named, None)
        if message.message_id not in naming:
            self._loose[message.message_id] = self._count

    def remove(self, message: SdsMessage) -> None:
        """A message left history; what only it named is loose, if it is still here."""
        self._here.discard(message.message_id)
        self._loose.pop(message.message_id, None)
        naming = self._naming
        for entry in message.causal_history:
            named = entry.message_id
            count = naming[named] - 1
            if count:
                naming[named] = count
                continue
            del naming[named]
            if named in self._here:
                self._loose[named] = 0

    def among(self, newest: int) -> list[str]:
        """Those among the newest messages."""
        return [message_id for message_id, number in self._loose.items() if number > self._count - newest]

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._loose

    def __iter__(self) -> Iterator[str]:
        return iter(self._loose)

    def __len__(self) -> int:
        return len(self._loose)
