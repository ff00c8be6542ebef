"""Data of a run: loaders, texts without a tokenizer, batches of a step, samples on the device."""
