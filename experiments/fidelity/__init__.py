"""`hippo fidelity`: where the closed form leaves the event-exact one.

config  What a comparison of the two fidelities is asked for
orders  What rivals lack by the orders that no menu holds
ratios  The closed form over the event-exact one, on random pipelines
"""
