"""From bytes of a socket to requests of the application, and back."""
