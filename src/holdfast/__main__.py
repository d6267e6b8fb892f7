"""`python -m holdfast`: the command line, for environments whose scripts are not on the path."""

from __future__ import annotations

from holdfast.cli import main

main()
