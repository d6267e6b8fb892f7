"""The public face: an open log, its topics, and the ways to append, read, follow and watch."""
