"""More seeds by hand: `python -m tests.hostile.fuzz FIRST COUNT [KIND] [ACTION,ACTION]`, from the repository's root."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.hostile import roots
from tests.hostile.judging import Trial, lives
from tests.hostile.worker import ACTIONS


def main() -> None:
    """Build a plain root, spoil it, and print what was wrong."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    kind = sys.argv[3] if len(sys.argv) > 3 and sys.argv[3] != "any" else None
    actions = tuple(sys.argv[4].split(",")) if len(sys.argv) > 4 else tuple(ACTIONS)
    with tempfile.TemporaryDirectory() as base:
        trial = Trial(roots.make(Path(base)), Path(base))
        begun = time.monotonic()
        try:
            wrong = trial.run(range(first, first + count), actions, lives, kind)
        finally:
            trial.close()
    print("\n".join(wrong))
    print(f"{count} seeds, {len(wrong)} wrong, {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main()
