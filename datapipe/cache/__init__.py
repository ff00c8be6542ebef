"""Tiers that keep samples between the store and the batch, and what each keeps."""
