"""GPUs, domains and the wide-area network between them; the efficiency parameters of a GPU type.

cluster     Clusters: domains, the wide-area network between them, and the YAML file that
efficiency  Efficiency parameters: what separates a data sheet from a measured step
gpu         GPU presets: what one accelerator can do, from vendor data sheets
grids       From measured grids of throughput, round trip and price between cloud regions to a
"""

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
    EfficiencySource,
    default_calibration,
    efficiency_source,
    independent,
    load_beliefs,
    load_calibration,
    prior_calibration,
    shipped_belief,
)
from jaxsim.cluster.gpu import GPU_ALIASES, GPU_PRESETS, Gpu
from jaxsim.cluster.grids import cluster_file, cluster_from_grids

__all__ = [
    "GBIT_PER_GBYTE",
    "GPU_ALIASES",
    "GPU_PRESETS",
    "PRIORS",
    "Belief",
    "Calibration",
    "Cluster",
    "ClusterSpec",
    "EfficiencySource",
    "Gpu",
    "cluster_file",
    "cluster_from_grids",
    "default_calibration",
    "efficiency_source",
    "independent",
    "list_clusters",
    "load_beliefs",
    "load_calibration",
    "load_cluster",
    "parse_cluster",
    "prior_calibration",
    "repeat_regions",
    "shipped_belief",
]
