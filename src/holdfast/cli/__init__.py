"""The command line `holdfast`: one file per verb; data on stdout, words on stderr.

Read in this order: `program` (verbs, errors, exit codes) · `options` and `output` (what all verbs share) · `text`
(what a terminal gets to see) · `printing`, `follow_output` and `progress` · `prices` (what requests cost) · `verbs`,
one file each.

`inspection` is what `inspect`, `status`, `topics` and `read` have in common. What is in a log's database, and whether
it is intact, comes from `journal/proving/inspected_database.py`; here it is printed, row by row (`inspect_lines`) or by
topic and partition (`summary`). Where a verb takes a store's URL in place of a directory: `at_root`, `root_records`,
`root_report`.

It needs the extra `cli`; the library imports nothing of it.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module


def main() -> None:
    """The entry point; exits with 0 fine, 1 refused or not found, 2 usage, 3 damage, 130 interrupted."""
    try:
        for name in ("click", "rich"):
            import_module(name)
    except ImportError:
        message, hint = "the command line needs an extra", "pip install 'holdfast-log[cli]'"
        if "--json" in sys.argv[1:]:
            print(json.dumps({"error": "Usage", "message": message, "hint": hint}), file=sys.stderr)
        else:
            print(f"error: {message}: {hint}", file=sys.stderr)
        raise SystemExit(2) from None
    from holdfast.cli.program import program

    program.main(prog_name="holdfast")
