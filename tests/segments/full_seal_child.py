"""A sealing process whose disk is full."""

from __future__ import annotations

import errno
import os

from holdfast.segments.sealing import seal_child


def full(self, content):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


if __name__ == "__main__":
    seal_child.LentFile.write = full
    seal_child.main()
