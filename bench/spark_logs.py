"""What Spark reads in the bench: logs that holdfast wrote itself, and roots whose manifests are made by hand.

- `plain` and `sealed`: the same records, plain and encrypted, in eight segments of a partition; payloads of 200 bytes
  (`bench.material`), times one millisecond apart, so that a span of time is a span of records;
- `tiny` and `one`: the same few records, in 240 segments and in one;
- `histories`: stores with as many manifest objects as years of sealing leave behind, and no segment. All objects are
  there, behind a checkpoint that covers all but the last few, each with a valid check and chain: planning proves them.
  What is not measured is a cold cache, and the way to a store that is no directory.

Making them takes minutes. With `--directory` they are kept there, and used again by every run that asks for the same.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from bench import material, measure
from bench.measure import Options
from holdfast import Keyring, Record
from holdfast.model.segment import NO_CHAIN, NO_SCHEMA
from holdfast.root.objects import checkpoint, documents
from holdfast.root.objects.documents import LogDocument, SegmentDocument, TopicDocument
from holdfast.store import layout

TOPIC = "orders"
SEGMENTS = 8
ROWS, ROWS_QUICK = 8_000_000, 1_000_000
TINY_SEGMENTS, TINY_ROWS = 240, 10
HISTORIES, HISTORIES_QUICK = (10_000, 100_000), (1_000, 10_000)
HISTORY_ROWS = 1_000
BEHIND = 7
"""Manifest objects that no checkpoint has yet."""

BEGIN_US, STEP_US = 1_700_000_000_000_000, 1_000
_BATCH = 20_000
_LOG_ID = "ab" * 16
_MAKING = 1
"""Goes up when logs are made differently: kept ones are then made anew."""


@dataclass(frozen=True, slots=True)
class Logs:
    """Where everything is."""

    rows: int
    plain: Path
    sealed: Path
    keyring: Path
    tiny: Path
    one: Path
    histories: dict[int, Path]
    """Roots by the number of their segments that a checkpoint has."""

    @property
    def files(self) -> list[str]:
        """The segment files of the plain log, in order."""
        return [str(file) for file in material.files(self.plain)]

    @property
    def half(self) -> tuple[int, int]:
        """The second and third quarter of the records: their first time, and the first one behind them."""
        return BEGIN_US + self.rows // 4 * STEP_US, BEGIN_US + self.rows // 4 * 3 * STEP_US


@contextmanager
def made(options: Options) -> Iterator[Logs]:
    """All logs, made where they are not there yet; removed afterwards unless a directory was named."""
    with place(options) as directory:
        rows = ROWS_QUICK if options.quick else ROWS
        keyring = directory / f"keyring-{rows}"
        logs = Logs(
            rows,
            kept(directory / f"plain-{rows}", partial(write, rows=rows, segments=SEGMENTS)),
            kept(directory / f"sealed-{rows}", partial(write, rows=rows, segments=SEGMENTS, keyring=keyring)),
            keyring,
            kept(directory / "tiny", partial(write, rows=TINY_SEGMENTS * TINY_ROWS, segments=TINY_SEGMENTS)),
            kept(directory / "one", partial(write, rows=TINY_SEGMENTS * TINY_ROWS, segments=1)),
            {
                size: kept(directory / f"history-{size}", partial(_write_history, count=size))
                for size in (HISTORIES_QUICK if options.quick else HISTORIES)
            },
        )
        yield logs


@contextmanager
def place(options: Options) -> Iterator[Path]:
    if options.directory is None:
        with measure.workspace(options) as directory:
            yield directory
        return
    directory = options.directory / "holdfast-bench-spark"
    directory.mkdir(parents=True, exist_ok=True)
    yield directory


def kept(path: Path, make: Callable[[Path], None]) -> Path:
    """What was made before in the same way, or makes it; a directory without its note was not finished."""
    note = path.with_name(path.name + ".json")
    parameters = {"making": _MAKING, "payload_bytes": material.PAYLOAD_BYTES}
    if not (note.exists() and path.exists() and json.loads(note.read_text()) == parameters):
        print(f"making {path.name} ...", flush=True)
        note.unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
        make(path)
        note.write_text(json.dumps(parameters))
    return path


# --- logs ----------------------------------------------------------------------------------------------------


def write(path: Path, *, rows: int, segments: int, keyring: Path | None = None) -> None:
    """A closed log with so many records in so many segments."""
    each = rows // segments
    payloads = material.payloads(each)  # the same in every segment: none is compressed with the help of another
    key = None if keyring is None else Keyring.generate()
    if key is not None and keyring is not None:
        key.save(keyring)
    with material.opened(path, key) as log:
        topic = log.topic(TOPIC)
        for segment in range(segments):
            for at in range(0, each, _BATCH):
                began = BEGIN_US + (segment * each + at) * STEP_US
                chunk = payloads[at : at + _BATCH]
                topic.append_batch([Record(body, time=began + i * STEP_US) for i, body in enumerate(chunk)])
            log.seal(timeout=600)
    files = len(material.files(path))
    if files != segments:
        raise RuntimeError(f"the log has other segments than wanted; files={files} wanted={segments}")


# --- histories -----------------------------------------------------------------------------------------------


def _write_history(path: Path, *, count: int) -> None:
    """A store's root with this many segments below a checkpoint and a few behind it, none of which has a file."""
    found = _history(count + BEHIND)
    _put(path, layout.LOG, documents.encode(LogDocument(log=_LOG_ID, created_us=BEGIN_US)))
    topic = TopicDocument(log=_LOG_ID, topic=TOPIC, version=1, partitions=1, first_offset=0)
    _put(path, layout.topic_key(TOPIC, 1), documents.encode(topic))
    for document in found:
        _put(path, layout.manifest_key(TOPIC, 0, document.slot), documents.encode(document))
    _put(path, layout.checkpoint_key(TOPIC, 0, count - 1), checkpoint.encode(found[:count]))


def _history(count: int) -> list[SegmentDocument]:
    found: list[SegmentDocument] = []
    previous = NO_CHAIN.hex()
    for number in range(count):
        content = hashlib.sha256(f"content {number}".encode()).digest()
        began = BEGIN_US + number * HISTORY_ROWS * STEP_US
        document = SegmentDocument(
            log=_LOG_ID,
            topic=TOPIC,
            partition=0,
            slot=number,
            number=number,
            first=number * HISTORY_ROWS,
            rows=HISTORY_ROWS,
            size=100_000,
            time_min=began,
            time_max=began + (HISTORY_ROWS - 1) * STEP_US,
            sha256=content[::-1].hex(),
            content=content.hex(),
            footer=content[:16].hex(),
            previous=previous,
            chain="",
            schema=NO_SCHEMA.hex(),
            key_id="",
            epoch=1,
            sealed_us=began,
        )
        previous = document.segment.chain.hex()
        found.append(msgspec.structs.replace(document, chain=previous))
    return found


def _put(root: Path, key: str, content: bytes) -> None:
    # Not through a store: a hundred thousand syncs would take longer than all that is measured.
    target = root / key
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
