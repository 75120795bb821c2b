"""Plan and network state -> cost of one training step."""

from jaxsim.step_time.closed_form import NetworkView, StepCost, job_step_cost, step_cost

__all__ = ["NetworkView", "StepCost", "job_step_cost", "step_cost"]
