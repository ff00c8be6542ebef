"""Several processes: ranks, copies or shards of the model, divided blocks, and a watch over all."""
