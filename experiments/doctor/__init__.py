"""`hippo doctor`: what is installed here, and what is missing for which command.

config   What is asked
checks   Versions, devices, folders, capabilities
telling  The tables
"""
