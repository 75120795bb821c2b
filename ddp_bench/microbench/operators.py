"""Operators of training: matrix products, convolutions, attention, optimizer steps, copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ddp_bench.toolbox import SHAPES, Llama, Repeats, Timed, interleave

SHORTEST_S = 1e-2  # what is shorter is done several times under one stopwatch
GEMM = ((128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (32, 1024, 1024))
CONVOLUTIONS = ((4, 16, 56, 3), (4, 64, 28, 3), (4, 128, 14, 1))  # batch, channels, side, kernel
ATTENTION = ((2, 4, 128, 32), (2, 4, 256, 64), (1, 8, 512, 64))  # batch, heads, tokens, channels
BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
VARIANTS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@dataclass(frozen=True)
class Operator:
    """One operator of one size.

    Attributes:
        kind: gemm, convolution, attention, optimizer or copy.
        name: of the size and the variant.
        flop: floating-point operations of one call; 0: it only moves bytes.
        bytes: least that it moves [B].
        call: does it once.
    """

    kind: str
    name: str
    flop: float
    bytes: float
    call: Callable[[], object]


def gemms(device: torch.device) -> Iterator[Operator]:
    """[m, k] times [k, n] in float32 and bfloat16.

    CPUs without bfloat16 units are a hundred times slower in it, so that they get small sizes only.
    """
    for dtype in (torch.float32, torch.bfloat16):
        is_small = dtype == torch.bfloat16 and device.type == "cpu"
        for m, n, k in GEMM[:1] if is_small else GEMM:
            a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
            a, b = a.to(dtype), b.to(dtype)
            moved = (m * k + k * n + m * n) * a.element_size()
            name = f"{m}x{n}x{k} {str(dtype).removeprefix('torch.')}"
            yield Operator("gemm", name, 2.0 * m * n * k, moved, lambda a=a, b=b: a @ b)


def convolutions(device: torch.device) -> Iterator[Operator]:
    """As many channels out as in, side kept."""
    for batch, channels, side, kernel in CONVOLUTIONS:
        x = torch.randn(batch, channels, side, side, device=device)
        w = torch.randn(channels, channels, kernel, kernel, device=device)
        flop = 2.0 * x.numel() * channels * kernel**2
        moved = 4.0 * (2 * x.numel() + w.numel())
        call = lambda x=x, w=w: functional.conv2d(x, w, padding="same")  # noqa: E731
        yield Operator(
            "convolution", f"{batch}x{channels}x{side}x{side} k{kernel}", flop, moved, call
        )


def _eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention as three operators, all scores in memory."""
    length = query.shape[-2]
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value


def _fused(backend: SDPBackend) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    return attend


def attentions(device: torch.device) -> Iterator[Operator]:
    """Causal attention, forward and with backward, in every variant that runs here."""
    variants = {"eager": _eager} | {name: _fused(b) for name, b in BACKENDS.items()}
    for batch, heads, length, channels in ATTENTION:
        size = (batch, heads, length, channels)
        given = [torch.randn(size, device=device, requires_grad=True) for _ in range(3)]
        flop = 2.0 * batch * heads * length**2 * channels  # half of the scores are masked
        moved = 16.0 * batch * heads * length * channels
        for name, attend in variants.items():
            if not _runs(attend, given):
                continue
            label = f"{'x'.join(map(str, size))} {name}"
            forward = lambda f=attend, g=given: f(*(x.detach() for x in g))  # noqa: E731
            yield Operator("attention", f"{label} forward", flop, moved, forward)
            # Backward has two products for each of forward's, and one more that recomputes scores.
            train = lambda f=attend, g=given: f(*g).sum().backward()  # noqa: E731
            yield Operator("attention", f"{label} forward+backward", 3.5 * flop, 3 * moved, train)


def _runs(attend: Callable[..., Tensor], given: list[Tensor]) -> bool:
    try:
        attend(*given).sum().backward()
    except RuntimeError:  # no such kernel for this device
        return False
    return True


def optimizers(device: torch.device) -> Iterator[Operator]:
    """A step of every optimizer and implementation over the weights of a small Llama."""
    for name, kind in OPTIMIZERS.items():
        for variant, options in VARIANTS.items():
            with torch.device(device):
                model = Llama(SHAPES["small"])
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 1e-3)
            optimizer = kind(model.parameters(), lr=1e-4, **options)
            states = 0 if name == "sgd" else 2
            numbers = sum(parameter.numel() for parameter in model.parameters())
            # Reads weight, gradient and state, writes weight and state.
            moved = 4.0 * numbers * (3 + 2 * states)
            yield Operator("optimizer", f"{name} {variant}", 0.0, moved, optimizer.step)


def copies(device: torch.device) -> Iterator[Operator]:
    """Memory to memory: read once, written once."""
    for mib in (1, 16, 64):
        source = torch.zeros(mib << 18, device=device)
        target = torch.empty_like(source)
        call = lambda t=target, s=source: t.copy_(s)  # noqa: E731
        yield Operator("copy", f"{mib} MiB", 0.0, 2.0 * (mib << 20), call)


KINDS: dict[str, Callable[[torch.device], Iterator[Operator]]] = {
    "gemm": gemms,
    "convolution": convolutions,
    "attention": attentions,
    "optimizer": optimizers,
    "copy": copies,
}


def measure_operators(
    kinds: list[str], repeats: Repeats, device: torch.device
) -> list[tuple[Operator, Timed]]:
    """Every operator of these kinds in interleaved rounds; the short ones several times at once.

    Raises:
        KeyError: for a kind that is not known.
    """
    operators = [operator for kind in kinds for operator in KINDS[kind](device)]
    works = {f"{o.kind} {o.name}": o.call for o in operators}
    timed = interleave(works, replace(repeats, shortest_s=SHORTEST_S), device)
    return [(o, timed[f"{o.kind} {o.name}"]) for o in operators]
