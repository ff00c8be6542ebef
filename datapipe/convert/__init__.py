"""Shards to arrays: images decoded once, for good."""
