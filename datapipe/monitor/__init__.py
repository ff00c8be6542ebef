"""Watches a training loop: where its time goes, what holds it back, what to do next."""
