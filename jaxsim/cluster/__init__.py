"""Domains, GPUs and the links between them; what separates a data sheet from a measured step.

cluster     the cluster and its YAML file
gpu         data sheets of GPU types
sites       what a domain may have of its own: GPU type, network of its nodes
spot        GPUs that are cheaper and taken away at times
stack       software stacks, and which one a published run is of
efficiency  efficiency parameters: priors, beliefs, calibration files
fits        which fit serves a GPU type under a stack
band        how far a prediction may be off, inside and outside what was calibrated
records     the highest utilisation published for a GPU type
grids       clusters from measured grids of throughput, round trip and price
"""

from jaxsim.cluster.band import FEATURES, UNKNOWN, Band, Domain
from jaxsim.cluster.cluster import (
    GBIT_PER_GBYTE,
    Cluster,
    ClusterSpec,
    list_clusters,
    load_cluster,
    parse_cluster,
    repeat_regions,
)
from jaxsim.cluster.efficiency import (
    PRIORS,
    Belief,
    Calibration,
    from_free,
    independent,
    load_beliefs,
    prior_belief,
    prior_calibration,
)
from jaxsim.cluster.fits import (
    ANY,
    EfficiencySource,
    MachineFit,
    default_calibration,
    efficiency_source,
    family,
    find_fit,
    load_calibration,
    load_fits,
    load_left_out,
    machine_fit,
    shipped_belief,
    shipped_fit,
)
from jaxsim.cluster.gpu import GPU_ALIASES, GPU_PRESETS, Gpu, GpuSpec
from jaxsim.cluster.grids import cluster_file, cluster_from_grids
from jaxsim.cluster.records import above_record
from jaxsim.cluster.sites import (
    GpuType,
    Intra,
    Site,
    padded_calibration,
    parse_gpu,
    site_samples,
)
from jaxsim.cluster.spot import SpotOffer
from jaxsim.cluster.stack import (
    FITTED_AS,
    POOLED,
    STACKS,
    Stack,
    known_stack,
    micro_batches_of_row,
    stack_of_row,
)

__all__ = [
    "ANY",
    "FEATURES",
    "FITTED_AS",
    "GBIT_PER_GBYTE",
    "GPU_ALIASES",
    "GPU_PRESETS",
    "POOLED",
    "PRIORS",
    "STACKS",
    "UNKNOWN",
    "Band",
    "Belief",
    "Calibration",
    "Cluster",
    "ClusterSpec",
    "Domain",
    "EfficiencySource",
    "Gpu",
    "GpuSpec",
    "GpuType",
    "Intra",
    "MachineFit",
    "Site",
    "SpotOffer",
    "Stack",
    "above_record",
    "cluster_file",
    "cluster_from_grids",
    "default_calibration",
    "efficiency_source",
    "family",
    "find_fit",
    "from_free",
    "independent",
    "known_stack",
    "list_clusters",
    "load_beliefs",
    "load_calibration",
    "load_cluster",
    "load_fits",
    "load_left_out",
    "machine_fit",
    "micro_batches_of_row",
    "padded_calibration",
    "parse_cluster",
    "parse_gpu",
    "prior_belief",
    "prior_calibration",
    "repeat_regions",
    "shipped_belief",
    "shipped_fit",
    "site_samples",
    "stack_of_row",
]
