"""An S3 server that is far away: the tests' proxy before it, in a process of its own, with a delay for each request.

In a process of its own, because in the reader's it would compete for the same interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.store.fault_proxy import FaultProxy, always, delay


@contextmanager
def far_away(port: int, seconds: float) -> Iterator[str]:
    """The endpoint of a server at this port whose answers take so much longer; its own if that is nothing."""
    if not seconds:
        yield f"http://127.0.0.1:{port}"
        return
    command = [sys.executable, "-m", "bench.delayed_server", str(port), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def main() -> None:
    """Serve until whoever started this has gone."""
    proxy = FaultProxy(int(sys.argv[1]), always(delay(float(sys.argv[2]))))
    print(proxy.endpoint, flush=True)
    while sys.stdin.readline():
        time.sleep(0.1)


if __name__ == "__main__":
    main()
