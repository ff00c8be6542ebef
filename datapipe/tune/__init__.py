"""Timed sweeps over a loader, and the smallest settings that are as fast as the fastest."""
