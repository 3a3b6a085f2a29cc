"""How long snapshots live: what tags and consumers hold, and the expiry of the rest."""
