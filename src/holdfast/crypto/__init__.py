"""Keys, sealing and proofs: who may read (`keyring`, `cipher`, `vault`) and what was there (`chain`)."""
