"""Keys, encryption and proofs: who may read (`keyring`, `cipher`, `vault`), who wrote it (`digests`, `signatures`)."""
