"""How an aggregate over changes is computed: by signed sums, or by lookups (pure)."""
