"""A process that talks over UDP, keeps everything in a log, and tells what happens, until it is killed.

    python -m tests.channels.talker NAME DIRECTORY PORT PEER_PORT

Words on standard input: `talk` (say something every few milliseconds), `rest` (say no more). Lines on standard output:
`ready`, `sent ID` once it is kept, `acknowledged ID`, and `resting` when it had to rest and nothing waits.
"""

from __future__ import annotations

import os
import sys
import threading

import holdfast
from holdfast import Settings
from holdfast.channels import UdpTransport

SETTINGS = Settings.from_mapping(
    {
        "segments": {"seal_on_close": False},
        "channels": {
            "bloom_capacity": 2_000,
            "resend_interval_ms": 200,
            "resend_attempts_max": 1_000,
            "sync_interval_ms": 100,
            "buffer_sweep_interval_ms": 50,
            "repair_sweep_interval_ms": 20,
            "repair_t_min_ms": 20,
            "repair_t_max_ms": 200,
        },
    }
)


def tell(word: str) -> None:
    """A single write, so that lines never mix."""
    os.write(1, word.encode() + b"\n")


def main() -> None:
    name, directory, port, peer = sys.argv[1:]
    log = holdfast.open(directory, settings=SETTINGS)
    channels = log.channels(name)
    channels.set_callbacks(message_sent=lambda event: tell(f"acknowledged {event.message_id}"))
    channels.ensure_channel("room")
    transport = UdpTransport(channels, bind=("127.0.0.1", int(port)), peers=[("127.0.0.1", int(peer))])
    channels.start_periodic_tasks()
    tell("ready")
    quiet, go = threading.Event(), threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            go.set()
            if line == "rest\n":
                quiet.set()

    threading.Thread(target=listen, daemon=True).start()
    go.wait()
    while not quiet.wait(0.005):
        transport.send(b"something", "room")
        tell("sent")
    room = channels.channel("room")
    while room.outgoing() or room.incoming():
        quiet.wait()
        threading.Event().wait(0.02)
    tell("resting")
    threading.Event().wait()


if __name__ == "__main__":
    main()
