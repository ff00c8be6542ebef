"""Transfer of batches to a device, and images that stay there.

Batches in host memory come in; batches on the device go out, one ahead of the training loop.
`prefetcher.py` copies, small tensors together; `device_cache.py` completes batches with images that
are on the device already. A new operation on the device is called by `prefetcher.py`.
"""
