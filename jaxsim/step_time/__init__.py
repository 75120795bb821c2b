"""Plan and network state -> cost of one training step."""

from jaxsim.step_time.closed_form import NetworkView, StepCost, job_step_cost
from jaxsim.step_time.event_cost import BandwidthProfile, EventBounds, event_step_cost

__all__ = [
    "BandwidthProfile",
    "EventBounds",
    "NetworkView",
    "StepCost",
    "event_step_cost",
    "job_step_cost",
]
