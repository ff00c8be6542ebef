"""Raw image-text data in, shards with index and manifest out."""
