"""Launch files of a plan: configuration, one script for each domain, what is exact and what is not.

layout      a plan as launches: pipelines, stages, nodes
writing     the folder: all of it or nothing, with its README
torchtitan  torchtitan with its torchft experiment: a job for each group
megatron    Megatron-LM: one job
deepspeed   DeepSpeed: one job
maxtext     MaxText: one job
chakra      execution traces of a step for network simulators
"""

from experiments.plan.export.layout import Job, job_of
from experiments.plan.export.writing import check_folder, export_plan, exported

__all__ = ["Job", "check_folder", "export_plan", "exported", "job_of"]
