"""`hippo plan`: from a cluster and a model to a plan, in seconds.

config      what a plan is asked for
whatif      questions of the kind "what if this link were half as fast"
question    cluster, job and links as the search takes them
candidates  the search, and the plans beside the best one
policy      what a scheduler would deploy that has learned how links move
orders      the leading plans in orders that no search looks at
answer      what a reader wants to know of a plan: speed, bands, days, USD, memory, bytes
spot        what a plan comes to on GPUs that are cheaper and taken away at times
bottleneck  what bounds a plan: the part of the step, the link, the stage
thresholds  at which links or worth of a token another plan wins, and what a switch to it costs
planning    puts them together
screen      the answer as text
remarks     what it says below its table
export      launch files for training frameworks
"""
