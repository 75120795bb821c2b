"""[B] of one number, by what it is: each quantity is defined here and nowhere else.

Mixed-precision training (Micikevicius et al., ICLR 2018) computes with and sends 16-bit values, and
sums gradients and updates weights in fp32. What a GPU stores: Korthikanti et al. 2022, Fig. 1.
"""

ACTIVATION_BYTES = 2.0  # an activation and its gradient, on a GPU and on the wire
FP32_ACTIVATION_BYTES = 4.0  # the same in a job of precision fp32
SENT_GRADIENT_BYTES = 2.0  # a gradient or a weight in a collective of data parallelism
WEIGHT_BYTES = 2.0  # a weight that layers compute with
STORED_GRADIENT_BYTES = 4.0  # a gradient summed in fp32
OPTIMIZER_BYTES = 12.0  # Adam's fp32 master weight, momentum and variance
STORED_STATE_BYTES = WEIGHT_BYTES + STORED_GRADIENT_BYTES + OPTIMIZER_BYTES
# What a parameter takes along when its layer moves: gradients are made anew in every step.
MOVED_STATE_BYTES = WEIGHT_BYTES + OPTIMIZER_BYTES
