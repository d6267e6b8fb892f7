"""A log over HTTP: `holdfast serve`. Starlette matches routes, httptools reads requests; the extra `server`.

Read in this order: `serving` (from a log to a listening process, and its end) · `connections/` (bytes as requests, and
what hostile clients get) · `application` (one request: who asks, what for, what became of it) · `route_table` (all
routes, from which the OpenAPI document is made) · `routes/`, one file for each noun.

Who may do what: `tokens`, `access`, `browser_guard`. What goes in and out: `api_request`, `api_answers`, `http_errors`.

Nothing here makes anything durable: the log does, and an answer is sent after it did. A request that fails, or whose
client goes away, changes nothing about that. The server holds no state but members of consumers, which end with it.
"""
