"""Topics as tables of others: what the manifests of a root say, expressed in another format, by metadata alone.

Reads manifests, writes the table's own log beside them, and touches no segment. Knows no reader and no journal.
"""
