"""How a segment file is cut into pieces. Values only; nothing here needs Arrow."""

from __future__ import annotations

import msgspec

from holdfast.errors import Invalid

GROUP_ROWS_MAX = 2**24
GROUP_BYTES_MAX = 2**30
"""No shape makes larger row groups; readers refuse them unread."""

_LEVEL_MAX = 22


class FileShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of the pieces of a segment file. They change speed and memory, never what a file says.

    >>> FileShape(row_group_rows=1000).row_group_rows
    1000
    """

    row_group_rows: int = 131_072
    """Records in one row group: what a reader decodes at once, and the least that it reads of a plain file."""

    row_group_bytes: int = 32 * 2**20
    """The same bound in bytes of Arrow data, one oversized record excepted; writer and reader hold about as much."""

    block_rows: int = 16_384
    """Records in one encrypted block: the least that is decrypted of an encrypted file."""

    block_bytes: int = 2**20
    """The same bound in bytes of Arrow data, one oversized record excepted."""

    compression_level: int = 1
    """Of zstd, 1 to 22: higher is smaller and slower to write; reading hardly notices."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be above zero, got {value}"
            for name, value in msgspec.structs.asdict(self).items()
            if value <= 0
        ]
        if max(self.row_group_bytes, self.block_bytes) > GROUP_BYTES_MAX:
            problems.append("row_group_bytes and block_bytes must not exceed 1GiB")
        if max(self.row_group_rows, self.block_rows) > GROUP_ROWS_MAX:
            problems.append(f"row_group_rows and block_rows must not exceed {GROUP_ROWS_MAX}")
        if self.compression_level > _LEVEL_MAX:
            problems.append(f"compression_level must not exceed {_LEVEL_MAX}")
        if problems:
            raise Invalid("; ".join(problems), hint="correct these settings; all problems found are listed")
