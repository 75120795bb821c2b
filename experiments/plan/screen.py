"""The answer as text: one screen, the plans first."""

from __future__ import annotations

from typing import Any

from experiments.plan.remarks import SETTINGS, remarks, weighted
from experiments.runs import how_long

LABEL, COLUMN = 22, 44
LIMITS = {"misses_deadline": "misses the deadline", "over_budget": "is over the budget"}
PARTS = {
    "compute": "arithmetic",
    "tensor_parallel": "tensor parallelism",
    "context_parallel": "context parallelism",
    "bubble": "pipeline bubble",
    "exposed_wan": "activations over the WAN",
    "sync": "sync of gradients or outer deltas",
    "optimizer": "optimizer",
}


def screen(result: dict[str, Any]) -> str:
    """Everything, the short answer first."""
    told = result["alternatives"]
    lines = [_headline(result["asked"]), ""]
    if all(one is None for one in told.values()):
        return "\n".join(
            [*lines, "no plan can run: the model does not fit, or no GPU is there", ""]
        )
    lines += _table(result)
    lines += remarks(result)
    best = told[result["allow"]]
    if best is not None:
        lines += ["", *_plan_lines(result["allow"], best)]
        lines += _runners_up(result)
        lines += _changes(result)
    lines += _front(result)
    lines += _what_if(result)
    if result.get("export"):
        made = result["export"]
        lines += [
            "",
            f"launch files for {made['format']} in {made['folder']}: read README.md there",
        ]
    lines += [f"picture: {name} (in the run folder)" for name in result.get("figures", ())]
    return "\n".join(lines)


def _headline(asked: dict[str, Any]) -> str:
    mixed = len(set(asked["gpu_of"].values())) > 1
    types = {name: f" {gpu}" if mixed else "" for name, gpu in asked["gpu_of"].items()}
    sites = ", ".join(f"{name} {n}{types[name]}" for name, n in asked["domains"].items())
    if len(asked["domains"]) > 4:
        sites = f"{len(asked['domains'])} domains, {sum(asked['domains'].values())} GPUs"
    whose = "" if mixed and len(asked["domains"]) <= 4 else f"{asked['gpu']}: "
    return (
        f"{asked['model']} ({asked['gparams']:.1f}e9 parameters), {asked['global_batch']:,} sequences "
        f"of {asked['seq']:,} tokens a step, on {asked['cluster']} ({whose}{sites}; stack: "
        f"{asked['stack']})"
    )


def _table(result: dict[str, Any]) -> list[str]:
    columns = {name: one for name, one in result["alternatives"].items()}
    asked = result["asked"]
    rows: list[tuple[str, Any]] = [
        ("", lambda n, one: SETTINGS[n]),
        ("where", lambda n, one: _short(one["plan"]["label"])),
        ("groups talk", lambda n, one: _talks(one["talks"], inside=False)),
        ("inside groups", lambda n, one: _talks(one["talks"], inside=True)),
        ("step [s]", lambda n, one: _band(one["step_s"], one["step_s_band"], "{:,.2f}")),
        ("tokens/s", lambda n, one: f"{one['tokens_per_s']:,.0f}"),
        ("a token is worth", lambda n, one: _worth(one)),
        ("effective tokens/s", lambda n, one: _effective(one)),
        ("USD per hour", lambda n, one: f"{one['usd_per_hour']:,.2f}"),
        ("USD per M effective", lambda n, one: f"{one['usd_per_effective_mtoken']:,.3f}"),
    ]
    if asked["tokens"] is not None:
        rows += [
            (
                f"days for {asked['tokens'] / 1e9:g}e9",
                lambda n, o: _band(o["days"], o["days_band"], "{:,.1f}"),
            ),
            (
                f"USD for {asked['tokens'] / 1e9:g}e9",
                lambda n, o: _band(o["usd"], o["usd_band"], "{:,.0f}"),
            ),
        ]
    if any(one and one["spot"] for one in columns.values()):
        rows += [
            ("on spot, USD per M", lambda n, one: _spot(one)),
            ("", lambda n, one: _taken(one)),
        ]
    rows += [
        ("fullest GPU [GB]", lambda n, one: _memory(one)),
        ("WAN GB per step", lambda n, one: f"{one['wan_gb_per_step']:,.2f}"),
        ("idle GPUs", lambda n, one: _idle(one, asked["bill"])),
        ("bound by", lambda n, one: _bound(one["bound_by"])),
        ("search", lambda n, one: _search(n, result)),
    ]
    lines = []
    for label, cell in rows:
        cells = [
            cell(n, one) if one else "none can run" if not label else ""
            for n, one in columns.items()
        ]
        lines.append(f"{label:<{LABEL}}" + "".join(f"{text:<{COLUMN}}" for text in cells).rstrip())
    return lines


def _short(label: str, most: int = COLUMN - 2) -> str:
    """A plan's domains; of a long list how many groups it is."""
    if len(label) <= most:
        return label
    groups = label.split(" | ")
    domains = sum(len(group.split(">")) for group in groups)
    return f"{domains} domains in {len(groups)} group{'s' if len(groups) > 1 else ''}"


def _talks(text: str, inside: bool) -> str:
    """The part of it about groups, or about what a pipeline sends."""
    between, activations, rest = text.partition("activations")
    return (
        (activations + rest or "one domain each") if inside else between.rstrip(", ") or "one group"
    )


def _band(value: float, band: list[float], form: str) -> str:
    return f"{form.format(value)} ({form.format(band[0])} to {form.format(band[1])})"


def _worth(one: dict[str, Any]) -> str:
    low, high = one["efficiency_band"]
    if low == high == 1.0:
        return "1"
    star = " *" if one["extrapolated"] else ""
    return f"{one['efficiency']:.2f} ({low:.2f} to {high:.2f}){star}"


def _effective(one: dict[str, Any]) -> str:
    low, high = one["effective_tokens_per_s_band"]
    return f"{one['effective_tokens_per_s']:,.0f} ({low:,.0f} to {high:,.0f})"


def _memory(one: dict[str, Any]) -> str:
    """The fullest GPU: of the least room, where domains have GPUs of different types."""
    most, held = one["memory_gb_max_hi"], one["memory_gb_held"]
    return f"{one['memory_gb_max']:.0f} (up to {most:.0f}) of {held:.0f}"


def _spot(one: dict[str, Any]) -> str:
    """Price on spot GPUs, beside the list price's."""
    spot = one["spot"]
    if spot is None:
        return "no spot GPUs there"
    side = "less" if spot["saves_pct"] >= 0 else "more"
    return f"{spot['usd_per_effective_mtoken']:,.3f}, {abs(spot['saves_pct']):.0f} % {side}"


def _taken(one: dict[str, Any]) -> str:
    """How often they are taken away, what that costs, and how often would be too often."""
    spot = one["spot"]
    if spot is None:
        return ""
    text = f"taken {spot['reclaims_per_day']:.3g} times a day, {spot['time_lost_pct']:.1f} % lost"
    return text if spot["days"] is None else f"{text}, {spot['days']:,.1f} days"


def _idle(one: dict[str, Any], bill: str) -> str:
    if not one["idle_gpus"]:
        return "none"
    paid = "paid above" if bill == "all" else "not in the bill"
    return f"{one['idle_gpus']}, {one['idle_usd_per_hour']:,.2f} USD/h {paid}"


def _bound(bound: dict[str, Any]) -> str:
    text = f"{PARTS[bound['part']]} {100 * bound['share']:.0f} %"
    return f"{text}, {_where_bound(bound)}"


def _where_bound(bound: dict[str, Any]) -> str:
    if bound["part"] in ("sync", "exposed_wan") and bound["link"]:
        return f"{bound['link']['src']}>{bound['link']['dst']}"
    return f"{bound['stage']['domain']}"


def _search(name: str, result: dict[str, Any]) -> str:
    how, gap = result["search_by_setting"][name], result["gap_pct_by_setting"][name]
    if how == "exact":
        return "exact"
    whose = "" if how == "beam" else f"{how}; "
    if gap is None:
        return whose + "best found (a limit is missed, or cost alone counts)"
    if result["gap_of"] == "worth":
        return f"{whose}none is worth over {gap:.1f} % more"
    return f"{whose}none is over {gap:.1f} % faster"


def _plan_lines(name: str, one: dict[str, Any]) -> list[str]:
    """The plan, pipeline by pipeline, and what its links carry."""
    lines = [f"The {SETTINGS[name]}:"]
    for number, group in enumerate(one["plan"]["groups"], start=1):
        stages = " > ".join(
            f"{d['domain']} ({d['layers']} layers, tp {d['tp']}, pp {d['pp']}{_unusual(d)})"
            for d in group["domains"]
        )
        lines.append(
            f"  {number}. {stages}; dp {group['dp']}, {group['micro_batches']} micro-batches of "
            f"{group['micro_batch']}, recompute {group['recompute']}, {group['schedule']}"
        )
    links = sorted(one["wan"], key=lambda link: -link["busy"])
    for link in links[:8]:
        lines.append(
            f"     {link['src']}>{link['dst']}: {link['gb_per_step']:.3f} GB a step, busy "
            f"{100 * link['busy']:.0f} % at {link['gbps']:.1f} Gbit/s ({link['kind']})"
        )
    if len(links) > 8:
        lines.append(f"     and {len(links) - 8} links that are less busy")
    return lines


def _unusual(domain: dict[str, Any]) -> str:
    """What a domain does otherwise than most: sequences in parts, other stages of ZeRO than 1."""
    words = (("cp", "cp"), ("zero_stage", "ZeRO"))
    return "".join(f", {word} {domain[key]}" for key, word in words if key in domain)


def _runners_up(result: dict[str, Any]) -> list[str]:
    if not result["runners_up"]:
        return []
    best = result["alternatives"][result["allow"]]
    lines = [
        "",
        f"Runners-up to {_short(best['plan']['label'])} ({best['talks']}) among {result['pool']} "
        f"plans{_that_keep(result)}, speed and tokens at the lower end of their bands; the probability "
        f"of being fastest is {_percent(result['probability_best'])} for it:",
    ]
    for one in result["runners_up"]:
        wins = "; ".join(_wins(w, one["plan"]) for w in one["wins_if"])
        wins = f"the best of all if {wins}" if wins else "never the best in what was tried"
        lines.append(
            f"  {one['plan']} ({one['talks']}): {one['behind_pct']:.1f} % behind, fastest with "
            f"{_percent(one['probability_best'])}, {one['usd_per_effective_mtoken_hi']:.3f} USD per M; "
            f"{wins}"
        )
    return lines


def _that_keep(result: dict[str, Any]) -> str:
    return "" if result["ranked_by"] == "speed" else " that keep the limits"


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _wins(change: dict[str, Any], mine: str) -> str:
    """A change under which the runner-up at `mine` wins, and whom it is ahead of then."""
    over = change["over"]
    # In the same place it is how they talk that tells them apart.
    ahead = f"ahead of {over['talks'] if over['plan'] == mine else _short(over['plan'])}"
    if "token_worth" in change:
        low, centre, high = change["now"]
        return (
            f"a token of local SGD is worth {change['side']} {change['token_worth']:.2f} "
            f"(now {low:.2f}, {centre:.2f}, {high:.2f}), {ahead}"
        )
    which = "all links" if change["links"] == "all" else change["links"]
    return f"{which} at {_times(change['factor'])}, {ahead}"


def _times(factor: float) -> str:
    return f"{factor:.2g} times"


def _changes(result: dict[str, Any]) -> list[str]:
    if len(result["asked"]["domains"]) == 1 or not result["pool"]:
        return []
    if not result["changes"]:
        stays = "The plan stays the best at all links and worths of a token that were tried."
        return [] if result["ranked_by"] is None else ["", stays]
    lines = ["", "The plan changes where"]
    for one in result["changes"]:
        which = "all links are" if one["links"] == "all" else f"{one['links']} alone is"
        compare = "below" if one["side"] == "slower" else "above"
        lines.append(
            f"  {which} {compare} {_times(one['factor'])}: {one['plan']} ({one['talks']})"
            f"{_switch(one['switch'])}"
        )
    return lines


def _switch(switch: dict[str, Any] | None) -> str:
    if switch is None:
        return ""
    text = f"; the switch takes {_duration(switch['s'])}, {switch['gb']:,.0f} GB"
    if switch["owed_gb"] > 0:
        text += f" ({switch['owed_gb']:,.0f} of it a last outer sync)"
    text += f", {switch['usd']:,.2f} USD"
    if switch["pays_back_s"] is not None:
        text += f", paid back after {_duration(switch['pays_back_s'])}"
    return text


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"


def _front(result: dict[str, Any]) -> list[str]:
    if not result["pareto"]:
        return []
    lines = [
        "",
        "Speed against price (no plan of the pool is better in both), both at the lower end:",
    ]
    lines.append(f"  {'effective tokens/s':>20}{'USD per M':>12}{'USD/h':>10}{'GPUs':>6}  plan")
    for one in result["pareto"]:
        lines.append(
            f"  {one['effective_tokens_per_s_lo']:>20,.0f}{one['usd_per_effective_mtoken_hi']:>12.3f}"
            f"{one['usd_per_hour']:>10,.2f}{one['gpus']:>6}  {_short(one['plan'], 50)}, {one['talks']}"
        )
    return lines


def _what_if(result: dict[str, Any]) -> list[str]:
    told = result["what_if"]
    if told is None:
        return []
    lines = ["", f"What if {told['changes']}:"]
    kept, best = told["kept"], told["best"]
    if kept is None:
        lines.append("  the plan above can no longer run")
    else:
        lines.append(
            f"  the plan above: step {kept['step_s']:,.2f} s, {kept['effective_tokens_per_s']:,.0f} "
            f"effective tokens/s{_totals(kept)}"
        )
    if best is None:
        return [*lines, "  no plan can run"]
    broken = [word for key, word in LIMITS.items() if told["kept_breaks"].get(key)]
    if told["keep"]:
        better = "worth more" if weighted(result["asked"]["weights"]) else "faster"
        lines += [f"  it {' and '.join(broken)}, and no plan found does better"] if broken else []
        return [*lines, f"  keep it: no plan is {better}"]
    lines += [f"  it {' and '.join(broken)} then"] if broken else []
    same = "the same domains" if told["same_place"] else best["plan"]["label"]
    gain = told["gain_pct"]
    side = "faster" if gain is None or gain >= 0 else "slower"
    faster = "" if gain is None else f", {abs(gain):,.1f} % {side}"
    lines.append(
        f"  the best plan then: {same} ({told['talks']}), step {best['step_s']:,.2f} s, "
        f"{best['effective_tokens_per_s']:,.0f} effective tokens/s{faster}{_totals(best)}"
        f"{_switch(told['switch'])}"
    )
    return lines


def _totals(one: dict[str, Any]) -> str:
    """Days and USD, where tokens were asked for."""
    return "" if one["days"] is None else f", {one['days']:,.1f} days, {one['usd']:,.0f} USD"


def dry_text(told: dict[str, Any]) -> str:
    """What a dry run says."""
    return (
        f"{told['cluster']}: {told['domains']} domains, {told['gpus']} GPUs; {told['model']}, "
        f"{told['gparams']:.1f}e9 parameters\n"
        f"to search: {told['groups']:,} groups, {told['ways_to_talk']} ways to talk; {told['space']}\n"
        f"{how_long(told)}\n"
        "the files are good; nothing was searched and nothing written"
    )
