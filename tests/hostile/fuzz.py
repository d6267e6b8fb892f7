"""More seeds by hand: `python -m tests.hostile.fuzz plain|keyed FIRST COUNT [KIND] [ACTION,ACTION]`, from the root."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from holdfast import Keyring
from tests.hostile import roots
from tests.hostile.judging import Trial, lives, tells_the_truth
from tests.hostile.worker import ACTIONS


def main() -> None:
    """Build a root, spoil it, and print what was wrong."""
    keyed, first, count = sys.argv[1] == "keyed", int(sys.argv[2]), int(sys.argv[3])
    kind = sys.argv[4] if len(sys.argv) > 4 and sys.argv[4] != "any" else None
    actions = tuple(sys.argv[5].split(",")) if len(sys.argv) > 5 else tuple(ACTIONS)
    with tempfile.TemporaryDirectory() as folder:
        base, keyring = Path(folder), Keyring.generate() if keyed else None
        if keyring is not None:
            keyring.save(base / "keys")
        trial = Trial(roots.make(base, keyring), base, f"file:{base / 'keys'}" if keyed else "")
        judge = tells_the_truth({action: trial.attempt(action) for action in ACTIONS}) if keyed else lives
        begun = time.monotonic()
        try:
            wrong = trial.run(range(first, first + count), actions, judge, kind)
        finally:
            trial.close()
    print("\n".join(wrong))
    print(f"{count} seeds, {len(wrong)} wrong, {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main()
