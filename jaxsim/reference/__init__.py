"""Independent simulators that `step_time` is tested against (they need SimPy).

simpy_pipeline  one training step of a pipeline, as a discrete-event simulation
"""
