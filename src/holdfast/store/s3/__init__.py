"""S3 on the shipper's own loop: connections (sockets), pool, http (one exchange), signing, credentials, remote."""
