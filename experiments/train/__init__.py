"""`hippo train`: train Hi-PPO.

config       What a training run is asked for
processes    Several processes that train one policy together
training     One training run: the host loop around compiled epochs, and its records
worlds       The worlds that a policy is trained on: their plans, and their training scenarios
start        The policy that a run starts from, where one is named
preferences  What is asked for in each training scenario, where one policy is to serve everybody
"""
