"""Deliberate errors, one at a time: do the tests near them notice?

operators  the errors that can be put into a piece of code, found in its syntax tree
sample     which of them are tried: a fixed draw from every room
rooms      which files belong to a room, and which tests are near them
nursery    a process that has the large libraries loaded and forks a pytest for every error
harmless   reasons why an error that no test can notice changes nothing

`python -m mutants` (with tests/ on the path) tries them all; `make mutants` calls it.
"""
