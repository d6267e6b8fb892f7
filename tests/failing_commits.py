"""Commits that fail on request, whichever way a group takes: through the database or into a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Topic


def refuse_next_commit(topic: Topic, monkeypatch: pytest.MonkeyPatch, error: BaseException, *, skip: int = 0) -> None:
    """Let the next commit fail, or the one after so many."""
    calls: list[None] = []

    def is_struck() -> bool:
        calls.append(None)
        return len(calls) == skip + 1

    _replace(topic._journal._backend, monkeypatch, error, is_struck)


def fail_commits(topic: Topic, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let all commits fail from now on."""
    _replace(topic._journal._backend, monkeypatch, error, lambda: True)


def _replace(
    backend: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, is_struck: Callable[[], bool]
) -> None:
    for owner, name in ((backend, "commit"), (backend.filed, "append_group")):
        original = getattr(owner, name)

        def commit(*frame: Any, original: Callable[..., None] = original) -> None:
            if is_struck():
                raise error
            original(*frame)

        monkeypatch.setattr(owner, name, commit)
