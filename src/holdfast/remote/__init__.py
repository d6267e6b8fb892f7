"""A log over HTTP, with the face of one that is open here."""
