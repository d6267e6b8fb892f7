"""`format("holdfast")` where it cannot be used: whatever is asked of it, it says why.

Without it Spark would say that there is no such format, as if holdfast were not installed.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource

from holdfast.errors import Invalid
from pyspark_holdfast.versions.supported import check_loadable


class RefusingSource(DataSource):
    """The format, refused."""

    @classmethod
    def name(cls) -> str:
        """What users write in `format(…)`."""
        return "holdfast"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        check_loadable("pyspark_holdfast.source")
        raise Invalid("holdfast could not be loaded when Spark looked for it", hint="start Spark again")

    schema = reader = writer = _refuse
    streamReader = streamWriter = _refuse  # noqa: N815  Spark's names
