"""The objects of a root as bytes and back. Pure."""
