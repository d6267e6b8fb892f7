"""What can be set about segments, retention, reconciliation and the disk, with defaults and bounds in one place."""

from __future__ import annotations

import msgspec

from holdfast.errors import Invalid


class SegmentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the tail is sealed, and into what."""

    rows_max: int = 1_000_000
    """Records after which a partition's tail is sealed; a segment holds at most one journal entry more."""

    bytes_max: int = 128 * 2**20
    """Stored bytes after which a partition's tail is sealed."""

    age_max_ms: float = 300_000
    """How long a record may stay unsealed, even in a partition that gets no more records."""

    seal_on_close: bool = True
    """Seal what is left when the log is closed; otherwise it stays in the journal, just as durable."""

    row_group_rows: int = 131_072
    """Rows in one row group of a segment file."""

    row_group_bytes: int = 32 * 2**20
    """Bytes in one row group; sealing needs memory for about four of them."""

    block_rows: int = 16_384
    """Records in one block of an encrypted segment."""

    block_bytes: int = 2**20
    """Bytes in one block of an encrypted segment: what has to be decrypted to read a single record."""

    compression_level: int = 1
    """The level of zstd."""

    trim_entries: int = 64
    """Journal entries removed in one commit after they were sealed; appends beside it wait that long. Fewer where
    entries are large: about a mebibyte at a time.
    """

    idle_ratio: float = 4
    """Rest between pieces of sealing while records are appended, as a multiple of the work; 0 = no rest. At most 1
    where a tail grows faster than it is sealed.
    """

    key_index_bytes_max: int = 64 * 2**20
    """Memory for indexes of keys that lookups have read, about 6 bytes for each key of a segment; 0 = keep none."""

    def __post_init__(self) -> None:
        problems = _not_positive("segments", self, except_for=("seal_on_close", "idle_ratio", "key_index_bytes_max"))
        if self.key_index_bytes_max < 0:
            problems.append("segments.key_index_bytes_max must not be negative")
        if self.idle_ratio < 0:
            problems.append("segments.idle_ratio must not be negative")
        refuse("segments", problems)


class RetentionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes, where nothing else is said about a topic. 0 = no limit."""

    bytes_max: int = 0
    """Bytes of segment files that each partition keeps."""

    age_max_ms: float = 0
    """How long a segment is kept after it was sealed."""

    records_max: int = 0
    """Records that each partition keeps in segments."""

    disk_bytes_max: int = 0
    """What the whole log may take on the disk; beyond that the oldest segments of any topic are removed."""

    headroom_bytes: int = 512 * 2**20
    """Room that is kept free below `disk_bytes_max`, for the tail and for segments being written; must be below it.
    """

    interval_ms: float = 60_000
    """How often the owner applies retention; it also does so after sealing."""

    allow_unsettled: bool = False
    """Whether segments may be removed that are not on the log's store yet; otherwise they stay, whatever the limits
    say.
    """

    def __post_init__(self) -> None:
        problems = [
            f"retention.{name} must not be negative, got {value}"
            for name, value in msgspec.structs.asdict(self).items()
            if value < 0
        ]
        if self.disk_bytes_max and self.headroom_bytes >= self.disk_bytes_max:
            problems.append("retention.headroom_bytes must be below retention.disk_bytes_max")
        if not self.interval_ms:
            problems.append("retention.interval_ms must be above zero")
        refuse("retention", problems)


class ReconcileSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The background job that compares the manifest with the files. Off unless `pass_interval_ms` is set."""

    pass_interval_ms: float = 0
    """Time between two passes in the background; 0 = no background job."""

    idle_ratio: float = 10
    """Rest between units of work, as a multiple of the time that the unit took; 0 = no rest."""

    unit_segments: int = 1_000
    """Segments checked in one unit of work."""

    deep: bool = False
    """Whether the background job reads and proves every file; costly."""

    fix: bool = False
    """Whether the background job repairs what it can prove; otherwise it only reports."""

    def __post_init__(self) -> None:
        problems = []
        if self.pass_interval_ms < 0 or self.idle_ratio < 0:
            problems.append("reconcile.pass_interval_ms and reconcile.idle_ratio must not be negative")
        if self.unit_segments <= 0:
            problems.append("reconcile.unit_segments must be above zero")
        refuse("reconcile", problems)


class DiskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The disk guard."""

    free_bytes_min: int = 256 * 2**20
    """Below this much free space appends are refused with Unavailable; reading and sealing go on. 0 = no guard."""

    free_bytes_warning: int = 512 * 2**20
    """Below this much free space a warning is logged (`disk_filling`), before the guard refuses anything. 0 = none."""

    check_interval_ms: float = 1_000
    """How often free space is checked."""

    def __post_init__(self) -> None:
        names = ("free_bytes_min", "free_bytes_warning")
        problems = [f"disk.{name} must not be negative" for name in names if getattr(self, name) < 0]
        if self.check_interval_ms <= 0:
            problems.append("disk.check_interval_ms must be above zero")
        refuse("disk", problems)


def _not_positive(section: str, settings: SegmentSettings, except_for: tuple[str, ...]) -> list[str]:
    return [
        f"{section}.{name} must be above zero, got {value}"
        for name, value in msgspec.structs.asdict(settings).items()
        if name not in except_for and value <= 0
    ]


def refuse(section: str, problems: list[str]) -> None:
    """Raise all problems of a section at once."""
    if problems:
        raise Invalid("; ".join(problems), hint=f"correct these settings under [{section}]; all problems are listed")
