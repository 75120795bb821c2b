"""`hippo validate`: predictions beside measured runs.

config      What a validation is asked for
validation  Figures of merit, records, a report
"""
