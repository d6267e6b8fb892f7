"""A process that owns a shared log until it is killed: `python -m tests.sharing.owner DIRECTORY [STORE]`.

It says `ready` when it has joined. At the end of its standard input it closes the log and ends.
"""

from __future__ import annotations

import sys

import holdfast

SETTINGS = {
    "journal": {"ack_timeout_ms": 60_000}, "segments": {"seal_on_close": False},
    "executions": {"poll_interval_ms": 10},
}  # fmt: skip


def main() -> None:
    store = sys.argv[2] if len(sys.argv) > 2 else None
    with holdfast.open(sys.argv[1], share=True, settings=SETTINGS, store=store):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
