"""S3 on the shipper's own event loop: connections (sockets), http (one exchange), signing, credentials, remote."""
