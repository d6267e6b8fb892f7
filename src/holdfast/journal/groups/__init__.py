"""Files in which groups of plain records become durable, before their rows reach the database."""
