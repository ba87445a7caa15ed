"""Draft models: `none`, and `ngram` (prompt lookup)."""
