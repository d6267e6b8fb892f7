"""The command line `holdfast`: one file per verb; data on stdout, words on stderr.

Read in this order: `program` (verbs, errors, exit codes) · `options` and `output` (what all verbs share) ·
`text` and `rows` (bytes, times and typed rows for eyes and for JSON) · `append` · `read` and `tail` with `printing`
and `following` · `seal`, `ship`, `retain`, `reconcile`, `rebuild`, `restore`, `migrate_root` · `topics`, `status`,
`inspect`, these three with `glance` (what the database says in the clear), `summary` (how far things got) and
`examination` with `key_epochs` (what can be proved) · `keys` · `config`, with `prices` (what requests cost).

Where a store may stand in the place of a directory: `at_root`, `root_records` and `root_report`.

It needs the extra `cli`; nothing of it is imported by the library.
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
