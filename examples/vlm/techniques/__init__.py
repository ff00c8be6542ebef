"""Techniques of training: `switches` has them all, the other modules what some of them need."""
