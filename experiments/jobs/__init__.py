"""`hippo jobs`: a list of jobs, drawn from a trace or at random.

config  What a list of jobs to draw is asked for
draw    Draw the jobs and write their file
"""
