"""`hippo sweep`: schedulers over a designed range of worlds, thousands of scenarios by one program.

config     what a sweep is asked for: a design file and a few options
design     its points, and the scenarios of each: grid, random or Latin hypercube
batches    scenarios of one shape, side by side
contents   what the files say that a design names, in short
playing    a batch from start to rows: courses, the table's rates, the schedulers
jobs       a batch of scenarios of many jobs
parts      parquet files, one a batch, and the whole
executors  who plays batches: threads here, or Ray
sweeping   a sweep from checked inputs to records
"""
