"""Messages of other processes, taken up by the owner of the log: each is applied once, and answered.

What a message asks for is done by `work/requests.py`, which returns when it is durable. Then the message's id and its
answer are put into the space `execution-inbox`; then the answer becomes a file; then the message is removed. A crash in
between repeats what was not finished: a message whose id is in the space is answered again and not applied again. A
crash between the work and that note has it requested a second time, so requests say what ids things get: twice is once.

The space remembers the latest `KEPT` messages, and up to which time it has forgotten others; a message that is older
than that, or older than a day, is refused, so that nobody can have one applied again by putting a copy of it back.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.caller import once
from holdfast.errors import Closed, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.execution.waits.inbox_folder import InboxFolder
from holdfast.execution.waits.inbox_message import (
    ANSWER,
    InboxAnswer,
    Message,
    NotAMessage,
    answer,
    decode_message,
    encode,
    file_name,
    refusal,
)
from holdfast.journal.journal import Journal

SPACE = "execution-inbox"
KEPT = 2_000
_AGE_MAX_US = 86_400_000_000
_ANSWER_AGE_MAX_US = 3_600_000_000
_AT_ONCE = 100
"""Messages that are taken up in one go."""
_FORGOTTEN = b"forgotten"
"""The item whose number is the time up to which messages were forgotten."""

Do = Callable[[str, Mapping[str, Any]], Any]
"""Does what a message asks for, an action and its fields, durably; what it returns is the answer's value."""

logger = logging.getLogger("holdfast.executions")
_encode = msgspec.msgpack.encode
_answers = msgspec.msgpack.Decoder(InboxAnswer)


class Inbox:
    """The owner's side of the inbox."""

    def __init__(self, folder: InboxFolder, journal: Journal, do: Do, timeout: float) -> None:
        self._folder = folder
        self._do = do
        self._journal = journal
        self._clock = journal.clock
        self._timeout = timeout
        self._applied: dict[bytes, tuple[int, bytes]] | None = None
        """Time and answer of messages that were applied, the oldest first."""
        self._forgotten_us = 0
        self._problem: str | None = None
        self._lock = RLock()

    # -- messages ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Take up what lies in the folder."""
        problem = self._folder.problem()
        if problem != self._problem:
            self._problem = problem
            if problem is not None:
                self._warn("the inbox is not used: %s", problem, str(self._folder.path))
        if problem is None:
            for name in self._folder.messages(_AT_ONCE):
                self._take(name)
            self._folder.sweep(self._journal.trusted_time.now_us() - _ANSWER_AGE_MAX_US)

    def _take(self, name: str) -> None:
        try:
            message = decode_message(self._folder.read(name), name, self._journal.message_keys)
        except FileNotFoundError:  # its sender has withdrawn it
            return
        except NotAMessage as why:
            self._warn("a file in the inbox is no message and is taken away: %s", str(why), name)
            self._folder.take_away(name)
            return
        except OSError as error:
            self._warn("a message cannot be read: %s", error.strerror or "", name)
            return
        try:
            answered = encode(self.apply(message), self._journal.message_keys)
            self._folder.write(file_name(message, ANSWER), answered, self._clock.random_bytes(4).hex())
            self._folder.remove(name)
        except OSError as error:  # the disk is full: it is answered when there is room
            self._warn("a message cannot be answered yet: %s", error.strerror or "", name)

    def apply(self, message: Message) -> InboxAnswer:
        """Do what a message asks for, unless that was done before, and remember the answer, durably.

        Raises Closed and OutcomeUnknown: then it is not known what becomes of it, and it must be applied again.
        """
        with once(self._lock):
            applied = self._load()
            known = applied.get(message.id)
            if known is not None:
                return _answers.decode(known[1])
            made = self._stale(message) or self._made(message)
            self._remember(applied, message, _encode(made))
            return made

    def _stale(self, message: Message) -> InboxAnswer | None:
        if message.at_us > max(self._forgotten_us, self._clock.now_us() - _AGE_MAX_US):
            return None
        return refusal(message, Invalid("this message is too old and was not applied", hint="send it again"))

    def _made(self, message: Message) -> InboxAnswer:
        try:
            made = answer(message, self._do(message.action, message.fields))
            _encode(made)
            return made
        except (Closed, OutcomeUnknown):
            raise
        except HoldfastError as error:
            return refusal(message, error)
        except Exception as error:
            logger.error(
                "a message could not be applied action=%s",
                message.action,
                exc_info=error,
                extra={"action": "execution_message_failed"},
            )
            text = f"the log's owner could not do this: {type(error).__name__}"
            return refusal(message, Unavailable(text, hint="its log output says more"))

    # -- what was applied -------------------------------------------------------------------------------------

    def _load(self) -> dict[bytes, tuple[int, bytes]]:
        if self._applied is None:
            items = self._journal.spaces.load(SPACE)
            self._forgotten_us = max((number for key, number, _ in items if key == _FORGOTTEN), default=0)
            self._applied = {key: (number, body) for key, number, body in items if key != _FORGOTTEN}
        return self._applied

    def _remember(self, applied: dict[bytes, tuple[int, bytes]], message: Message, answered: bytes) -> None:
        puts = [(message.id, message.at_us, answered)]
        oldest = sorted(applied, key=lambda key: applied[key][0])[: max(0, len(applied) + 1 - KEPT)]
        forgotten = max([self._forgotten_us, *(applied[key][0] for key in oldest)])
        if oldest:
            puts.append((_FORGOTTEN, forgotten, b""))
        self._journal.spaces.change(SPACE, puts, oldest, timeout=self._timeout).result()
        for key in oldest:
            del applied[key]
        applied[message.id] = (message.at_us, answered)
        self._forgotten_us = forgotten

    def _warn(self, text: str, why: str, name: str) -> None:
        logger.warning(text + " name=%s", why, name[:100], extra={"action": "execution_inbox"})
