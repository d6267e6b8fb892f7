"""`format("holdfast")` where it cannot be used: whatever is asked of it, it says why.

Without it Spark would say that there is no such format, as if holdfast were not installed.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource

from holdfast.errors import Invalid
from pyspark_holdfast.versions.supported import problem


class RefusingSource(DataSource):
    """The format, refused."""

    @classmethod
    def name(cls) -> str:
        """What users write in `format(…)`."""
        return "holdfast"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise problem("pyspark_holdfast.source") or Invalid(
            "holdfast could not be loaded when Spark looked for it", hint="start Spark again"
        )

    schema = reader = writer = _refuse
    streamReader = streamWriter = _refuse  # noqa: N815  Spark's names
