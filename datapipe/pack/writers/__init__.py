"""Writers of stores, one module each."""
