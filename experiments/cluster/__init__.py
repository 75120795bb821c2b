"""`hippo cluster`: cluster and trace files from measurements.

make  A cluster file from grids of measurements, and the trace that moves its links
"""
