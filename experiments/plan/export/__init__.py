"""Launch files of a plan: configuration, one script for each domain, what is exact and what is not.

layout      a plan as launches: pipelines, stages, nodes
writing     the folder: all of it or nothing, with its README
torchtitan  torchtitan with its torchft experiment: a job for each group
megatron    Megatron-LM: one job
deepspeed   DeepSpeed: one job
maxtext     MaxText: one job
operations  a step as what every rank computes, sends and receives
passes      how long every domain computes on a micro-batch
chakra      execution traces of a step for network simulators
ns3         an ns-3 program of a step's traffic
"""

from experiments.plan.export.layout import Job, job_of
from experiments.plan.export.passes import passes_of
from experiments.plan.export.writing import check_folder, export_plan, exported

__all__ = ["Job", "check_folder", "export_plan", "exported", "job_of", "passes_of"]
