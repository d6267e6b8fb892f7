"""A store that lost what it had acknowledged: noticed, and filled again from what is here."""
