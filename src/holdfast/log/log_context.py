"""What the parts of one open log share: where it is, how it is set, its journal and its manifest, and the time."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.journal.journal import Journal
from holdfast.log_directory import Directory
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.settings import Settings


class LogContext(NamedTuple):
    """Made when a log is opened, and never changed."""

    directory: Directory
    settings: Settings
    clock: Clock
    journal: Journal
    manifest: Manifest
