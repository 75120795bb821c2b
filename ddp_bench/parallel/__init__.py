"""Real training of a small model over domains: data parallel, pipelines, both, local SGD.

plan     what is decided, and which rank does what; pure
job      a run as its resolved file states it
corpus   bytes to train on
model    a Llama-shaped model in units
wire     sums of vectors with 32, 16 or 8 bits a value
groups   process groups of a plan
sync     gradients in buckets
outer    DiLoCo and streaming DiLoCo
engine   one rank's step under a plan
agree    ranks agree on when a new plan is put into force
move     state moves from one plan to another
worker   one rank from beginning to end
launch   start the ranks, watch them, make tables
summary  a run in a few numbers
"""
