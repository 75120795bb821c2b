"""Keys of every scheduler in the JSON of an evaluation."""

SUMMARY_KEYS = {
    *("regret_pct", "regret_ci95_pct", "bound_pct", "headroom_pct", "step_s", "step_s_std"),
    *("tokens_per_s", "utilisation", "memory_utilisation", "bandwidth_utilisation"),
    *("comm_to_compute", "overlap", "wan_gb_per_step", "usd_per_mtoken", "replans"),
    *("decision_ms_p50", "decision_ms_p99"),
}
