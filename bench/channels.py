"""Reliable channels: wrapping and unwrapping beside `@waku/sds`, and what keeping them costs.

Measured in one run, default settings, 100-byte content:

- pairs of wrap and unwrap between two participants in one process, in both dialects, beside the JavaScript
  implementation doing the same (when Node is there);
- operations of one participant in 16 channels, kept in a log against kept nowhere: in each channel so many coroutines
  send and receive in turn, each message received acknowledges one sent. What comes in was recorded before, so only one
  side is measured. An operation counts when its commit is durable; commits gather into groups;
- the bytes that one operation stores with 50 messages unacknowledged, against the 982,033 of the original's snapshot;
- loading a channel with 1000 messages of history.

Fair to say: the JavaScript side keeps its own defaults (a causal history of 200 messages, ours 10), which is most of
its cost; a participant who sets them has another ratio.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import holdfast
from bench import measure
from bench.measure import Bar, Contestant, Measured, Options, Part, Sample
from holdfast import Keyring, Log
from holdfast.channels import Channels

CONTENT = b"x" * 100
CHANNELS = [f"channel {number}" for number in range(16)]
DEPTHS = (1, 4, 16)
"""Coroutines per channel."""
ORIGINAL_BYTES = 982_033
NIM, RFC, JAVASCRIPT = "pairs, nim", "pairs, rfc", "pairs, @waku/sds"
SCRIPT = Path(__file__).parent / "rivals" / "waku_sds" / "rate.mjs"
NODE = Path(__file__).parents[1] / ".venv" / "node"
PACKAGE = "@waku/sds@0.0.8"


def memory_name(depth: int) -> str:
    return f"in memory, 16 x {depth}"


def kept_name(depth: int, keyring: Keyring | None = None) -> str:
    return f"{'sealed' if keyring else 'kept'}, 16 x {depth}"


# --- pairs --------------------------------------------------------------------------------------------------


def pairs(dialect: str, seconds: float) -> Sample:
    """Wrap and unwrap between two participants, in turn."""
    alice, bob = Channels("alice"), Channels("bob")
    for one in (alice, bob):
        one.ensure_channel("room", dialect=dialect)  # type: ignore[arg-type]
    cpu, started, rows = time.process_time(), time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        bob.unwrap_received_message(alice.wrap_outgoing_message(CONTENT, "room"))
        alice.unwrap_received_message(bob.wrap_outgoing_message(CONTENT, "room"))
        rows += 2
    return Sample(
        NIM if dialect == "nim" else RFC, rows, time.perf_counter() - started, cpu_seconds=time.process_time() - cpu
    )


def javascript() -> str | None:
    """Make the JavaScript implementation ready; why it is absent, if it is."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "Node is not installed"
    if not (NODE / "node_modules" / "@waku" / "sds").exists():
        NODE.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(NODE), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            return "npm could not install it"
    shutil.copy(SCRIPT, NODE / SCRIPT.name)  # Node looks for packages beside the script
    return None


def javascript_pairs(seconds: float) -> Sample:
    command = ["node", str(NODE / SCRIPT.name), str(seconds)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True).stdout
    found = json.loads(said.splitlines()[-1])
    return Sample(JAVASCRIPT, found["rows"], found["seconds"])


# --- kept or not --------------------------------------------------------------------------------------------


class Conversation:
    """What the other side says in 16 channels: each message acknowledges one of ours."""

    def __init__(self, rows: int, depth: int) -> None:
        self.depth = depth
        self.rows = rows - rows % depth
        self.answers: dict[str, list[bytes]] = {}
        for channel in CHANNELS:
            ours, theirs = Channels("alice"), Channels("bob")
            ours.ensure_channel(channel)
            theirs.ensure_channel(channel)
            said = self.answers[channel] = []
            for first in range(0, self.rows, depth):  # as many of ours are under way as there are coroutines
                sent = [ours.wrap_outgoing_message(CONTENT, channel, self.id(channel, first + n)) for n in range(depth)]
                for data in sent:
                    theirs.unwrap_received_message(data)
                said += [theirs.wrap_outgoing_message(CONTENT, channel) for _ in range(depth)]
                for data in said[-depth:]:
                    ours.unwrap_received_message(data)

    def id(self, channel: str, number: int) -> str:
        return f"{CHANNELS.index(channel):08x}{number:024x}"

    async def hold(self, channels: Channels) -> None:
        await asyncio.gather(*(self._talk(channels, channel) for channel in CHANNELS))

    async def _talk(self, channels: Channels, channel: str) -> None:
        wrap, unwrap = channels.wrap_outgoing_message_async, channels.unwrap_received_message_async
        answers = self.answers[channel]
        for first in range(0, self.rows, self.depth):
            turn = range(first, first + self.depth)
            await asyncio.gather(*(wrap(CONTENT, channel, self.id(channel, number)) for number in turn))
            await asyncio.gather(*(unwrap(answers[number]) for number in turn))

    def sample(self, name: str, channels: Channels) -> Sample:
        """One conversation, from channels that are new to its end."""

        async def timed() -> tuple[float, float]:
            for channel in CHANNELS:
                await channels.ensure_channel_async(channel)
            cpu, started = time.process_time(), time.perf_counter()
            await self.hold(channels)
            return time.perf_counter() - started, time.process_time() - cpu

        seconds, cpu = asyncio.run(timed())
        for channel in CHANNELS:
            left = channels.channel(channel).stats()
            if left.outgoing or left.incoming or not channels.channel(channel).persistence.ok:
                raise RuntimeError(f"the conversation went wrong; channel={channel} stats={left}")
        return Sample(name, 2 * self.rows * len(CHANNELS), seconds, cpu_seconds=cpu)


def in_memory(conversation: Conversation) -> Sample:
    with Channels("alice") as channels:
        return conversation.sample(memory_name(conversation.depth), channels)


def in_log(conversation: Conversation, directory: Path, keyring: Keyring | None) -> Sample:
    path = directory / "channels"
    try:
        with holdfast.open(path, keyring=keyring) as log:
            return conversation.sample(kept_name(conversation.depth, keyring), log.channels("alice"))
    finally:
        shutil.rmtree(path, ignore_errors=True)


# --- sizes and times ----------------------------------------------------------------------------------------


def with_history(log: Log, messages: int, unacknowledged: int) -> Channels:
    """A channel as busy as that."""
    alice, bob = log.channels("alice"), Channels("bob")
    for one in (alice, bob):
        one.ensure_channel("room")
    for number in range(messages):
        data = alice.wrap_outgoing_message(CONTENT, "room")
        if number < messages - unacknowledged:
            bob.unwrap_received_message(data)
            if number % 10 == 0 or number == messages - unacknowledged - 1:
                alice.unwrap_received_message(bob.wrap_outgoing_message(CONTENT, "room"))
    return alice


def stored_bytes(directory: Path) -> tuple[int, int]:
    """What one more message stores with 50 unacknowledged: the snapshot, and the message itself."""
    with holdfast.open(directory / "sizes") as log:
        channels = with_history(log, 100, 50)
        if channels.channel("room").stats().outgoing != 50:
            raise RuntimeError("there should be 50 unacknowledged messages")
        channels.wrap_outgoing_message(CONTENT, "room")
        items = {key: body for key, _, body in log._journal.spaces.load("channel/alice/room")}
    return len(items[b"m"]), len(items[max(items.keys() - {b"m"})])


def bootstrap_ms(directory: Path, rounds: int) -> float:
    """Loading a channel with 1000 messages of history, in a log that was just opened."""
    path = directory / "bootstrap"
    with holdfast.open(path) as log:
        with_history(log, 1100, 10)
    taken = []
    for _ in range(rounds):
        with holdfast.open(path) as log:
            channels = log.channels("alice")
            started = time.perf_counter()
            channels.ensure_channel("room")
            taken.append(1000 * (time.perf_counter() - started))
            if channels.channel("room").stats().history != 1000:
                raise RuntimeError("the channel has lost its history")
    return statistics.median(taken)


# --- the whole ----------------------------------------------------------------------------------------------


def main(options: Options) -> None:
    """All of it, in one run."""
    parts: list[Part] = []
    absent = javascript()
    contestants = [Contestant(NIM, lambda seconds: pairs("nim", seconds)), Contestant(RFC, lambda s: pairs("rfc", s))]
    if absent is None:
        contestants.append(Contestant(JAVASCRIPT, javascript_pairs))
    talked = measure.interleave(contestants, options)
    bars = [Bar(name, JAVASCRIPT, 1.0) for name in (RFC, NIM)]
    claims = [] if absent is None else [f"{JAVASCRIPT} is absent: {absent}"]
    parts.append(Part("wrap and unwrap", talked, bars, claims, [JAVASCRIPT]))
    with measure.workspace(options) as directory:
        rows = 100 if options.quick else 500
        keyring = Keyring.generate()
        for depth in DEPTHS:
            conversation = Conversation(rows, depth)
            kept = [
                Contestant(memory_name(depth), lambda _, c=conversation: in_memory(c)),  # type: ignore[misc]
                Contestant(kept_name(depth), lambda _, c=conversation: in_log(c, directory, None)),  # type: ignore[misc]
                Contestant(kept_name(depth, keyring), lambda _, c=conversation: in_log(c, directory, keyring)),  # type: ignore[misc]
            ]
            measured = measure.interleave(kept, options)
            bars = [Bar(kept_name(depth), memory_name(depth), 0.7)]
            parts.append(Part(f"kept, {depth} per channel", measured, bars, (), [memory_name(depth)]))
        snapshot, message = stored_bytes(directory)
        sizes = [
            measure.claim("snapshot with 50 unacknowledged", snapshot, ORIGINAL_BYTES / 20, "bytes"),
            f"  {ORIGINAL_BYTES / snapshot:,.0f} times less than the original's; the message itself: {message:,} bytes",
            measure.claim("loading a channel with 1000 messages", bootstrap_ms(directory, options.rounds), 60, "ms"),
        ]
        parts.append(Part("sizes and times", Measured(), (), sizes))
        facts = measure.machine(directory)
    everything_measured = Measured()
    for part in parts:
        print(measure.report(part))
        for samples in part.measured.samples.values():
            for sample in samples:
                everything_measured.add(sample)
    bars = [bar for part in parts for bar in part.bars]
    remarks = [text for part in parts for text in part.claims]
    path = measure.save("channels", everything_measured, facts, bars=bars, remarks=remarks)
    print(f"\nwritten to {path.relative_to(Path.cwd())}")
