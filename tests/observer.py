"""Another process that looks at a log all the while, and tells what it sees in lines of JSON until its input ends."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def observing(script: str, *arguments: str, looks: list[Any]) -> Iterator[None]:
    """Run a script beside the block and gather what it tells; it must end well."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as observer:
        lines = observer.stdout
        assert lines is not None
        reader = threading.Thread(target=lambda: looks.extend(map(json.loads, lines)))
        reader.start()
        try:
            yield
        finally:
            assert observer.stdin is not None
            observer.stdin.close()
            reader.join()
            assert observer.stderr is not None
            errors = observer.stderr.read()
            assert observer.wait(60) == 0, errors
