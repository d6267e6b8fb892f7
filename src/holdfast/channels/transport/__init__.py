"""What carries bytes between participants: the link, UDP, and a network in one process for tests."""
