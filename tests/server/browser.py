"""A real Chromium without a window, spoken to over a pipe in its own protocol: no driver, no WebSocket, no package."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE = 60
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--no-default-browser-check",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe",
)  # fmt: skip


def chromium() -> str | None:
    """Where a Chromium is, if there is one."""
    return next((found for found in map(shutil.which, NAMES) if found), None)


class Page:
    """One page, and what was said in it."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.said: list[str] = []
        """Exceptions and errors of its console: a refusal of the policy is one."""
        self.dialogs: list[str] = []
        self.asked: list[dict[str, Any]] = []
        """Every request that it sent."""

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, params, self._session)

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """The value of an expression, awaited."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def text(self) -> str:
        return str(self.run("document.body ? document.body.innerText : ''"))

    def until(self, expression: str) -> Any:
        """Wait until an expression is true; its value."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(AssertionError):  # the page is on its way to another one
                if value := self.run(expression):
                    return value
            assert time.monotonic() < deadline, (expression, self.text()[:2000], self.said)
            self._browser.listen(0.05)

    def idle(self, seconds: float) -> None:
        """Let the page do what it does for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._browser.listen(left)

    def sees(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.until(f"document.body && document.body.innerText.includes({json.dumps(text)})")

    def click(self, text: str) -> None:
        """Click the button or link that says so, once it is there and can be clicked."""
        find = f"[...document.querySelectorAll('button, a')].find(one => one.textContent.trim() === {json.dumps(text)})"
        self.until(
            f"(() => {{ const found = {find}; if (!found || found.disabled) return false;"
            " found.click(); return true; })()"
        )

    def fill(self, selector: str, value: str) -> None:
        """Give a field a value, as somebody who types would."""
        self.until(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); if (!found) return false;"
            f" found.value = {json.dumps(value)}; found.dispatchEvent(new Event('input', {{bubbles: true}}));"
            " found.dispatchEvent(new Event('change', {bubbles: true})); return true; })()"
        )

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


class Browser:
    """The process."""

    def __init__(self, program: str, folder: Path) -> None:
        there, self._out = _pipe()
        self._in, here = _pipe()
        begin = f"import os, sys; os.dup2({there}, 3); os.dup2({here}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", begin, program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(there, here),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(here)
        self._left = b""
        self._number = 0
        self._answers: dict[int, Any] = {}
        self._pages: dict[str, Page] = {}

    def page(self) -> Page:
        """A new page, in a context of its own: nothing is shared with others."""
        context = self.call("Target.createBrowserContext", {})["browserContextId"]
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        return page

    def call(self, method: str, params: dict[str, Any], session: str | None = None) -> Any:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while number not in self._answers:
            assert time.monotonic() < deadline, method
            self.listen(1.0)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def listen(self, seconds: float) -> None:
        """Take what comes within some time."""
        if not select.select([self._in], [], [], seconds)[0]:
            return
        found = os.read(self._in, 2**20)
        assert found, "the browser has ended"
        *whole, self._left = (self._left + found).split(b"\0")
        for one in whole:
            self._take(json.loads(one))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        page = self._pages.get(message.get("sessionId", ""))
        if page is None:
            return
        params = message["params"]
        match message["method"]:
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                page.said.append(details.get("exception", {}).get("description", details["text"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                page.said.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Page.javascriptDialogOpening":
                page.dialogs.append(params["message"])
            case "Network.requestWillBeSent":
                page.asked.append(params["request"])

    def close(self) -> None:
        os.close(self._out)  # it ends when nobody speaks to it
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE)
        os.close(self._in)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are beyond 3 and 4, where the browser wants them."""
    ends = os.pipe()
    found = fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 10), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 10)
    for end in ends:
        os.close(end)
    return found


@contextlib.contextmanager
def browsing(program: str, folder: Path) -> Iterator[Browser]:
    """A browser that is not left behind."""
    browser = Browser(program, folder)
    try:
        yield browser
    finally:
        browser.close()
