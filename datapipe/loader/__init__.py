"""Executes a plan: workers, batches, state."""
