"""Embedded clusters."""
