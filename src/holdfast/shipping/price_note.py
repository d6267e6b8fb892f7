"""What the last owner ships with, written down in the log's directory: what `holdfast status` prices.

Who looks at a log has settings of his own, and they say nothing about what its owner spends. So a process that opens a
log with a store leaves the three settings that its bill depends on in the file `SHIPPING`, beside the database. It is a
note, not a part of the log: nothing is decided by it, it is not missed where it cannot be written, and what stands
there is believed only as far as it is settings.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from holdfast import disk
from holdfast.errors import Invalid
from holdfast.shipping.shipping_settings import ShippingSettings

_NAME = "SHIPPING"
_BYTES_MAX = 4096
_TIMEOUT_MIN_MS = 0.001

logger = logging.getLogger("holdfast.shipping")


class _Note(msgspec.Struct, frozen=True):
    """The file's content, as JSON; fields that a newer holdfast adds are passed over."""

    profile: str
    batch_timeout_ms: float
    commit_batches: bool


def write_note(directory: Path, settings: ShippingSettings) -> None:
    """Write down what this owner ships with, unless it stands there already."""
    note = _Note(settings.profile, settings.batch_timeout_ms, settings.commit_batches)
    if _read(directory) == note:
        return
    try:
        disk.write_file(directory / _NAME, msgspec.json.encode(note) + b"\n")
    except OSError as error:
        logger.debug("how this log ships cannot be written down: %s", error, extra={"action": "note_failed"})


def read_note(directory: Path) -> ShippingSettings | None:
    """What the last owner with a store ships with, as far as its cost goes; None where nobody knows."""
    note = _read(directory)
    try:
        if note is None or note.batch_timeout_ms < _TIMEOUT_MIN_MS:  # no price has so many digits
            return None
        return ShippingSettings(**msgspec.structs.asdict(note))
    except Invalid:
        return None


def _read(directory: Path) -> _Note | None:
    try:
        return msgspec.json.decode(disk.read_file(directory / _NAME, _BYTES_MAX), type=_Note)
    except (OSError, disk.NotRegular, disk.TooLong, msgspec.DecodeError, ValueError, RecursionError):
        return None
