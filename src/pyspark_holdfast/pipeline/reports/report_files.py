"""A reports folder: one file per run, the page, lineage. A directory, or a prefix of a store.

    runs/<time>-<id>.json    a `RunReport`: created once, never changed; the oldest go (`report_history.superfluous`)
    index.html               the page, rewritten after each run
    lineage.jsonl            OpenLineage events, one per line, appended; the file before it is lineage.1.jsonl
    history.json             what the page needs of all runs, so that not all of them are read again

On a store, which has no appending, events of a run are `lineage/<time>-<id>.jsonl`, and the page is removed and created
again: for a moment there is none.

Several runs may end at the same time, of one pipeline or of several. Each creates a file of its own; page and history
are made from what lies there, so the last writer shows all, and what a race left out of the history the next run finds
in the listing. History and page can be removed at any time. What is read back is checked: size, shape and name; a file
that is no report is passed over. When `keep` returns, the report is durable; page and lineage are as well in a
directory, but after a power cut the last lines of lineage may be missing or cut.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast import disk
from holdfast.arguments import path_of
from holdfast.clock import Clock, SystemClock
from holdfast.errors import Corrupt, NotFound
from holdfast.root.shared_stores import shared_store
from holdfast.store.address import StoreAddress, parse_url
from holdfast.store.port import AlreadyExists, Body, StoreUnavailable
from holdfast.store.store_settings import StoreSettings
from pyspark_holdfast.pipeline.reports.lineage import events
from pyspark_holdfast.pipeline.reports.report_history import (
    FORMAT,
    RUNS_MAX,
    RunHistory,
    superfluous,
    with_only,
    with_report,
)
from pyspark_holdfast.pipeline.reports.report_page import page
from pyspark_holdfast.pipeline.run_report import FORMAT as REPORT_FORMAT
from pyspark_holdfast.pipeline.run_report import RunReport

PAGE, HISTORY, LINEAGE, LINEAGE_BEFORE = "index.html", "history.json", "lineage.jsonl", "lineage.1.jsonl"
_RUNS, _LINEAGES = "runs/", "lineage/"
_NAME = re.compile(r"\d{8}T\d{9}Z-[0-9A-Za-z-]{1,64}\.json\Z")
_REPORT_BYTES_MAX = 16 * 2**20
_HISTORY_BYTES_MAX = 256 * 2**20
LINEAGE_BYTES_MAX = 64 * 2**20
"""A file of lineage that is larger is put aside."""
_LISTED_MAX = 4 * RUNS_MAX
_AT_ONCE = 16


class ReportFiles:
    """The reports of one folder."""

    def __init__(self, place: str | Path, settings: StoreSettings | None = None, clock: Clock | None = None) -> None:
        self._address = _address(place)
        self._clock = clock or SystemClock()
        self._store = shared_store(self._address.url, settings or StoreSettings(), self._clock)

    @property
    def url(self) -> str:
        """Where the page is."""
        if self._address.scheme == "file":
            return str(Path(self._address.place) / PAGE)
        return f"{self._address.url}/{PAGE}"

    def keep(self, report: RunReport) -> str:
        """Keep a report, draw the page anew, tell the lineage; returns the page's place."""
        name = file_name(report)
        self._create(_RUNS + name, msgspec.json.format(msgspec.json.encode(report), indent=1))
        self._tell(name, report)
        self.draw({name: report})
        return self.url

    def draw(self, fresh: Mapping[str, RunReport] | None = None) -> None:
        """Make the page of all reports that are there, and remove those that need not be kept."""
        history = self.history(fresh or {})
        gone = superfluous(history)
        history = with_only(history, set(history.runs) - set(gone))
        self._replace(HISTORY, msgspec.json.encode(history))
        self._replace(PAGE, page(history).encode("utf-8", "backslashreplace"))
        self._store.delete([_RUNS + name for name in gone])
        if self._address.scheme != "file":
            self._store.delete([_LINEAGES + name + "l" for name in gone])

    def history(self, fresh: Mapping[str, RunReport]) -> RunHistory:
        """All runs whose reports lie here; `fresh` are those that need not be read."""
        names = self._names()
        history = with_only(self._kept_history(), set(names))
        for name, report in fresh.items():
            history = with_report(history, name, report)
        missing = [name for name in names if name not in history.runs]
        for name, found in zip(missing, self._reports(missing), strict=True):
            if found is not None:
                history = with_report(history, name, found)
        return history

    # -- reading ------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        """The newest files; of more than that, which nobody ever wrote, the oldest are as good as not there."""
        found = (one.key.removeprefix(_RUNS) for one in self._store.list(_RUNS))
        return sorted(name for name in found if _NAME.match(name))[-_LISTED_MAX:]

    def _reports(self, names: Sequence[str]) -> list[RunReport | None]:
        if not names:
            return []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self._report, names))

    def _report(self, name: str) -> RunReport | None:
        try:
            found = msgspec.json.decode(self._store.get(_RUNS + name, _REPORT_BYTES_MAX), type=RunReport)
        except (NotFound, Corrupt, msgspec.MsgspecError, UnicodeDecodeError):  # removed just now, or no report
            return None
        return found if found.format == REPORT_FORMAT else None

    def _kept_history(self) -> RunHistory:
        try:
            found = msgspec.json.decode(self._store.get(HISTORY, _HISTORY_BYTES_MAX), type=RunHistory)
        except (NotFound, Corrupt, msgspec.MsgspecError, UnicodeDecodeError):  # made again from the reports
            return RunHistory()
        return found if found.format == FORMAT else RunHistory()

    # -- writing ------------------------------------------------------------------------------------------------

    def _replace(self, key: str, data: bytes) -> None:
        if self._address.scheme == "file":
            disk.write_file(Path(self._address.place) / key, data, token=self._clock.random_bytes(8).hex())
            return
        self._store.delete([key])
        with suppress(AlreadyExists):  # another run did the same just now; the next one puts it right
            self._store.create(key, Body.of(data))

    def _tell(self, name: str, report: RunReport) -> None:
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events(report))
        if not lines:
            return
        if self._address.scheme == "file":
            _append(Path(self._address.place), lines)
            return
        self._create(_LINEAGES + name + "l", lines)

    def _create(self, key: str, data: bytes) -> None:
        """Create what nobody else creates: if it is there, a reply was lost. What may pass is tried once more.

        A folder that was removed is made again then.
        """
        for attempt in range(2):
            try:
                self._store.create(key, Body.of(data))
            except AlreadyExists:
                return
            except StoreUnavailable:
                if attempt:
                    raise
            else:
                return


def file_name(report: RunReport) -> str:
    """The file of a report: by time, and unlike all others."""
    moment = datetime.fromtimestamp(report.started_ms / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}{report.started_ms % 1000:03d}Z-{report.id}.json"


def _address(place: str | Path) -> StoreAddress:
    text = str(place)
    return parse_url(text if "://" in text else str(Path(path_of(place, "a reports folder")).absolute()))


def _append(folder: Path, lines: bytes) -> None:
    """Add lines to the end, in one write; an unfinished line stays by itself."""
    path = folder / LINEAGE
    _turn_over(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            lines = b"\n" + lines
        _write_whole(descriptor, lines)
    finally:
        os.close(descriptor)


def _turn_over(path: Path) -> None:
    """Begin a new file where this one is large; of two who see that at once, one does it."""
    with suppress(FileNotFoundError):
        if path.lstat().st_size > LINEAGE_BYTES_MAX:
            with disk.alone_with(path):
                if path.lstat().st_size > LINEAGE_BYTES_MAX:
                    disk.rename(path, path.with_name(LINEAGE_BEFORE))


def _write_whole(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
