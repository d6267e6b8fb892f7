"""Folding: many blocks of a long journal become few, in one commit each, and what no longer matters is left out.

Results, failed attempts (which take an error back), promises, signals, timers, versions and audit records stay, in
their order; the intents and heartbeats of steps that are finished go. A fold replaces exactly the blocks that it has
read, which never change, by one that says what they come to: nothing that is written meanwhile is touched, and if the
past was rewritten meanwhile nothing happens. A program that is running does not notice, but for its finished steps
counting no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from holdfast.execution.journal.commit_parts import (
    BLOCK_KEY,
    FOLDED_KEY,
    BlockReplacement,
    Item,
    LiveJournal,
    block_item,
)
from holdfast.execution.journal.entries import (
    EffectIntent,
    Entry,
    Folded,
    Heartbeat,
    Opened,
    StepResult,
    decode_block,
    decode_entry,
    encode_entry,
)
from holdfast.execution.journal.execution_store import ExecutionStore

_PASSING = (EffectIntent, Heartbeat)
"""What matters only while its step is not finished."""


def fold(store: ExecutionStore, live: LiveJournal) -> int:
    """Fold all that is durable of a journal; waits for each commit. Returns how many entries were folded."""
    shape = live.shape
    folded = 0
    for blocks in _stretches(store.items(live.execution), store.settings.payload_bytes_max):
        part, count, steps = _folded(live, blocks, shape, store.clock.now_us())
        store.write(live, part, alone=True).result()
        if live.shape != shape:
            break
        live.folded_steps += steps
        folded += count
    return folded


def unfolded(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Entries, those of folded stretches one by one."""
    for entry in entries:
        if isinstance(entry, Folded):
            yield from unfolded(map(decode_entry, entry.entries))
        else:
            yield entry


def essence(entries: Sequence[Entry]) -> list[Entry]:
    """What entries come to: without what only mattered while a step was not finished. An error is no last word."""
    finished = {entry.path for entry in entries if isinstance(entry, StepResult) and not entry.is_error}
    return [
        entry
        for entry in entries
        if not (isinstance(entry, _PASSING) and entry.path in finished) and not isinstance(entry, Opened)
    ]


def _stretches(items: Sequence[Item], size_max: int) -> Iterator[list[Item]]:
    """Neighbouring blocks that are not folded yet, of bounded size together."""
    stretch: list[Item] = []
    size = 0
    for item in items:
        if item[0][:1] != BLOCK_KEY or (stretch and size + len(item[2]) > size_max):
            if stretch:
                yield stretch
            stretch, size = [], 0
        if item[0][:1] == BLOCK_KEY:
            stretch.append(item)
            size += len(item[2])
    if stretch:
        yield stretch


def _folded(live: LiveJournal, blocks: Sequence[Item], shape: int, now: int) -> tuple[BlockReplacement, int, int]:
    """One stretch: what replaces it, how many entries it has, and how many finished steps."""
    parts = [decode_block(body, live.execution, number) for _, number, body in blocks]
    upto = blocks[-1][1] + len(parts[-1])
    begins_anew = isinstance(parts[0][0], Folded)  # then it stands for everything before it
    covers = upto if begins_anew else upto - blocks[0][1]
    kept = essence([entry for part in parts for entry in unfolded(part)])
    steps = len({entry.path for entry in kept if isinstance(entry, StepResult)})
    entry = Folded(upto, covers, tuple(map(encode_entry, kept)), now, steps)
    item = block_item(FOLDED_KEY, live.execution, upto - 1, [entry], covers)
    before = sum(len(body) for _, _, body in blocks)
    return (
        BlockReplacement([item], [key for key, _, _ in blocks], len(item[2]) - before, shape),
        sum(map(len, parts)),
        steps,
    )
