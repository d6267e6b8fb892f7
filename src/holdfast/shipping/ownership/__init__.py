"""Who owns a root: claims, fences, takeovers, and what earlier owners left."""
