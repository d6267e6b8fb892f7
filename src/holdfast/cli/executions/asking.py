"""How the command line changes executions: it owns the log for a moment, or asks the process that owns it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import Settings
from holdfast.cli.options import own_log


def ask(directory: Path, reference: str | None, settings: Settings, action: str, fields: Mapping[str, Any]) -> str:
    """Have a change made, durably; the status that the execution has then."""
    from holdfast.execution.work.requests import apply

    with own_log(directory, reference, settings) as log:
        return apply(log.executions, action, fields)
