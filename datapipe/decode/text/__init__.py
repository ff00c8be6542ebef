"""Text of a sample to tokens: chat templates, labels, places of images."""
