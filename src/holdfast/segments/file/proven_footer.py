"""Reading a segment file's footer and holding it against what is known of the file, before anything else is believed.

What is known comes from a manifest: size and hash of the footer are compared before it is parsed, and what it says
afterwards. Arrow parses it only if the manifest is `trusted`; any other is parsed by our own walk (`unproven_footer`).
Raises Damaged, BadFooter, UnknownVersion or BadStructure; readers say where.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow.parquet as pq

from holdfast.model.segment import SegmentFacts, SegmentHead
from holdfast.segments.file import footer as footers
from holdfast.segments.file.footer import Footer
from holdfast.segments.file.hashing_sink import hash_block
from holdfast.segments.file.proven_file import FOOTER_BYTES_MAX, DamagedFile, ProvenFile
from holdfast.segments.file.unproven_footer import UnprovenFooter, read_metadata


class ProvenFooter(NamedTuple):
    """A footer that is what the manifest says, if there is one."""

    footer: Footer
    pairs: dict[str, str]
    digest: bytes
    metadata: pq.FileMetaData | None
    """Parquet's, of a trusted file."""
    unproven: UnprovenFooter | None
    """Of any other."""


def read_footer(
    file: ProvenFile, head: SegmentHead | None, facts: SegmentFacts | None, *, trusted: bool, bytes_max: int
) -> ProvenFooter:
    """The footer of a file; from now on the file proves its blocks with the hashes in it."""
    if facts is not None and file.size != facts.size:
        raise DamagedFile(f"has another size than the manifest says bytes={file.size} said={facts.size}")
    content = file.read_footer()
    digest = hash_block(content)
    if facts is not None and digest != facts.footer:
        raise DamagedFile("has a damaged footer, or is another file than the manifest says")
    metadata = read_metadata(content, FOOTER_BYTES_MAX) if trusted else None
    unproven = None if trusted else UnprovenFooter(content, bytes_max)
    pairs = footers.decode_pairs(metadata.metadata if unproven is None else unproven.pairs)  # type: ignore[union-attr]
    footer = footers.parse(pairs)
    _compare(footer, head, facts)
    file.expect(footer.blocks)
    return ProvenFooter(footer, pairs, digest, metadata, unproven)


def _compare(footer: Footer, head: SegmentHead | None, facts: SegmentFacts | None) -> None:
    """The footer must be the one that the manifest means."""
    if head is not None and footer.head != head:
        other = f"{footer.head.topic}/{footer.head.partition}/{footer.head.number}"
        raise DamagedFile(f"is the file of another segment is={other}")
    if facts is not None and facts != footer.facts(size=facts.size, sha256=facts.sha256, footer=facts.footer):
        raise DamagedFile("says something else of itself than the manifest")
