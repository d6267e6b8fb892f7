"""Groups of records on their way to the server."""
