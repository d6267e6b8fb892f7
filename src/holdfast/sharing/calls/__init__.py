"""What a member of a shared log asks its owner for, beside appends: the requests, who answers them, and who asks."""
