"""What the planner decided and why, as reports (pure)."""
