"""A log that another process owns, for tests of what a member can do: started, killed, followed by the next one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import holdfast
from holdfast import Log
from tests.sharing.members import ENVIRON
from tests.sharing.owner import SETTINGS


class OwnerProcess:
    """The process that owns a log for others."""

    def __init__(
        self, directory: Path, store: str | None = None, *, waits: bool = True, keyring: Path | None = None
    ) -> None:
        given = [str(directory), store or "", "" if keyring is None else f"file:{keyring}"]
        arguments = [sys.executable, "-m", "tests.sharing.owner", *given]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRON
        )
        assert self.process.stdout is not None
        if waits:
            assert self.process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        """Let it close the log and end."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        assert self.process.wait(60) == 0
        self._reap()

    def _reap(self) -> None:
        self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def join(directory: Path, store: str | None = None) -> Log:
    """A member of a log that is owned elsewhere."""
    return holdfast.open(directory, share=True, settings=SETTINGS, store=store)


@contextmanager
def shared(directory: Path, store: str | None = None) -> Iterator[tuple[Log, OwnerProcess]]:
    """A member, and the process that owns its log."""
    owner = OwnerProcess(directory, store)
    try:
        with join(directory, store) as log:
            assert not log.is_owner
            yield log, owner
    finally:
        owner.kill()  # also one that has ended by itself: its streams are open
