"""Who plays the batches of a sweep: threads of this process, or the workers of a Ray cluster.

Both hand back batches as they end, in any order. A compiled program runs outside Python's lock, so that
threads keep all cores busy and share the programs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from experiments.sweep.batches import Batch
from jaxsim.files import InputError

Columns = dict[str, Any]
TRIES = 3  # of a batch whose worker died, beside the first
WAIT_S = 0.5  # between two looks at what Ray has ended
FETCH_S = 30.0  # between two looks at its nodes, while a result is fetched


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def play_local(
    play: Callable[[Batch], Columns], batches: list[Batch], workers: int
) -> Iterator[tuple[Batch, Columns]]:
    """Play batches in `workers` threads. No more than `workers` results wait to be taken."""
    waiting = iter(batches)
    running: dict[Future, Batch] = {}
    with ThreadPoolExecutor(workers, "sweep") as pool:
        try:
            while True:
                while len(running) < workers and (batch := next(waiting, None)) is not None:
                    running[pool.submit(play, batch)] = batch
                if not running:
                    return
                # A wait without an end would hold Ctrl-C back.
                for done in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                    batch = running.pop(done)
                    yield batch, done.result()
        finally:
            for one in running:
                one.cancel()


def load_ray() -> Any:
    """The package ray. Raises InputError that says how to get it."""
    try:
        import ray
    except ImportError:
        raise InputError(
            "sweep: executor: ray is not installed: pip install 'hippo-sched[scale]'; "
            "or --executor local"
        ) from None
    return ray


@contextlib.contextmanager
def ray_cluster(address: str | None, workers: int) -> Iterator[Any]:
    """The cluster at `address`, or a local one of `workers` CPUs that ends with the block.

    Raises InputError where none answers.
    """
    ray = load_ray()
    local = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"sweep: address: no Ray cluster at {address!r}: {reason}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def play_ray(
    ray: Any, make_player: Callable[[], Any], batches: list[Batch], workers: int
) -> Iterator[tuple[Batch, Columns]]:
    """Play batches on `workers` actors, as many as the cluster has CPUs for at the most, each with a
    player of its own. A batch whose actor died is
    played again by a new one. Raises InputError where that goes wrong TRIES times more."""

    class Worker:
        def __init__(self):
            self.player = make_player()

        def columns(self, batch: Batch) -> Columns:
            return self.player.columns(batch)

    actor = ray.remote(num_cpus=1)(Worker)
    cpus = max(1, int(ray.available_resources().get("CPU", workers)))
    idle = [actor.remote() for _ in range(min(workers, len(batches), cpus))]
    left, running = list(reversed(batches)), {}
    died: dict[int, int] = {}
    while left or running:
        while left and idle:
            batch, worker = left.pop(), idle.pop()
            running[worker.columns.remote(batch)] = (batch, worker)
        done, _ = ray.wait(list(running), timeout=WAIT_S)
        if not done:
            _check_nodes(ray)
        for one in done:
            batch, worker = running.pop(one)
            try:
                columns = _fetched(ray, one)
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError):
                died[batch.number] = died.get(batch.number, 0) + 1
                if died[batch.number] > TRIES:
                    raise InputError(
                        f"sweep: batch {batch.number}: its worker died {died[batch.number]} times; "
                        "a smaller --batch takes less memory"
                    ) from None
                left.append(batch)
                idle.append(actor.remote())
                continue
            idle.append(worker)
            yield batch, columns


def _fetched(ray: Any, done: Any) -> Columns:
    """What a task returned. Ray waits for ever where the node that held it is gone, and no other is
    left: raises InputError there, and Ray's errors."""
    while True:
        try:
            return ray.get(done, timeout=FETCH_S)
        except ray.exceptions.GetTimeoutError:
            _check_nodes(ray)


def _check_nodes(ray: Any) -> None:
    """Raises InputError where no node of the cluster is left."""
    if not any(node["Alive"] for node in ray.nodes()):
        raise InputError(
            "sweep: no node of the Ray cluster is left (it may have had no time for Ray's heartbeats): "
            "go on with --resume"
        )
