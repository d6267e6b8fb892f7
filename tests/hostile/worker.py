"""A process that reads spoiled roots and says what came of it; when it dies, its starter knows what killed it.

Reads one JSON line per attempt (root, action, keyring, directory, scratch), writes one: rows and their digest, or the
kind of the error. Anything but a HoldfastError is `raw`. Peak memory is that of the attempt.
"""

from __future__ import annotations

import hashlib
import json
import logging
import resource
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast import HoldfastError, Keyring
from holdfast.root import shared_stores as roots_opened

ADDRESS_SPACE = 12 * 2**30
"""Beyond this the process gets no memory: a bomb must not take the machine with it."""


def _read(request: dict[str, Any], **options: Any) -> Any:
    digest, rows = hashlib.sha256(), 0
    for topic in ("orders", "rows", "spark", "many"):
        reading = holdfast.read(request["root"], topic, keyring=request["keyring"], **options)
        for batch in reading.batches():
            rows += batch.num_rows
            for row in batch.to_pylist():  # where batches end depends on the files, which a repair may change
                digest.update(repr(row).encode())
        reading.count()
    return {"rows": rows, "digest": digest.hexdigest()}


def _topics(request: dict[str, Any]) -> Any:
    found = {
        pattern: holdfast.read(request["root"], topic_pattern=pattern, columns=[], keyring=request["keyring"]).marks
        for pattern in ("o.*", "r.*", "s.*", "m.*")
    }
    return {"rows": 0, "digest": str(found)}


def _keyring(request: dict[str, Any]) -> Keyring | None:
    return Keyring.from_reference(request["keyring"]) if request["keyring"] else None


def _restore(request: dict[str, Any]) -> Any:
    target = Path(request["scratch"]) / "restored"
    shutil.rmtree(target, ignore_errors=True)
    report = holdfast.restore(request["root"], target, keyring=_keyring(request), copy=True)
    return {"rows": report.records, "digest": ""}


def _reconcile(request: dict[str, Any]) -> Any:
    from tests.hostile.roots import settings

    root = Path(request["root"])
    with holdfast.open(request["directory"], settings=settings(root), keyring=_keyring(request)) as log:
        report = log.reconcile(remote=True, deep=True)
        rows = sum(1 for name in ("orders",) for _ in log.topic(name).read())
    return {"rows": rows, "digest": str(len(report.findings))}


def _repair(request: dict[str, Any]) -> Any:
    """The owner repairs; what is read afterwards must not be what somebody forged."""
    from tests.hostile.roots import settings

    root = Path(request["root"])
    with holdfast.open(request["directory"], settings=settings(root), keyring=_keyring(request)) as log:
        log.reconcile(remote=True, deep=True, fix=True)
    roots_opened._opened.clear()
    return _read(request, include_tail=True)


def _contents(log: holdfast.Log) -> Any:
    """All that a log keeps, stream by stream: a short hash of each thing, in order."""
    streams: dict[str, list[str]] = {}
    for partition in range(2):
        streams[f"orders/{partition}"] = [_short(record) for record in log.topic("orders").read(partition=partition)]
    rows = log.topic("rows", schema="latest").read().to_arrow()
    streams["rows"] = [_short(row) for row in rows.to_pylist()]
    streams["settings"] = [_short(item) for item in log.space("settings").items()]
    streams["consumers"] = [_short([place.committed for place in one.partitions]) for one in log.consumers("orders")]
    streams["producers"] = [_short((one.producer, one.last)) for one in log.producers()]
    listed = sorted(log.executions.list(), key=lambda one: str(one.id))
    shown = [log.executions.show(one.id, reveal=True) for one in listed]
    streams["executions"] = [_short((one.summary.id, one.summary.status, one.result)) for one in shown]
    return {"rows": sum(map(len, streams.values())), "digest": json.dumps(streams)}


def _short(thing: object) -> str:
    return hashlib.sha256(repr(thing).encode()).hexdigest()[:8]


def _own(request: dict[str, Any]) -> Any:
    """The owner opens its directory, reads all of it, and appends."""
    from tests.hostile.directories import SETTINGS

    with holdfast.open(request["directory"], settings=SETTINGS, keyring=_keyring(request)) as log:
        contents = _contents(log)
        log.topic("orders").append(b"goes on")
    return contents


def _look(request: dict[str, Any]) -> Any:
    with holdfast.open(request["directory"], read_only=True, keyring=_keyring(request)) as log:
        return _contents(log)


DIRECTORY_ACTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {"own": _own, "look": _look}
ACTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "read": _read,
    "full": lambda request: _read(request, verify="full"),
    "tail": lambda request: _read(request, include_tail=True),
    "topics": _topics,
    "restore": _restore,
    "reconcile": _reconcile,
    "repair": _repair,
}


def _attempt(request: dict[str, Any]) -> dict[str, Any]:
    Path("/proc/self/clear_refs").write_text("5")
    roots_opened._opened.clear()
    try:
        answer = {"outcome": "rows", **(ACTIONS | DIRECTORY_ACTIONS)[request["action"]](request)}
    except HoldfastError as error:
        answer = {"outcome": type(error).__name__, "message": error.message}
    except BaseException:
        answer = {"outcome": "raw", "message": traceback.format_exc()}
    return {**answer, "peak": _peak()}


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    """Serve until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    logging.getLogger("holdfast").propagate = False
    for line in sys.stdin:
        print(json.dumps(_attempt(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
