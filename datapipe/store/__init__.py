"""Bytes by sample number."""
