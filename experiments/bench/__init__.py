"""`hippo bench`: how fast the simulator, training and decisions are.

config    what a measurement is asked for
measure   one measurement: the cases, each compiled and timed
episodes  episodes of one job, spread over all devices
jobs      episodes of many jobs
plans     evaluations of plans, event-exact, and peers beside them
closed    evaluations of plans, closed form
decision  one decision at a time, from a measurement to a plan on the host
watching  answers of `hippo watch`, from a measurement on
roofline  what bounds an environment's steps
"""
