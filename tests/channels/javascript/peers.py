"""JavaScript's side of a conversation: the real one in a Node process, or what it said when it was recorded."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Protocol

PACKAGE = "@waku/sds"
VERSION = "0.0.8"
PLACE = Path(sys.prefix) / "node"
"""Beside what Python has installed for the tests; never committed."""
RECORDED = Path(__file__).parents[1] / "data" / "javascript.json"
_SCRIPT = Path(__file__).with_name("peer.mjs")

_TOLD, _TOLD_S = PLACE / "reason", 1_800
"""Why it could not be installed: a registry that does not answer is waited for once in a while, not by every run."""

Request = dict[str, Any]


class Peer(Protocol):
    """Somebody who answers requests."""

    def ask(self, request: Request) -> Request: ...

    def close(self) -> None: ...


def reason_against_node() -> str | None:
    """Why the real one cannot be used here; None when it can. Installs it, once."""
    installed = PLACE / "node_modules" / PACKAGE / "package.json"
    if not shutil.which("node"):
        return "there is no Node on this machine"
    if installed.exists() and json.loads(installed.read_text())["version"] == VERSION:
        return None
    if not shutil.which("npm"):
        return "there is no npm on this machine"
    PLACE.mkdir(parents=True, exist_ok=True)
    if _TOLD.exists() and time.time() - _TOLD.stat().st_mtime < _TOLD_S:
        return _TOLD.read_text()
    reason = _reason_after_installing(installed)
    if reason is not None:
        _TOLD.write_text(reason)
    return reason


def _reason_after_installing(installed: Path) -> str | None:
    command = [
        "npm", "install", "--prefix", str(PLACE), "--no-audit", "--no-fund", "--ignore-scripts", f"{PACKAGE}@{VERSION}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        return "npm's registry does not answer"
    return None if done.returncode == 0 and installed.exists() else f"npm could not install {PACKAGE}@{VERSION}"


class NodePeer:
    """The real one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["node", str(_SCRIPT), str(PLACE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.exchanges: list[tuple[Request, Request]] = []

    def ask(self, request: Request) -> Request:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        response: Request = json.loads(self._process.stdout.readline() or '{"error": "Node has ended"}')
        self.exchanges.append((request, response))
        return response

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


class RecordedPeer:
    """What the real one answered to the same requests."""

    def __init__(self, name: str) -> None:
        self._exchanges = _unpacked(json.loads(RECORDED.read_text())[name])

    def ask(self, request: Request) -> Request:
        expected, response = self._exchanges.pop(0)
        assert request == expected, "we say something else than when this was recorded: see data/README.md"
        return response

    def close(self) -> None:
        assert not self._exchanges, "there is more in the recording"


def record(name: str, exchanges: list[tuple[Request, Request]]) -> None:
    """Put a conversation into the file, in place of the one before."""
    kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    kept[name] = _packed(exchanges)
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def _packed(exchanges: list[tuple[Request, Request]]) -> str:
    """Filters are long and nearly empty."""
    return base64.b64encode(zlib.compress(json.dumps(exchanges).encode(), 9)).decode()


def _unpacked(text: str) -> list[tuple[Request, Request]]:
    return [(request, response) for request, response in json.loads(zlib.decompress(base64.b64decode(text)))]
