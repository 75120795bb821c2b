"""Schedulers by name, bound to a setup without a compilation of their own."""

from agents.registry import find


def bound(name, setup, **values):
    """The scheduler `name` for the table of a setup, which may be traced."""
    return find(name).make(setup.table, setup.problem.choices.size, **values).bind(setup)
