"""Rewrites of a partition: files that took the place of segments, and the segments that are in effect.

A rewrite joins neighbours: it puts one longer file in the place of a run of segments. Offsets, numbers, manifest
objects and the chain stay as they are, so marks, checkpoints of streams and proofs do not notice. One create-only
object swaps all of a partition's files at once; readers see the files from before it or those from after it.

    manifest   0 1 2 3 4 5 6 7        what was sealed, forever
    rewrite 0  0───┘ 2───┘            two files, of segments 0..1 and 2..3
    rewrite 1  0───────────┘          one file, of segments 0..5
    in effect  0           6 7

What a rewrite says is checked against the manifest: it begins and ends where its segments do, holds as many rows, and
follows the same chain value. That its rows are theirs is proved by its writer, before the swap, and can be proved by
any reader later: the content digest of each segment stands in the manifest. In a log with keys the object is signed.

Readers read the rewrites first and the manifest after them: then all that they speak of is in it. A rewrite without a
file changes nothing but the count: it takes a number that was announced and never used, so that what was left there is
known to be garbage. Nothing here is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import Corrupt, NotFound
from holdfast.model.segment import Segment
from holdfast.root.numbered_objects import numbered
from holdfast.root.objects import documents
from holdfast.root.objects.documents import IntentDocument, RewriteDocument, RewrittenFile, SegmentDocument
from holdfast.root.objects.manifest_chain import is_linked, is_sound
from holdfast.root.store_manifest import in_parallel
from holdfast.store import layout
from holdfast.store.port import Store

OUTPUTS_MAX = 10_000
"""Files of one rewrite."""
SUMMARY_EVERY = 32
"""Of so many rewrites one tells all that is in effect after it: a reader begins there, however many came before."""


class InEffect(NamedTuple):
    """A file that is to be read: a segment's own, or one that holds a run of them."""

    segment: SegmentDocument
    upto: int
    """The number behind the last segment that it holds."""
    rewrite: int | None = None
    """Which rewrite made it; None for a segment's own file."""


def read_rewrites(
    store: Store, log: str, topic: str, partition: int, known: Sequence[RewriteDocument] = ()
) -> list[RewriteDocument]:
    """All rewrites of a partition, in order; what is known already is not read again. Raises Corrupt.

    Nothing is lost by those who look too early: the files from before stay for a while.
    """
    after = layout.rewrite_key(topic, partition, len(known) - 1) if known else None
    keys = numbered(store, layout.rewrites_folder(topic, partition), after)
    found = [*known, *in_parallel(lambda key: documents.decode(store.get(key), key, RewriteDocument), keys)]
    for number in range(len(known), len(found)):
        _prove_place(found[number], log, topic, partition, number)
    return found


def read_newest(store: Store, log: str, topic: str, partition: int) -> list[RewriteDocument]:
    """The rewrites that say what is in effect now: from the newest one on that tells all; raises Corrupt."""
    keys = numbered(store, layout.rewrites_folder(topic, partition))
    if keys != [layout.rewrite_key(topic, partition, number) for number in range(len(keys))]:
        return read_rewrites(store, log, topic, partition)  # which says what is missing

    def read(number: int) -> RewriteDocument:
        found = documents.decode(store.get(keys[number]), keys[number], RewriteDocument)
        return _prove_place(found, log, topic, partition, number)

    begin: list[RewriteDocument] = []
    for number in filter(tells_all, range(len(keys) - 1, -1, -1)):
        if (found := read(number)).kept is not None:
            begin = [found]
            break
    first = begin[0].number + 1 if begin else 0
    return [*begin, *in_parallel(read, range(first, len(keys)))]


def tells_all(number: int) -> bool:
    """Whether the rewrite with this number should tell all that is in effect after it."""
    return number % SUMMARY_EVERY == SUMMARY_EVERY - 1


def read_since(
    store: Store, log: str, topic: str, partition: int, known: Sequence[RewriteDocument]
) -> list[RewriteDocument]:
    """The rewrites that were added after these; one request if there are none. Raises Corrupt."""
    more: list[RewriteDocument] = []
    while True:
        number = (known[-1].number + 1 if known else 0) + len(more)
        key = layout.rewrite_key(topic, partition, number)
        try:
            found = documents.decode(store.get(key), key, RewriteDocument)
        except NotFound:
            return more
        more.append(_prove_place(found, log, topic, partition, number))


def _prove_place(rewrite: RewriteDocument, log: str, topic: str, partition: int, number: int) -> RewriteDocument:
    key = layout.rewrite_key(topic, partition, number)
    if (rewrite.log, rewrite.topic, rewrite.partition) != (log, topic, partition):
        raise Corrupt("a rewrite belongs elsewhere", path=key, topic=topic, partition=partition)
    if rewrite.number != number:
        raise Corrupt("a rewrite is missing", path=key, topic=topic, partition=partition)
    return rewrite


def read_intents(store: Store, log: str, topic: str, partition: int, rewrites: int) -> list[IntentDocument]:
    """The intents that are still open, given how many rewrites there are; those that make no sense are passed over."""
    found = []
    for info in store.list(layout.intents_folder(topic, partition)):
        name = layout.parse_intent_key(info.key)
        if name is None or name[0] < rewrites:
            continue
        try:
            intent = documents.decode(store.get(info.key), info.key, IntentDocument)
        except (Corrupt, NotFound):  # one that is gone has ended; one that is damaged announces nothing
            continue
        if (intent.log, intent.topic, intent.partition, intent.number, intent.nonce) == (log, topic, partition, *name):
            found.append(intent)
    return found


def in_effect(segments: Sequence[SegmentDocument], rewrites: Sequence[RewriteDocument]) -> list[InEffect]:
    """The files of a partition that are to be read, by offset; raises Corrupt if a rewrite does not fit.

    `segments` is the whole manifest, from number 0; `rewrites` are all, or those that `read_newest` found.
    """
    files, _ = _after(segments, rewrites)
    return [files[number] for number in sorted(files)] if rewrites else list(files.values())


def segments_in_effect(
    segments: Sequence[SegmentDocument], rewrites: Sequence[RewriteDocument]
) -> Sequence[SegmentDocument]:
    """The same as segments, which is all that most readers need."""
    return [file.segment for file in in_effect(segments, rewrites)] if rewrites else segments


def replaced(segments: Sequence[SegmentDocument], rewrites: Sequence[RewriteDocument]) -> dict[str, int]:
    """Keys of files that are not in effect any more, and the number of the rewrite that replaced each."""
    return _after(segments, rewrites)[1]


def was_replaced(segment: Segment, rewrites: Sequence[RewriteDocument]) -> bool:
    """Whether another file has taken the place of this one, which was in effect when a read was planned."""
    number, sha256 = segment.head.number, segment.facts.sha256.hex()
    outputs = (output for rewrite in reversed(rewrites) for output in rewrite.outputs)
    newest = next((output for output in outputs if output.segment.number <= number < output.upto), None)
    return newest is not None and newest.segment.sha256 != sha256


def _after(
    segments: Sequence[SegmentDocument], rewrites: Sequence[RewriteDocument]
) -> tuple[dict[int, InEffect], dict[str, int]]:
    """Files in effect by number, and files that were replaced."""
    files = {segment.number: InEffect(segment, segment.number + 1) for segment in segments}
    gone: dict[str, int] = {}
    for at, rewrite in enumerate(rewrites):
        outputs = rewrite.outputs if at or not rewrite.number else (*(rewrite.kept or ()), *rewrite.outputs)
        if len(rewrite.outputs) > OUTPUTS_MAX or len(rewrite.kept or ()) > OUTPUTS_MAX:
            raise misfit(rewrite, None)
        for output in outputs:
            for file in _taken(files, rewrite, output):
                gone[file.segment.key] = rewrite.number
                del files[file.segment.number]
            files[output.segment.number] = InEffect(output.segment, output.upto, rewrite.number)
    return files, gone


def _taken(files: dict[int, InEffect], rewrite: RewriteDocument, output: RewrittenFile) -> list[InEffect]:
    """What one file takes the place of."""
    at = output.segment.number
    taken = []
    while at < output.upto and (file := files.get(at)) is not None:
        taken.append(file)
        at = file.upto
    if not taken or at != output.upto or not _fits(output.segment, [file.segment for file in taken], rewrite):
        raise misfit(rewrite, output.segment.first)
    return taken


def _fits(segment: SegmentDocument, taken: Sequence[SegmentDocument], rewrite: RewriteDocument) -> bool:
    """Whether a file can hold the rows of these and nothing else."""
    first, last = taken[0], taken[-1]
    return (
        (segment.log, segment.topic, segment.partition) == (rewrite.log, rewrite.topic, rewrite.partition)
        and (segment.slot, segment.first, segment.previous) == (first.slot, first.first, first.previous)
        and segment.end == last.end
        and not segment.check
        and is_sound(segment)
        and is_linked(segment)
        and not segment.is_filler
        and all(
            (one.schema, bool(one.key_id)) == (segment.schema, bool(segment.key_id)) and not one.is_filler
            for one in taken
        )
    )


def misfit(rewrite: RewriteDocument, offset: int | None) -> Corrupt:
    """A rewrite that is not about this manifest."""
    return Corrupt(
        "a rewrite does not fit the segments that it replaces",
        path=layout.rewrite_key(rewrite.topic, rewrite.partition, rewrite.number),
        topic=rewrite.topic,
        partition=rewrite.partition,
        offset=offset,
    )
