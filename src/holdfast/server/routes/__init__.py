"""The routes of the HTTP API, one file for each noun; `route_table` lists them."""
