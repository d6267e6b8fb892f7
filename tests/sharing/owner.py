"""A process that owns a shared log until it is killed: `python -m tests.sharing.owner DIRECTORY [STORE [KEYRING]]`.

It says `ready` when it has joined. At the end of its standard input it closes the log and ends.
"""

from __future__ import annotations

import sys

import holdfast

SETTINGS = {
    "journal": {"ack_timeout_ms": 60_000},
    "segments": {"seal_on_close": False},
    "executions": {"poll_interval_ms": 10},
}


def main() -> None:
    directory, store, keyring, *_ = (*sys.argv[1:], "", "")
    with holdfast.open(directory, share=True, settings=SETTINGS, store=store or None, keyring=keyring or None):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
