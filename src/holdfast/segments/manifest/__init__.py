"""Which segments there are: looked up in the journal, found in folders, written as documents."""
