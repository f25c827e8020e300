"""From episodes to tensors: samples, batches, data parallelism."""
