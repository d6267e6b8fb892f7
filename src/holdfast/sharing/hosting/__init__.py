"""The owner's side of the socket: who is let in, what they send, what they are answered."""
