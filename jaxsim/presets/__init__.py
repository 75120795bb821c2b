"""Data that ships: the embedded cluster, calibrations, fitted links, published runs."""
