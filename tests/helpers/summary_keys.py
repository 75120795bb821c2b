"""Keys of every scheduler in the JSON of an evaluation."""

SUMMARY_KEYS = {
    *("regret_pct", "regret_ci95_pct", "bound_pct", "headroom_pct", "step_s", "step_s_std"),
    *("tokens_per_s", "utilisation", "memory_utilisation", "bandwidth_utilisation"),
    *("comm_to_compute", "overlap", "wan_gb_per_step", "usd_per_mtoken", "replans"),
    *("efficiency", "efficiency_band", "effective_tokens_per_s", "usd_per_effective_mtoken"),
    *("decision_ms_p50", "decision_ms_p99", "gain_over_pct"),
}
