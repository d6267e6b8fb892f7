"""What a request passes before a handler sees it: whether a browser was tricked, a place."""
