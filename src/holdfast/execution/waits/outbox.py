"""The other side of the inbox: a process that does not own the log leaves a message and waits for its answer.

The message is durable before the wait begins: if this process dies, or gives up, the owner applies it all the same, and
if the owner dies, the next one does. An answer counts only if it proves itself like a message (`inbox_message.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast import disk
from holdfast.clock import SystemClock
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.execution.waits.inbox_folder import InboxFolder
from holdfast.execution.waits.inbox_message import (
    ANSWER,
    InboxAnswer,
    Message,
    NotAMessage,
    decode_answer,
    encode,
    file_name,
)
from holdfast.journal.journal import Journal
from holdfast.signals import Flag

_LOOK_S = 0.02


class Outbox:
    """Sends to the owner of a log that is open here for reading."""

    def __init__(self, folder: InboxFolder, journal: Journal) -> None:
        self._folder = folder
        self._journal = journal
        self._monotonic = SystemClock().monotonic

    def ask(self, message: Message, has_owner: Callable[[], bool], timeout: float) -> InboxAnswer | None:
        """Leave a message, durably, and wait for its answer; None when the log has no owner any more.

        Once more is no harm. Raises OutcomeUnknown when the time is up.
        """
        deadline = self._monotonic() + timeout
        self._leave(message)
        pause = Flag()
        while True:
            owned = has_owner()  # before looking: an owner that ends may have answered
            if (found := self._found(message)) is not None or not owned:
                return found
            if self._monotonic() >= deadline:
                raise OutcomeUnknown(
                    f"the owner of the log has not answered within {timeout:g} s",
                    hint="the message stays in its inbox and is applied as soon as the owner comes to it",
                )
            pause.wait(_LOOK_S)

    def withdraw(self, message: Message) -> None:
        """Take a message back that nobody needs any more, and its answer."""
        self._folder.take_away(file_name(message))
        self._folder.take_away(file_name(message, ANSWER))

    def _leave(self, message: Message) -> None:
        self._folder.require()
        self._folder.check_room()
        content = encode(message, self._journal.message_keys)
        try:
            self._folder.write(file_name(message), content, SystemClock().random_bytes(4).hex())
        except OSError as error:
            raise Unavailable(
                f"the message could not be left path={self._folder.path}: {error.strerror}",
                hint=disk.remedy(error, "run this as the user who owns the log"),
            ) from error

    def _found(self, message: Message) -> InboxAnswer | None:
        name = file_name(message, ANSWER)
        try:
            found = decode_answer(self._folder.read(name), message, self._journal.message_keys)
        except (FileNotFoundError, PermissionError, NotAMessage):
            return None
        self._folder.take_away(name)
        return found
