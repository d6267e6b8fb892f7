"""One commit of a pipeline's table: what it says, as bytes, and back. Pure; docs/formats/0009-tables.md.

A commit is one object, so rows and positions become visible together or not at all. Its first line names the run that
wrote it, and what the table is after it (`TableState`): how many files and rows, and a digest of the whole list of
files, which can be kept up file by file. A reader that assembles a table from a checkpoint and commits compares it, so
what was damaged or is missing anywhere on the way is found. At the end of the line stands a digest of the commit's own
bytes (`check`), and before it that of our commit before. None of them is a signature: they find damage, not a forger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from blake3 import blake3

from holdfast.errors import Corrupt, Invalid, other_version
from holdfast.publish.delta import actions
from holdfast.publish.delta.actions import Add, CommitInfo, Metadata, Protocol, Remove, Txn
from holdfast.tables import table_layout
from holdfast.tables.data_file import FILE_BYTES_MAX, DataFile
from holdfast.tables.table_run import FORMAT, TableRun

COMMIT_BYTES_MAX = 64 * 2**20
"""A hundred thousand files, about."""
_LINES_MAX = 300_000
_CHECK = b',"check":"'
_CHECK_DIGITS = 64
_ENDING = len(_CHECK) + _CHECK_DIGITS + len(b'"}}')
_DIGEST_BYTES = 16
REMEDY = "restore the object from a copy, or remove the table's folder and run the pipeline again"

_encoder = msgspec.json.Encoder()


class TableState(msgspec.Struct, frozen=True):
    """What a table is after a commit."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    digest: str = "0" * 2 * _DIGEST_BYTES
    """Of its files: the sum of the digests of each."""
    metadata: str = ""
    """A digest of its protocol and its metadata."""

    def plus(self, added: Iterable[DataFile], removed: Iterable[DataFile] = ()) -> TableState:
        """With some files more, and some less."""
        files, rows, size, digest = self.files, self.rows, self.bytes, int(self.digest, 16)
        for sign, some in ((1, added), (-1, removed)):
            for file in some:
                files, rows, size = files + sign, rows + sign * file.rows, size + sign * file.size
                digest += sign * int.from_bytes(blake3(_encoder.encode(file)).digest(_DIGEST_BYTES), "big")
        text = f"{digest % 2 ** (8 * _DIGEST_BYTES):0{2 * _DIGEST_BYTES}x}"
        return TableState(files, rows, size, text, self.metadata)


class TableCommitInfo(CommitInfo, frozen=True, rename="camel"):
    """The first line."""

    state: TableState
    previous: str
    """The `check` of our commit before; empty in the first."""
    nonce: str
    """No two commits are equal, from any writers."""
    check: str = ""
    """Made by `encode`."""


class TableCommit(NamedTuple):
    """A commit of ours."""

    info: TableCommitInfo
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    """Both or none."""
    txns: tuple[Txn, ...] = ()
    removed: tuple[Remove, ...] = ()
    added: tuple[Add, ...] = ()
    files: tuple[DataFile, ...] = ()
    """Those of `added`, of a commit that was read."""

    @property
    def run(self) -> TableRun:
        """The run that wrote it."""
        run: TableRun = self.info.holdfast
        return run


# -- bytes ----------------------------------------------------------------------------------------------------


def encode(commit: TableCommit) -> tuple[bytes, str]:
    """The object, and its `check`; raises Invalid where it would be too large."""
    header = [] if commit.protocol is None or commit.metadata is None else [commit.protocol, commit.metadata]
    data = actions.encode([commit.info, *header, *commit.txns, *commit.removed, *commit.added])
    first, end, rest = data.partition(b"\n")
    first = first[: -len(b'"check":""}}') - 1]
    if len(data) > COMMIT_BYTES_MAX - _CHECK_DIGITS or rest.count(b"\n") >= _LINES_MAX:
        raise Invalid(
            f"a run has too many files for one commit files={len(commit.added)} bytes={len(data)}",
            hint="let it write fewer, larger files: fewer partitions, or fewer buckets",
        )
    check = blake3(first + end + rest).hexdigest()
    return b"".join((first, _CHECK, check.encode(), b'"}}', end, rest)), check


class _OurInfo(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    timestamp: int
    operation: str
    operation_parameters: dict[str, str]
    engine_info: str
    is_blind_append: bool
    holdfast: TableRun
    state: TableState
    previous: str
    nonce: str
    check: str


class _Line(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    commit_info: _OurInfo | None = None
    protocol: Protocol | None = None
    meta_data: Metadata | None = None
    txn: Txn | None = None
    remove: Remove | None = None
    add: Add | None = None


class _MarkFields(msgspec.Struct):
    format: int


class _MarkedInfo(msgspec.Struct):
    holdfast: _MarkFields


class _MarkedLine(msgspec.Struct, rename="camel"):
    commit_info: _MarkedInfo


_lines = msgspec.json.Decoder(_Line)
_marked = msgspec.json.Decoder(_MarkedLine)
_DAMAGE = (msgspec.DecodeError, ValueError, RecursionError)


def decode(data: bytes, key: str) -> TableCommit | None:
    """What a commit says; None where it is not ours. Raises Corrupt where it is and is damaged, Invalid where a newer
    holdfast wrote it.
    """
    first, end, rest = data.partition(b"\n")
    if not _is_checked(first, end, rest):
        if b'"holdfast"' in first:
            raise damaged("a commit of a table is damaged", key)
        return None
    try:
        if _marked.decode(first).commit_info.holdfast.format > FORMAT:
            raise other_version("table", key=key)
        if rest.count(b"\n") >= _LINES_MAX:
            raise ValueError("too many lines")
        commit = _put_together(_lines.decode_lines(data))
    except _DAMAGE:
        raise damaged("a commit of a table makes no sense", key) from None
    if not _is_sound(commit):
        raise damaged("a commit of a table says what cannot be", key)
    return commit


def _is_checked(first: bytes, end: bytes, rest: bytes) -> bool:
    ending = first[-_ENDING:]
    if not ending.startswith(_CHECK) or not ending.endswith(b'"}}'):
        return False
    return ending[len(_CHECK) : -3] == blake3(first[:-_ENDING] + end + rest).hexdigest().encode()


def _put_together(lines: Sequence[_Line]) -> TableCommit:
    given = [[name for name in _Line.__struct_fields__ if getattr(line, name) is not None] for line in lines]
    kinds = [names[0] if len(names) == 1 else "" for names in given]
    has_header = kinds[1:3] == ["protocol", "meta_data"]
    rest = kinds[3 if has_header else 1 :]
    order = ["txn", "remove", "add"]
    if not kinds or kinds[0] != "commit_info" or any(kind not in order for kind in rest):
        raise ValueError("the actions of a commit")
    info = lines[0].commit_info
    assert info is not None
    return TableCommit(
        TableCommitInfo(**{name: getattr(info, name) for name in _OurInfo.__struct_fields__}),
        lines[1].protocol if has_header else None,
        lines[2].meta_data if has_header else None,
        tuple(line.txn for line in lines if line.txn is not None),
        tuple(line.remove for line in lines if line.remove is not None),
        (added := tuple(line.add for line in lines if line.add is not None)),
        tuple(file_added(one) for one in added),
    )


def _is_sound(commit: TableCommit) -> bool:
    run, state = commit.run, commit.info.state
    numbers = (run.rows_in, run.rows_out, state.files, state.rows, state.bytes, run.run - 1)
    marks = (
        mark
        for read in run.reads.values()
        for mark in (*read.marks.values(), *read.begins.values(), read.version + 1, read.run)
    )
    is_digest = len(state.digest) == 2 * _DIGEST_BYTES and all(digit in "0123456789abcdef" for digit in state.digest)
    return is_digest and all(0 <= number < 2**62 for number in (*numbers, *marks))


def damaged(message: str, key: str) -> Corrupt:
    """What to raise where a table's log is not whole."""
    return Corrupt(message, path=key, hint=REMEDY)


# -- files ----------------------------------------------------------------------------------------------------


class _RowCount(msgspec.Struct):
    num_records: int = msgspec.field(name="numRecords")


_counted = msgspec.json.Decoder(_RowCount)


def add(file: DataFile, *, data_change: bool) -> Add:
    """A file belongs to the table from now on."""
    tags = {"run": str(file.run), **({"bucket": file.bucket} if file.bucket else {})}
    return Add(file.path, {}, file.size, file.modified_ms, data_change, file.stats, tags)


def remove(file: DataFile, now_ms: int, *, data_change: bool) -> Remove:
    """A file belongs to the table no longer."""
    return Remove(file.path, now_ms, data_change, True, {}, file.size, {})


def file_of(path: str, size: int, modified_ms: int, stats: str, run: str, bucket: str) -> DataFile:
    """A file, of what an action says about it; raises ValueError for one that cannot be ours."""
    name = table_layout.parse_file(path)
    if name is None or not path.startswith(f"{table_layout.DATA}/"):
        raise ValueError("not a file of ours")
    rows, number = _counted.decode(stats).num_records, int(run)
    if not 0 < size <= FILE_BYTES_MAX or not 0 <= rows < 2**62 or not 0 <= number <= name.run:
        raise ValueError("not what a file can be")
    return DataFile(path, size, rows, stats, bucket, modified_ms, number)


def file_added(action: Add) -> DataFile:
    """The file of an action; raises ValueError."""
    if action.partition_values:
        raise ValueError("a table of ours has no partitions")
    tags = action.tags
    return file_of(
        action.path, action.size, action.modification_time, action.stats, tags.get("run", ""), tags.get("bucket", "")
    )
