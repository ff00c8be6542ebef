"""What is known of each sample: where its bytes lie, sizes, lengths, checksums."""
