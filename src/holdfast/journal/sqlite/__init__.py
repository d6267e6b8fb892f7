"""The embedded backend. The only room that knows SQL and apsw."""
