"""One micro-batch and one step in plain Python floats: a second derivation of the step time.

It shares no code with the simulator. Sources: Narayanan et al. 2021 (FLOPs, pipelines), Shoeybi et
al. 2019 (tensor parallelism), Korthikanti et al. 2022 (memory), Dao 2022 (fused attention),
Rajbhandari et al. 2020 (ZeRO), Patarasuk and Yuan 2009 (rings). Bytes, seconds, FLOP/s; `e` are the
calibration's parameters by name.
"""

import dataclasses
import math

from helpers.toy_world import EFFICIENCIES, GPU, JOB, cluster_spec

WIRE_S = 0.5 * cluster_spec().intra_rtt_ms * 1e-3  # one way, between nodes of a domain
NODE_BYTES_PER_S = cluster_spec().intra_bandwidth_gbps / 8 * 1e9


def both(first, second):
    """Two resources side by side, fourth-power mean: the slower one, and a little."""
    return (first**4 + second**4) ** 0.25


@dataclasses.dataclass(frozen=True)
class Layer:
    """[s] of one layer and micro-batch, as the simulator splits it."""

    forward: float
    backward: float
    tensor: float
    room: float  # of the forward pass, beside what is not attention
    room_back: float


class Hand:
    """What one job costs on the toy world's GPU under the efficiencies `e`."""

    def __init__(self, job=JOB, **changes):
        self.e = {**EFFICIENCIES, **changes}
        self.job = job
        m = job.model
        self.s, self.h, self.f, self.v = job.seq, m.hidden, m.ffn, m.vocab
        self.kv = m.hidden * m.kv_heads / m.heads
        self.a, self.gates = m.heads, m.ffn_matrices - 1
        self.bytes = 4 if job.precision == "fp32" else 2
        tensor_cores = self.e["fp32_speed"] if job.precision == "fp32" else 1.0
        self.peak = GPU["peak_tflops"] * 1e12 * tensor_cores
        self.hbm = GPU["memory_gb_per_s"] * 1e9 * self.e["memory_efficiency"]
        self.nvlink = GPU["nvlink_gb_per_s"] * 1e9 * self.e["nvlink_efficiency"]
        self.node = NODE_BYTES_PER_S * self.e["intra_efficiency"]
        self.layer_params = 2 * self.h * (self.h + self.kv) + (self.gates + 1) * self.h * self.f
        self.layer_params += 2 * self.h
        self.table_params = self.v * self.h
        self.boundary = self.bytes * self.s * self.h  # activations between layers, one sequence

    def product(self, m, n, k, eta, peak, count=1.0):
        """[s] of `count` products [m, k] x [k, n]: 2 m n k operations, m n + k (m + n) values."""
        out = count * m * n
        wave = out / (out + 128 * 128 * self.e["gemm_tail_tiles"])
        depth = k / (k + self.e["gemm_depth"])
        moved = self.bytes * (out + count * (m * k + k * n))
        arithmetic = 2 * out * k / (peak * eta * wave * depth)
        return both(arithmetic, moved / self.hbm) + self.e["kernel_s"]

    def moved(self, values):
        """[s] of a kernel that only moves values."""
        return self.bytes * values / self.hbm + self.e["kernel_s"]

    def accumulate(self, params):
        """[s] to add one micro-batch's gradients to their sum."""
        return 8 * self.e["accumulation_passes"] * params / self.hbm

    def operators(self, b, tp, cp):
        """[s] linear, attention core, softmax, element-wise; and whether softmax falls back."""
        e, tokens = self.e, b * self.s / cp
        eight_bits = e["float8_speed"] if self.job.precision == "float8" else 1.0
        linear = sum(
            self.product(tokens, n, k, e["gemm_efficiency"], self.peak * eight_bits)
            for n, k in [
                ((self.h + 2 * self.kv) / tp, self.h),
                (self.h, self.h / tp),
                (self.gates * self.f / tp, self.h),
                (self.h, self.f / tp),
            ]
        )
        heads, width = b * self.a / tp, self.h / self.a
        softmax, falls_back = 0.0, False
        if self.job.flash_attention:
            seen = 0.5 if self.job.causal_flops else 1.0
            flops = seen * 4 * self.s**2 * self.h * b / (tp * cp)
            # Half the speed at heads of flash_width and at sequences of flash_length.
            narrow = (1 + e["flash_width"] / width) * (1 + e["flash_length"] / self.s)
            if self.job.causal_flops and not self.job.balanced_ring:  # the last rank meets all
                narrow *= cp / ((cp + 1) / 2)
            core = flops * narrow / (self.peak * e["flash_efficiency"]) + e["kernel_s"]
        else:
            eta, rows = e["batched_gemm_efficiency"], self.s / cp
            core = self.product(rows, self.s, width, eta, self.peak, heads)
            core += self.product(rows, width, self.s, eta, self.peak, heads)
            falls_back = heads % 4 != 0
            passes = e["softmax_passes"] * (e["fallback_passes"] if falls_back else 1.0)
            softmax = self.moved(heads * rows * self.s * passes)
        copies = tp if self.job.sequence_parallel else 1
        # Two norms, two dropouts with residual: 2 x 2 + 2 x 3.5 values; and the FFN's inside.
        values = tokens * (11 * self.h / copies + (self.gates + 1) * self.f / tp)
        values *= 1.0 if self.job.compiled else e["eager_passes"]
        elementwise = self.moved(values) + 6 * e["kernel_s"]
        return linear, core, softmax, elementwise, falls_back

    def layer(self, b, tp=1, cp=1, recompute="none", reduce=0.0):
        """One layer: kernels, or the host that launches them; collectives wait in between."""
        e = self.e
        linear, core, softmax, elementwise, falls_back = self.operators(b, tp, cp)
        forward = linear + core + softmax + elementwise
        beside_back = 2 * linear + 1.7 * elementwise + self.accumulate(self.layer_params / tp)
        backward = beside_back + (2.5 if self.job.flash_attention else 2.0) * core + 1.5 * softmax
        slower = 1 + e["tensor_straggler"] if tp > 1 else 1.0
        wait = 0.0
        if tp > 1:  # two all-reduces in each direction
            wait = 2 * reduce * (e["async_exposed"] if self.job.async_tensor_parallel else 1.0)
        more = e["fallback_launch_s"] if falls_back else 0.0
        there = e["launch_forward_s"] + more
        back = e["launch_backward_s"] + more
        forward_s, backward_s = both(forward, there) * slower, both(backward, back) * slower
        forward_wait = both(forward + wait, there) * slower - forward_s
        backward_wait = both(backward + wait, back) * slower - backward_s
        again, again_wait = 0.0, 0.0
        if recompute == "full":
            again, again_wait = forward_s, forward_wait
        elif recompute == "selective" and self.job.flash_attention:  # every second layer
            again, again_wait = forward_s / 2, forward_wait / 2
        elif recompute == "selective":
            again = (core + softmax) * slower
        tensor = forward_wait + again_wait + backward_wait
        room = both(forward, there) - linear - elementwise
        room_back = both(backward, back) - beside_back
        return Layer(forward_s, backward_s + again, tensor, room, room_back)

    def head(self, b, tp=1, cp=1):
        """[s] of logits and loss: three products, fp32 logits through HBM, the table's gradient."""
        e, tokens, sliced = self.e, b * self.s / cp, self.v / tp
        product = self.product(tokens, sliced, self.h, e["gemm_efficiency"], self.peak)
        if tp == 1:
            product /= e["vocabulary_efficiency"]
        loss = 4 * e["head_passes"] * tokens * sliced / self.hbm
        return 3 * product + loss + self.accumulate(self.table_params / tp)

    def embedding(self, b, tp=1, cp=1):
        """[s] of the lookup, its dropout and its gradient."""
        values = 6 * b * self.s / cp * self.h
        return self.moved(values) + self.accumulate(self.table_params / tp)

    def all_reduce(self, b, tp, cp=1, rate=None, nodes=1):
        """[s] of a layer's output over a tensor-parallel ring."""
        volume = self.boundary * b / cp
        share = 2 * (tp - 1) / tp * volume / (self.nvlink if rate is None else rate)
        return self.start(tp, nodes) + share

    def start(self, ranks, nodes=1):
        """[s] before a collective moves: software per doubling of ranks, the wire per one of nodes."""
        return self.e["collective_alpha_s"] * math.log2(ranks) + WIRE_S * math.log2(nodes)

    def pace(self, nodes):
        """Factor of waiting for the slowest of `nodes` nodes."""
        return 1 + self.e["straggler"] * math.log2(max(nodes, 1))

    def stage(self, layer, layers, nodes=1.0):
        """[s] of arithmetic for one micro-batch on one stage, both directions."""
        both_ways = layer.forward + layer.backward
        return layers * self.pace(nodes) * both_ways + self.e["micro_batch_s"]

    def sync_pass(self, params, ranks, rate=None, nodes=1):
        """[s] of one reduce-scatter or all-gather of 16-bit values over the replicas."""
        if ranks == 1:
            return 0.0
        return self.sync_bytes(params, ranks, rate) + self.start(ranks, nodes)

    def sync_bytes(self, params, ranks, rate=None):
        """[s] of that without the latency of its start."""
        rate = (self.nvlink if rate is None else rate) * self.e["data_parallel_efficiency"]
        return (ranks - 1) / ranks * 2 * params / rate

    def beside(self, compute, traffic, overlap):
        """[s] that traffic of sharded weights adds: of the lesser of both a share `overlap` hides."""
        return max(compute, traffic) + (1 - overlap) * min(compute, traffic) - compute

    def optimizer(self, params, shards=1):
        """[s] of the weight update and the host's work per step."""
        return params / shards * self.e["optimizer_bytes"] / self.hbm + self.e["step_fixed_s"]

    def ring_rate(self, bandwidth, outer=False):
        """[B/s] of a WAN ring on a link of `bandwidth` [B/s]."""
        share = self.e["outer_sync_efficiency" if outer else "wan_ring_efficiency"]
        half = self.e["slow_link_gbps"] / 8 * 1e9
        return share * bandwidth / (1 + half / bandwidth)

    def stored(self, tp=1, cp=1):
        """[B] that a layer keeps of one sequence: Korthikanti's 34 s h + 5 a s^2, generalised."""
        e, copies = self.e, tp if self.job.sequence_parallel else 1
        inside = 4 * self.h + 4 * self.kv + 2 * (self.gates + 1) * self.f
        kept = e["stored_values"] * self.s * (10 * self.h / copies + inside / tp)
        if not self.job.flash_attention:
            kept += e["stored_scores"] * self.a * self.s**2 / tp
        return kept * self.bytes / 2 / cp

    def logits(self, b, tp=1, cp=1):
        """[B] of fp32 logits."""
        return self.e["stored_logits"] * 4 * self.s * self.v * b / (tp * cp)

    def state(self, params, sharded=0.0, shards=1):
        """[B] of weights, gradients and optimizer, `sharded` of 18 bytes over `shards`."""
        return params * self.e["state_bytes"] / 18 * (18 - sharded + sharded / shards)

    @property
    def fixed(self):
        """[B] of the framework."""
        return self.e["framework_gb"] * 1e9
