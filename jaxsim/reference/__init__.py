"""Independent simulators that the pipeline model is checked against (needs SimPy).

simpy_pipeline  A discrete-event simulator of one training step of a pipeline, the plain way
"""
