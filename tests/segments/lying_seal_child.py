"""A sealing process that says something else than what it wrote."""

from __future__ import annotations

import msgspec

from holdfast.segments.sealing import seal_child

if __name__ == "__main__":
    write = seal_child._write
    seal_child._write = lambda *args: msgspec.structs.replace(facts := write(*args), rows=facts.rows + 1)
    seal_child.main()
