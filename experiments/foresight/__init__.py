"""`hippo foresight`: what re-planners leave on the table, and what of it nobody could have foreseen.

config  What a comparison is asked for
table   Re-planners on the same scenarios, rollout by futures and horizon
"""
