"""`hippo bench`: how fast the simulator, training and decisions are.

closed    How many plans per second the closed form evaluates from a table
decision  How long one decision takes at batch 1, from a measurement on the host to a plan on the
episodes  Episodes of one job for timing, in as many environments as are wanted, spread over all
jobs      Episodes of many jobs for timing: they arrive, wait for GPUs, train, finish and leave
plans     How many plans per second the simulator evaluates, beside other ways to do the same
roofline  What bounds an environment's steps: arithmetic, random draws, bytes of observations
"""
