"""`hippo respond`: answer measurements with plans.

config     What a process that answers measurements is asked for
responder  The scheduler as a service
"""
