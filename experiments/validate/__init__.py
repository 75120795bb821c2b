"""`hippo validate`: predictions beside measured runs.

config      What a validation is asked for
validation  Figures of merit, records, a report
machine     Data-parallel steps of a machine, calibrated by its own kernels and messages
"""
