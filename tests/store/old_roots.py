"""Roots as an older holdfast left them: format 1, folders of documents without `_`, nothing signed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.root.objects import documents, signature_place
from holdfast.root.objects.documents import OLD_ROOT, LogDocument
from holdfast.root.old_layout import old_key
from holdfast.store import layout


def make_old(root: Path) -> None:
    """Turn the root in a directory into one of format 1, with the same objects."""
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        key = path.relative_to(root).as_posix()
        if not signature_place.is_signed_kind(key) or path.name.startswith("."):
            continue
        data, _ = signature_place.detach(key, path.read_bytes())
        if key == layout.LOG:
            document = documents.decode(data, key, LogDocument)
            data = documents.encode(msgspec.structs.replace(document, format=OLD_ROOT))
        path.unlink()
        old = root / old_key(key)
        old.parent.mkdir(parents=True, exist_ok=True)
        old.write_bytes(data)
    for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
