"""How WAN links move: processes, traces, processes fitted to measured paths, predictors.

checks        Does a fitted process match what it was not fitted to? Records of the process, made
fitted_links  Link-process files: settings of `jaxsim.network` fitted to measured paths, one row
fitting       Fit the link processes of `jaxsim.network` to measured series, one path at a time
noise         Random numbers that belong to (key, time, link), whatever the padded size of the
prediction    Try predictors on paths they were not fitted to
predictors    Predict the bandwidth of a link from its last measurements: B_hat(t + dt) from a
process       How WAN links move: one process whose settings cover steady, jittered, drifting
replay        From measured paths to a trace in which every link of a cluster replays one path's
series        Measured paths as series of factors: what the processes are fitted to and the
trace         Trace CSV files: how the links of a cluster move over time
"""

from jaxsim.network.checks import (
    COPIES,
    LIMITS,
    REVERSED,
    STATISTICS,
    Check,
    best_kind,
    ceiling,
    check_crossed,
    check_later,
    check_others,
    own_rows,
    pooled_autocorrelation,
    random_halves,
    replicate,
)
from jaxsim.network.fitted_links import (
    FITTED_KINDS,
    KINDS,
    FittedLink,
    LinkProcesses,
    draw_links,
    fitted_links,
    is_file_name,
    load_link_processes,
    process_of_links,
)
from jaxsim.network.fitting import PathFit, combine, fit_path
from jaxsim.network.noise import domain_uniforms, interval_uniforms, link_uniforms
from jaxsim.network.prediction import (
    REFERENCE,
    WINDOW,
    best_predictor,
    folds_of,
    held_out_errors,
    summarise_errors,
)
from jaxsim.network.process import (
    NetworkProcess,
    NetworkState,
    init_network,
    network_process,
    step_network,
)
from jaxsim.network.replay import WIDE, build_trace, read_measurements, relative_movement, summarise
from jaxsim.network.series import Series, read_series
from jaxsim.network.trace import check_span, read_network_trace

__all__ = [
    "COPIES",
    "FITTED_KINDS",
    "KINDS",
    "LIMITS",
    "REFERENCE",
    "REVERSED",
    "STATISTICS",
    "WIDE",
    "WINDOW",
    "Check",
    "FittedLink",
    "LinkProcesses",
    "NetworkProcess",
    "NetworkState",
    "PathFit",
    "Series",
    "best_kind",
    "best_predictor",
    "build_trace",
    "ceiling",
    "check_crossed",
    "check_later",
    "check_others",
    "check_span",
    "combine",
    "domain_uniforms",
    "draw_links",
    "fit_path",
    "fitted_links",
    "folds_of",
    "held_out_errors",
    "init_network",
    "interval_uniforms",
    "is_file_name",
    "link_uniforms",
    "load_link_processes",
    "network_process",
    "own_rows",
    "pooled_autocorrelation",
    "process_of_links",
    "random_halves",
    "read_measurements",
    "read_network_trace",
    "read_series",
    "relative_movement",
    "replicate",
    "step_network",
    "summarise",
    "summarise_errors",
]
