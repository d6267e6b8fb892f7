"""The table formats that topics can be published in: the one place where another would be added.

A format is a class like `DeltaTable`. It receives what changes (`PartitionChange`: files added, retired, rewritten, and
the cursor after that), keeps the cursors in its own commits, and gives them back (`look`). Everything before that, from
manifests to changes, knows no format.
"""

from __future__ import annotations

from holdfast.errors import Invalid
from holdfast.publish.delta.delta_table import DeltaTable
from holdfast.suggestions import meant

FORMATS = {"delta": DeltaTable}


def table_format(name: str) -> type[DeltaTable]:
    """The format of this name; raises Invalid."""
    if name not in FORMATS:
        raise Invalid(f"topics cannot be published as {name!r}{meant(name, list(FORMATS))}", hint="as 'delta'")
    return FORMATS[name]
