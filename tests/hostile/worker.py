"""A process that reads spoiled roots and says what came of it; when it dies, whoever started it knows what killed it.

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
    for topic in ("orders", "rows", "spark"):
        reading = holdfast.read(request["root"], topic, keyring=request["keyring"], **options)
        for batch in reading.batches():
            rows += batch.num_rows
            digest.update(repr(batch.to_pylist()).encode())
        reading.count()
    return {"rows": rows, "digest": digest.hexdigest()}


def _topics(request: dict[str, Any]) -> Any:
    found = {
        pattern: holdfast.read(request["root"], topic_pattern=pattern, columns=[], keyring=request["keyring"]).marks
        for pattern in ("o.*", "r.*", "s.*")
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
        answer = {"outcome": "rows", **ACTIONS[request["action"]](request)}
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
