"""The model, one step of one rank, the loop over steps, checkpoints and measurements.

capacity    How many full-length samples a GPU can train on at once
check       `--check_gradients`: every arm's gradient against that of one global batch
checkpoint  Save and restore a run: models, optimizers, scalers, every rank's place in the data
evaluate    Accuracy on held-out rows, and the proof that every arm draws the same stream
gradients   Exact global-mean gradients from unequal local batches
metrics     Metrics per rank and step: written by every rank, merged by rank 0
model       The classifier: Transformers' own, with an attention that also takes packed sequences
runner      One arm's model, optimizer and step: forward, backward, vote, gradient sum, update
timing      Compute time of a rank: thread CPU time on CPUs, CUDA events on GPUs
trainer     A run: set-up on all ranks, the step loop over one or several arms, evaluation
"""

from ddp_bench.training.metrics import Recorder
from ddp_bench.training.trainer import Trainer, settings_record

__all__ = ["Recorder", "Trainer", "settings_record"]
