"""Measurements on a GPU, a module for each stage of `benchmarks/gpu_campaign.sh`."""
