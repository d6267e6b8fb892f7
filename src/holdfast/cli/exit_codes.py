"""The exit codes of the command line."""

from __future__ import annotations

FINE, REFUSED, USAGE, DAMAGED, INTERRUPTED = 0, 1, 2, 3, 130
