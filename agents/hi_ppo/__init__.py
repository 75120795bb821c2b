"""Hi-PPO: features, networks, exact gradients and PPO, checkpoints, the trained scheduler.

checkpoint  Checkpoints: one file, written whole or not at all, that says what it is
exact       Training of the upper policy by the exact gradient on recorded scenarios
features    What Hi-PPO remembers and sees: statistics of every row's rate, features of rows, moves
filter      Links and GPUs as they will probably be, on which batch shares are balanced
forecast    Rates as they are expected to be, on the network that a fitted model foresees
gae         Generalised advantage estimation on one time scale; the upper one is semi-Markov
networks    Networks of Hi-PPO: a graph encoder, a scorer over the rows of a table, a lower policy
lower       What the lower level goes by: a filter of measurements, the last one, or the base
ppo         Clipped policy optimisation of one policy: loss and update, the same for both levels
scheduler   A trained Hi-PPO behind the protocol of all schedulers
search      A policy whose best rows are tried on imagined futures before it acts
settings    How Hi-PPO is trained: sizes, schedule, both levels
training    Training by PPO: one compiled epoch is one batch of whole episodes, the host loops
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
