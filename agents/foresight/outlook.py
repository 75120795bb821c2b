"""What links and free GPUs will be, as views of the network: in the mean, and in sampled futures."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Key

from agents.foresight.futures import GPUS, LINKS, Filter, Prospect, sample_paths
from agents.protocol import Setup
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView

LEAST_FACTOR = 0.02  # of a link's base: below it, nothing is told apart


class Outlook(Pytree):
    """What a world's measurements have taught so far."""

    links: Filter  # [N, K * K] of the logarithm of measured over base bandwidth
    gpus: Filter  # [N, K] of the share of a domain's GPUs that are free beyond the mean

    @staticmethod
    def of(setup: Setup) -> Outlook:
        """Before anything was measured."""
        k = setup.problem.cluster.mask.shape[0]
        return Outlook(Filter.of(k * k, LINKS), Filter.of(k, GPUS))

    def measured(self, setup: Setup, view: NetworkView) -> Outlook:
        """Take in one interval's measurement."""
        links = self.links.measured(_link_state(setup, view), LINKS)
        return Outlook(links, self.gpus.measured(_gpu_state(setup, view), GPUS))

    def coming(self, setup: Setup, view: NetworkView) -> NetworkView:
        """The coming interval as far as the links go; `view` is the last measured."""
        state = self.links.expected(_real_links(setup), LINKS)[0]
        return view.replace(bandwidth_gb_per_s=_bandwidth(setup, state))

    def ahead(self, setup: Setup, view: NetworkView, after: tuple[float, ...]) -> NetworkView:
        """[A, ...] what is expected `after` so many intervals, links and GPUs; 1 is the coming one."""
        links = self.links.expected(_real_links(setup), LINKS, after)
        gpus = self.gpus.expected(setup.problem.cluster.mask, GPUS, after)
        return NetworkView(
            bandwidth_gb_per_s=_bandwidth(setup, links),
            rtt_s=jnp.broadcast_to(view.rtt_s, (len(after), *view.rtt_s.shape)),
            gpus_available=_free_gpus(setup, gpus),
        )

    def imagined(
        self, key: Key[Array, ""], setup: Setup, view: NetworkView, futures: int, horizon: int
    ) -> NetworkView:
        """Views of the coming intervals, leaves [futures, horizon, ...]."""
        link_key, gpu_key = jax.random.split(key)
        size = futures, horizon
        links = Prospect(self.links, LINKS, _real_links(setup))
        gpus = Prospect(self.gpus, GPUS, setup.problem.cluster.mask)
        return NetworkView(
            bandwidth_gb_per_s=_bandwidth(setup, sample_paths(link_key, links, *size)),
            rtt_s=jnp.broadcast_to(view.rtt_s, (*size, *view.rtt_s.shape)),
            gpus_available=_free_gpus(setup, sample_paths(gpu_key, gpus, *size)),
        )


def _real_links(setup: Setup) -> Array:
    """[K * K] bool."""
    return (setup.prior.bandwidth_gb_per_s > 0).reshape(-1)


def _link_state(setup: Setup, view: NetworkView) -> Array:
    """[K * K] log of measured over base bandwidth, 0 where there is no link."""
    base = jnp.maximum(setup.prior.bandwidth_gb_per_s, 1e-9)
    factor = jnp.log(jnp.maximum(view.bandwidth_gb_per_s / base, LEAST_FACTOR))
    return jnp.where(setup.prior.bandwidth_gb_per_s > 0, factor, 0.0).reshape(-1)


def _bandwidth(setup: Setup, state: Array) -> Array:
    """[..., K, K] [GB/s] of log factors [..., K * K]."""
    base = setup.prior.bandwidth_gb_per_s
    factor = jnp.exp(jnp.clip(state, -4.0, 2.0)).reshape(*state.shape[:-1], *base.shape)
    return jnp.broadcast_to(base, factor.shape) * factor


def _gpu_state(setup: Setup, view: NetworkView) -> Array:
    """[K] share of the domain's GPUs that are free beyond the mean."""
    total = jnp.maximum(setup.problem.cluster.gpus, 1).astype(jnp.float32)
    return (view.gpus_available - setup.prior.gpus_available).astype(jnp.float32) / total


def _free_gpus(setup: Setup, share: Array) -> Array:
    """[..., K] int32 of shares [..., K] beyond the mean."""
    total = jnp.broadcast_to(setup.problem.cluster.gpus.astype(jnp.float32), share.shape)
    prior = jnp.broadcast_to(setup.prior.gpus_available.astype(jnp.float32), share.shape)
    return jnp.round(jnp.clip(prior + share * total, 0.0, total)).astype(jnp.int32)
