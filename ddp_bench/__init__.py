"""Dynamic per-GPU micro-batches in data-parallel training: decide, train, measure."""
