"""Bytes to arrays and tensors."""
