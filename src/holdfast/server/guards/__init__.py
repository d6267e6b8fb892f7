"""What a request passes before a handler sees it: its connection, whether a browser was tricked, a place."""
