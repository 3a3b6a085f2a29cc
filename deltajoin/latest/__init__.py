"""Delta joins over what is newest: asynchronous lookups, and an upsert stream as the result (FLIP-486)."""
