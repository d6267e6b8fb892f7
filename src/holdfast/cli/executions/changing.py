"""How the command line changes executions: it owns the log for a moment, or asks the process that owns it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import Settings
from holdfast.cli.options import own_log
from holdfast.log.execution_requests import request


def ask(
    directory: Path, reference: str | None, settings: Settings, action: str, fields: Mapping[str, Any]
) -> str | int:
    """Have a change made, durably; the status that the execution has then, or whether this made the change."""
    answer: str | int = request(lambda: own_log(directory, reference, settings), action, fields)
    return answer
