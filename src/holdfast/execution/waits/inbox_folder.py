"""The folder `inbox/` of a log, where other processes leave messages for the owner. Files, and whom they belong to.

The folder belongs to the log's user and nobody else may write to it; so do the files in it. Whatever else lies there is
no message: a link, a pipe, a file of another user or one that others may write to, a file that is too large. It is
taken away unread, or left where it is if it cannot be. A file has its name when it is whole and durable, not before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from stat import S_IMODE, S_ISDIR

from holdfast import disk
from holdfast.errors import Full, Invalid, Unavailable
from holdfast.execution.waits.inbox_message import ANSWER, MESSAGE, OVERHEAD_BYTES, NotAMessage, name_parts

FOLDER = "inbox"
MESSAGES_MAX = 1_000
"""Messages that may lie there at once."""
_ENTRIES_MAX = 20_000
"""Names that are looked at in one go: nobody has reason to leave more."""
_OTHERS_WRITE = 0o022


class InboxFolder:
    """The inbox of one log's directory."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max

    @classmethod
    def of(cls, directory: Path, value_bytes_max: int) -> InboxFolder:
        """The inbox of a log's directory, for messages with values up to so many bytes."""
        return cls(directory / FOLDER, value_bytes_max + OVERHEAD_BYTES)

    def make(self) -> None:
        """Create it if it is not there; raises OSError."""
        disk.make_directory(self.path)

    def problem(self) -> str | None:
        """Why nothing in this folder can be believed; None if it is as it should be, or not there."""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
        if not S_ISDIR(status.st_mode):
            return "it is not a folder"
        if status.st_uid != os.geteuid():
            return f"it belongs to another user uid={status.st_uid}"
        if S_IMODE(status.st_mode) & _OTHERS_WRITE:
            return f"others may write to it mode={S_IMODE(status.st_mode):o}"
        return None

    def require(self) -> None:
        """For senders: the folder is there, and it is one that the owner believes."""
        try:
            self.make()
        except OSError as error:
            raise Unavailable(
                f"cannot make the inbox path={self.path}: {error.strerror}",
                hint=disk.remedy(error, "run this as the user who owns the log"),
            ) from error
        if (problem := self.problem()) is not None:
            raise Invalid(f"the inbox cannot be used: {problem} path={self.path}", hint="run this as the log's user")

    def messages(self, limit: int) -> list[str]:
        """Names of messages, the oldest first."""
        return sorted(self._names(MESSAGE))[:limit]

    def has_messages(self) -> bool:
        """Whether something lies there that may be one."""
        return next(self._names(MESSAGE), None) is not None

    def check_room(self) -> None:
        """Refuse more messages than an owner would take up soon."""
        if len(list(islice(self._names(MESSAGE), MESSAGES_MAX))) >= MESSAGES_MAX:
            raise Full(
                f"the inbox has {MESSAGES_MAX} messages already path={self.path}",
                hint="the owner of the log takes them up as it comes to them; try again later",
            )

    def read(self, name: str) -> bytes:
        """A file's content; raises NotAMessage if it can be none, OSError where it cannot be read."""
        try:
            with open(disk.open_file(self.path / name), "rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_uid != os.geteuid():
                    raise NotAMessage(f"it belongs to another user uid={status.st_uid}")
                if S_IMODE(status.st_mode) & _OTHERS_WRITE:
                    raise NotAMessage("others may write to it")
                if status.st_size > self._bytes_max:
                    raise NotAMessage(f"it is too large bytes={status.st_size}")
                return stream.read(self._bytes_max + 1)[: self._bytes_max]
        except disk.NotRegular:
            raise NotAMessage("it is not a regular file") from None

    def write(self, name: str, content: bytes, token: str) -> None:
        """A new file, whole and durable under its name, for the log's user alone; raises OSError."""
        if len(content) > self._bytes_max:
            raise Invalid(
                f"a message is too large bytes={len(content)} most={self._bytes_max}",
                hint="see executions.payload_bytes_max; put the value elsewhere and send where it is",
            )
        disk.write_file(self.path / name, content, token=token)

    def take_away(self, name: str) -> None:
        """Remove a file, without a promise."""
        disk.discard(self.path / name)

    def remove(self, name: str) -> None:
        """Remove a file, durably; raises OSError."""
        disk.remove(self.path / name)

    def sweep(self, before_us: int) -> None:
        """Take away answers that nobody fetched, and unfinished files, of messages that were sent before this time."""
        for name in self._names(ANSWER, ".tmp"):
            parts = name_parts(name.split(".")[0] + MESSAGE)
            if parts is not None and parts[0] < before_us:
                self.take_away(name)

    def _names(self, *endings: str) -> Iterator[str]:
        try:
            with os.scandir(self.path) as found:
                for entry in islice(found, _ENTRIES_MAX):
                    if entry.name.endswith(endings):
                        yield entry.name
        except (FileNotFoundError, NotADirectoryError):
            return
