"""Layouts: which domains form which groups in which order, and who gets how many layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

Layout = tuple[tuple[int, ...], ...]  # groups of domains, in pipeline order


def enumerate_layouts(domains: tuple[int, ...], max_domains: int) -> Iterator[Layout]:
    """All ordered groups over subsets of up to `max_domains` domains.

    The gradient ring turns, so rotations of the groups are the same plan: the group with the
    smallest domain comes first. With two groups the order does not matter either.
    """
    for size in range(1, max_domains + 1):
        for subset in itertools.combinations(domains, size):
            for order in itertools.permutations(subset):
                for cuts in itertools.product((False, True), repeat=size - 1):
                    layout = _cut(order, cuts)
                    if min(layout, key=min) == layout[0]:
                        yield layout


def _cut(order: tuple[int, ...], cuts: tuple[bool, ...]) -> Layout:
    groups, current = [], [order[0]]
    for domain, cut in zip(order[1:], cuts, strict=True):
        if cut:
            groups.append(tuple(current))
            current = []
        current.append(domain)
    return (*groups, tuple(current))


def count_layouts(n_domains: int) -> int:
    """Number of layouts that `enumerate_layouts` yields over all domains: sum of C(n, m) m!
    C(m-1, g-1) / g over sizes m and numbers of groups g."""
    return sum(
        math.comb(n_domains, m) * math.factorial(m) * math.comb(m - 1, g - 1) // g
        for m in range(1, n_domains + 1)
        for g in range(1, m + 1)
    )


def turned(layout: Layout) -> Layout:
    """The same ring as `enumerate_layouts` lists it: from the group with the smallest domain on."""
    first = layout.index(min(layout, key=min))
    return layout[first:] + layout[:first]


def extensions(layout: Layout, n_domains: int) -> Iterator[Layout]:
    """Layouts with one more domain, anywhere in a group or as a group of its own, each once."""
    used = {k for group in layout for k in group}
    for k in (k for k in range(n_domains) if k not in used):
        for g, group in enumerate(layout):
            for i in range(len(group) + 1):
                yield turned((*layout[:g], (*group[:i], k, *group[i:]), *layout[g + 1 :]))
        for g in range(len(layout)):  # in a ring, behind the last is before the first
            yield turned((*layout[:g], (k,), *layout[g:]))


def split_layers(n_layers: int, stages: list[int]) -> tuple[list[int], list[int]]:
    """Contiguous min-max split of equal layers over domains with `stages` equal stages each.

    Every stage holds floor or ceil of layers / stages; what is left over goes to whole domains
    from the tail, where 1F1B holds the fewest micro-batches. Stages beyond the layers are dropped.
    """
    while sum(stages) > n_layers:
        largest = stages.index(max(stages))
        stages = [s - 1 if i == largest else s for i, s in enumerate(stages)]
    each, extra = divmod(n_layers, sum(stages))
    layers = [each * s for s in stages]
    for i in reversed(range(len(stages))):
        add = min(extra, stages[i])
        layers[i] += add
        extra -= add
    return layers, stages
