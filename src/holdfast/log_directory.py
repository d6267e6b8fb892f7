"""A log's directory: who owns it (`LOCK`) and what it is (`FORMAT`).

    LOCK         exclusive lock of the owning process; holds its pid, and whether it shares the log; never removed
    SOCKET       where its owner listens
    FORMAT       "holdfast log 1" and the log's id; written last when a log is created
    durable.db   the journal, and the manifest of segments
    segments/    sealed segments, laid out as in a store
    quarantine/  files that `reconcile` moved out of segments/ because they are not provably garbage

FORMAT is what makes a directory a log. If it is there and the database is not, data was lost, and opening
says so instead of starting an empty log in its place.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG

from holdfast import disk
from holdfast.errors import Closed, Corrupt, Invalid, NotFound, Unavailable, other_version

FORMAT_VERSION = 1
_FORMAT_BYTES_MAX = 4096
_FORMAT, _LOCK, _DATABASE = "FORMAT", "LOCK", "durable.db"
_SEGMENTS, _QUARANTINE = "segments", "quarantine"
_FOLDERS = (_SEGMENTS, _QUARANTINE, "groups")
_SHARED = "shared"
_DATABASE_PATH_BYTES_MAX = 504
"""SQLite opens no database whose path is longer, once all links in it are followed."""
_OURS = {_FORMAT, _FORMAT + ".tmp", _LOCK, _DATABASE, _DATABASE + "-wal", _DATABASE + "-shm", _DATABASE + "-journal"}


class Directory:
    """The directory of one log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / _DATABASE
        self.segments = path / _SEGMENTS
        self.quarantine = path / _QUARANTINE
        self._lock = disk.OwnerLock(path / _LOCK)

    def own(self, *, damaged: bool = False) -> None:
        """Create the directory if it is not there, and become its only owner; `damaged`: whatever is in it."""
        if self._acquire("", damaged=damaged):
            return
        holder = self._lock.holder()
        who = "another handle in this process" if holder == os.getpid() else f"process {holder or 'unknown'}"
        raise Unavailable(f"the log is open in {who} path={self.path} pid={holder}", hint=self._remedy())

    def _remedy(self) -> str:
        """What to do where another process owns it: most who come here have a server with several workers."""
        if self.is_shared():
            return "open it with share=True, as it is open there; to look at it meanwhile, open it with read_only=True"
        return (
            "close it there first, or open it with share=True in every process that uses it;"
            " to look at it meanwhile, open it with read_only=True"
        )

    def try_to_own(self, *, shared: bool) -> bool:
        """Create the directory if it is not there, and become its only owner, unless another process is."""
        return self._acquire(_SHARED if shared else "")

    def _acquire(self, note: str, *, damaged: bool = False) -> bool:
        self._refuse_long()
        with self._typed():
            disk.make_directory(self.path)
            if not damaged:
                self._refuse_foreign()
            return self._lock.acquire(note)

    def is_ours(self) -> bool:
        """Whether we own what is at this path now: it may have been moved away, and another one put in its place."""
        return self._lock.is_ours()

    def is_shared(self) -> bool:
        """Whether its current or last owner shares it with other processes."""
        return self._lock.note() == _SHARED

    def holder(self) -> int | None:
        """The pid of the present owner, if there is one."""
        return self._lock.holder() if self._lock.is_held() else None

    def release(self) -> None:
        """Give up ownership."""
        self._lock.release()

    def refuse_within(self, store: Path | None) -> None:
        """Raise Invalid where a store lies in the log's directory, or the log in its store: each would take the other's
        files for garbage, and both are gone together.
        """
        if store is not None and (disk.is_within(store, self.path) or disk.is_within(self.path, store)):
            raise Invalid(
                f"a log and its store must lie apart path={self.path} store={store}",
                hint="give the store a directory beside the log's, on another disk if there is one",
            )

    def log_id(self) -> bytes | None:
        """The id in FORMAT; None where no log was created yet."""
        try:
            lines = disk.read_file(self.path / _FORMAT, _FORMAT_BYTES_MAX).decode("ascii").split("\n")
            title, version, log_id = (
                lines[0].rpartition(" ")[0],
                int(lines[0].rpartition(" ")[2]),
                bytes.fromhex(lines[1]),
            )
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise self._no_directory() from None
        except OSError as error:
            place = self.path / _FORMAT
            raise Unavailable(f"cannot read the log path={place}: {error.strerror}", hint=disk.RIGHTS_HINT) from error
        except (ValueError, IndexError, disk.NotRegular, disk.TooLong):
            raise Corrupt("FORMAT is damaged", path=str(self.path / _FORMAT)) from None
        if title != "holdfast log":
            raise Corrupt("FORMAT is damaged", path=str(self.path / _FORMAT))
        if version != FORMAT_VERSION:
            raise other_version("log", path=self.path, version=version, known=FORMAT_VERSION)
        return log_id

    def create_database(self) -> None:
        """An empty database file that only its owner can read, its name durable."""
        if not self.database.exists():
            with self._typed():
                disk.create_file(self.database, 0o600)

    def declare(self, log_id: bytes) -> None:
        """Write FORMAT: from now on this is a log."""
        with self._typed():
            disk.write_file(self.path / _FORMAT, f"holdfast log {FORMAT_VERSION}\n{log_id.hex()}\n".encode())

    def require_log(self) -> bytes:
        """The id of the log that must be here."""
        self._refuse_long()
        log_id = self.log_id()
        if log_id is None:
            with suppress(FileNotFoundError):
                self._refuse_nameless({name for name in os.listdir(self.path) if name not in _OURS})
            raise NotFound(
                f"there is no log path={self.path}", hint="holdfast.open(path) makes one, and so does the first append"
            )
        self._require_database()
        return log_id

    def _require_database(self) -> None:
        """A log that was created has a database; an empty file in its place is a loss, not a new log."""
        self._refuse_irregular()
        if not self.database.exists() or self.database.stat().st_size == 0:
            raise Corrupt(
                "the log's database is gone",
                path=str(self.database),
                hint="put the newest durable.db back, or make a new one from the segments: holdfast rebuild",
            )

    def _refuse_irregular(self) -> None:
        """SQLite would follow a link, wait forever on a pipe, and write to the file that a hard link names. Files are
        looked at, not opened: closing any descriptor of the database drops the locks that this process may have.
        """
        for name in (_DATABASE, _DATABASE + "-wal", _DATABASE + "-shm", _DATABASE + "-journal"):
            path = self.path / name
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Unavailable(
                    f"cannot read the log path={path}: {error.strerror}", hint=disk.RIGHTS_HINT
                ) from error
            if not S_ISREG(status.st_mode):
                raise Corrupt(
                    "a file of the log is not a regular file",
                    path=str(path),
                    hint="a link, a pipe or a device is there",
                )
            if status.st_nlink > 1:
                hint = (
                    "what is written here would change the other file: copy it instead, and put the copy in its place"
                )
                raise Corrupt("a file of the log has a second name, as a hard link", path=str(path), hint=hint)
        for folder in _FOLDERS:
            path = self.path / folder
            if path.is_symlink():
                raise Corrupt("a folder of the log is a link", path=str(path), hint="move what it leads to here")

    # -- rebuilding ---------------------------------------------------------------------------------------

    @property
    def rebuilt(self) -> Path:
        """Where a new database is made before it takes the place of a damaged one."""
        return self.path / (_DATABASE + ".rebuilt")

    def databases(self) -> list[Path]:
        """The database, or if it is gone the one that was set aside last."""
        self._refuse_irregular()
        found = [self.database, *self._set_aside()[::-1]]
        return [path for path in found if path.exists() and path.stat().st_size][:1]

    def set_aside_database(self) -> Path | None:
        """Take the damaged database out of the way, with its write-ahead log; returns its new name."""
        if not self.database.exists():
            earlier = self._set_aside()
            return earlier[-1] if earlier else None
        aside = self.path / f"{_DATABASE}.damaged-{len(self._set_aside()) + 1}"
        disk.rename(self.database, aside)
        self.finish_setting_aside()
        return aside

    def finish_setting_aside(self) -> None:
        """The write-ahead log follows its database, even if a crash came in between."""
        aside = self._set_aside()
        if aside and not self.database.exists():
            wal = self.path / (_DATABASE + "-wal")
            if wal.exists():
                disk.rename(wal, aside[-1].with_name(aside[-1].name + "-wal"))
            disk.remove(self.path / (_DATABASE + "-shm"))

    def adopt_rebuilt(self) -> None:
        """The new database takes its place."""
        disk.rename(self.rebuilt, self.database)

    def _set_aside(self) -> list[Path]:
        found = [path for path in self.path.glob(f"{_DATABASE}.damaged-*") if path.suffix[9:].isdecimal()]
        return sorted(found, key=lambda path: int(path.suffix[9:]))

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, NotADirectoryError):
            raise self._no_directory() from None
        except OSError as error:
            unwritable = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
            raise Unavailable(
                f"cannot use the directory path={self.path}: {error.strerror}",
                hint="to read the log, open it with read_only=True; to append, make its directory writable"
                if unwritable
                else disk.remedy(error, "check its permissions and the disk"),
            ) from error

    def _no_directory(self) -> Invalid:
        return Invalid(
            f"not a directory path={self.path}", hint="a log is a directory; give one, or a path for a new one"
        )

    def _refuse_long(self) -> None:
        """Before anything is made there: SQLite would say only that it cannot open its file."""
        size, most = len(os.fsencode(os.path.realpath(self.path))), _DATABASE_PATH_BYTES_MAX - len(_DATABASE) - 1
        if size > most:
            raise Invalid(
                f"the path of the log is too long path={self.path} bytes={size} bytes_max={most}",
                hint="give a shorter one, or mount its directory (mount --bind) at one; a link to it does not help",
            )

    def _refuse_foreign(self) -> None:
        if self.log_id() is None:
            self._refuse_irregular()
            foreign = {name for name in os.listdir(self.path) if name not in _OURS}
            self._refuse_nameless(foreign)
            if foreign:
                raise Invalid(
                    f"the directory is not empty and is not a log path={self.path}",
                    hint="give a new or empty directory",
                )
        else:
            self._require_database()

    def _refuse_nameless(self, foreign: set[str]) -> None:
        """A database beside folders of a log, which are made after FORMAT: that was a log, and with it is one again."""
        if foreign & {_SEGMENTS, "groups"} and foreign <= set(_FOLDERS) and self.database.exists():
            raise Corrupt(
                "this was a log, and its FORMAT is gone",
                path=str(self.path / _FORMAT),
                hint=f"put it back, two lines: 'holdfast log {FORMAT_VERSION}', and the log_id that"
                " `holdfast inspect` shows of durable.db",
            )


def is_log(path: Path) -> bool:
    """Whether a directory is a log's own, or was begun as one."""
    return (path / _FORMAT).exists() or (path / _DATABASE).exists()


def moved_away(path: Path) -> Closed:
    """The end of a log whose directory is another one now, or none."""
    return Closed(
        f"the log's directory is not where it was opened path={path}",
        reason="fenced",
        hint="it was moved or removed meanwhile; end this process, and open the log where it is now",
    )
