"""Embedded clusters, and link processes fitted to measured paths."""
