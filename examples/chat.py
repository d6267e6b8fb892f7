"""A chat over UDP that survives kill -9: what is on the screen is what is in the log.

    python examples/chat.py alice --log /tmp/alice --bind 127.0.0.1:9001 --peer 127.0.0.1:9002
    python examples/chat.py bob --log /tmp/bob --bind 127.0.0.1:9002 --peer 127.0.0.1:9001

Type a line to say it. Kill either one at any time, go on talking, start it again: it shows what was said before, and
then gets what it missed. A line is sent once it is in the log; a ✓ says that another one has it. With `--key file:PATH`
(or `env:NAME`), the same for all, nobody else can read it, or say anything. The screen follows the
topic `_channels`, in which the log records each message exactly once, in causal order.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from threading import Thread

import holdfast
from holdfast import Invalid, Record, Settings, Topic
from holdfast.channels import UdpTransport

ROOM = "room"
IMPATIENT = {
    "resend_interval_ms": 1_000,
    "resend_attempts_max": 1_000,
    "sync_interval_ms": 1_000,
    "buffer_sweep_interval_ms": 250,
    "repair_sweep_interval_ms": 100,
    "repair_t_min_ms": 100,
    "repair_t_max_ms": 1_000,
}
"""Where a channel would wait for a minute, a demonstration waits for a second."""


def address(text: str) -> tuple[str, int]:
    """`host:port`."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def line(record: Record, said: dict[bytes, str]) -> str | None:
    """A record of `_channels`, as people read it."""
    headers = record.headers or {}
    message_id, text = headers["message_id"], record.payload.decode("utf-8", "replace")
    match record.kind:
        case "sent":
            said[message_id] = text
            return f"you: {text}"
        case "delivered":
            return f"{headers['sender_id'].decode()}: {text}"
        case "acknowledged":
            return f"✓ {said.get(message_id, '?')}"
        case "given_up":
            return f"✗ {said.get(message_id, '?')}"
    return None


def show(topic: Topic) -> None:
    """Everything that happened, and then everything that happens, as it becomes durable."""
    said: dict[bytes, str] = {}
    before = topic.marks()[0].durable
    if before:
        print("-- said before --", flush=True)
    for record in topic.follow(0):
        if before and record.offset == before:
            print("-- now --", flush=True)
        text = line(record, said)
        if text is not None:
            print(text, flush=True)


def main() -> None:
    """Join the room, say what is typed, leave at the end of input."""
    parser = argparse.ArgumentParser(description="Chat over UDP, kept in a log.")
    parser.add_argument("name")
    parser.add_argument("--log", type=Path, required=True, help="a directory for the log")
    parser.add_argument("--bind", type=address, required=True, metavar="HOST:PORT")
    parser.add_argument("--peer", type=address, action="append", default=[], metavar="HOST:PORT", dest="peers")
    parser.add_argument("--key", metavar="file:PATH", help="a keyring that all share; see docs/howto/channels.md")
    given = parser.parse_args()

    with holdfast.open(given.log, settings=Settings.from_mapping({"channels": IMPATIENT})) as log:
        channels = log.channels(given.name, keys=given.key)
        channels.ensure_channel(ROOM)
        Thread(target=show, args=[log.topic("_channels")], daemon=True).start()
        with UdpTransport(channels, bind=given.bind, peers=given.peers) as transport:
            channels.start_periodic_tasks()
            for typed in sys.stdin:
                try:
                    transport.send(typed.rstrip("\n").encode(), ROOM)
                except Invalid as error:
                    print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
