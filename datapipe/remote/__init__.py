"""Files that lie elsewhere: http(s)://, s3://, gs://, hf:// and whatever else fsspec knows."""
