"""One topic of an open log: appending to it, reading it, following it, and watching how far it is sealed."""
