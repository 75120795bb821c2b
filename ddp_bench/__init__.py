"""Dynamic per-GPU micro-batches in data-parallel training: decide, train, measure.

train_ddp  entry point under torchrun
config     settings of a run
arms       who computes what in a step
scheduler  micro-batch scheduling as pure functions
data       rows, tokens, the stream of samples
training   model, gradients, one step, the run
ranks      what ranks tell each other, and what happens when one is lost
replay     schedules replayed under the fitted cost
errors     bad settings
"""
