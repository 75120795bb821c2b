"""`hippo runs`: which run folders there are, and how two of them differ.

config   what is asked for
listing  folders, their tables, their differences
"""
