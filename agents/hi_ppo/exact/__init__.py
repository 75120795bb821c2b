"""Training by the exact gradient: links and local load ignore what a lone job does, so a recorded
scenario tells what every decision would have brought.

recording  A scenario recorded once: what rows bring when played, where moves land, what is seen
value      The expected progress of a policy on a recorded scenario, exact and differentiable
trainer    Gradient ascent on it, over batches of scenarios
"""

from agents.hi_ppo.exact.recording import Recording, record
from agents.hi_ppo.exact.trainer import PARTS, ExactMetrics, ExactTrainer
from agents.hi_ppo.exact.value import expected_progress

__all__ = ["PARTS", "ExactMetrics", "ExactTrainer", "Recording", "expected_progress", "record"]
