"""Dynamic per-GPU micro-batches in data-parallel training: decide, train, measure.

train_ddp      entry point under torchrun
config         settings of a run
options        settings as options of a command
arms           who computes what in a step
scheduler      micro-batch scheduling as pure functions
data           rows, tokens, the stream of samples
training       model, gradients, one step, the run
ranks          what ranks tell each other, and what happens when one is lost
toolbox        what the measuring commands share
layouts        how ranks share a model: predicted, trained, changed while training
memory         peak memory predicted, recompute chosen, allocators replayed
communication  gradients sent in several ways, one chosen while training
comparative    training frameworks on the same model: equal losses, then speed
microbench     messages between ranks, operators and whole steps, measured
wan            a wide-area network on one machine
parallel       training of a small model over domains
replay         schedules replayed under the fitted cost
errors         bad settings
"""
