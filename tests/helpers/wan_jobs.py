"""Training jobs in the small: plans in short, runs over the loopback device."""

from ddp_bench.parallel.job import parse_job
from ddp_bench.parallel.launch import run

MODEL = {"layers": 4, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 64}
BATCH = 8


def pipeline(*domains, **fields):
    """A pipeline from (domain, layers) or (domain, layers, stages)."""
    rows = [dict(zip(("domain", "layers", "pp"), d, strict=False)) for d in domains]
    return {"domains": rows, **fields}


def plan(*pipelines, **fields):
    return {"pipelines": list(pipelines), **fields}


ALONE = plan(pipeline(("a", 4), micro_batches=4, micro_batch=2))
DATA_PARALLEL = plan(
    pipeline(("a", 4), micro_batches=3, micro_batch=2),
    pipeline(("b", 4), micro_batches=1, micro_batch=2),
)
PIPELINE = plan(pipeline(("a", 1), ("b", 3), micro_batches=4, micro_batch=2))


def job(body, ranks=("a", "b"), steps=4, **fields):
    """A job on ranks given by their domains."""
    return parse_job(
        {
            "model": MODEL,
            "plan": body,
            "ranks": list(ranks),
            "domains": sorted(set(ranks)),
            "seq": 16,
            "global_batch": BATCH,
            "steps": steps,
            "timeout_s": 30.0,
            **fields,
        },
        "job",
    )


def train(folder, *arguments, **fields):
    """Run a job; its record."""
    from analysis.records import load

    return load(run(job(*arguments, **fields), str(folder)))


def losses(record):
    """Mean loss of the global batch by step."""
    from ddp_bench.parallel.summary import losses as by_step

    return by_step(record.table("steps")).to_numpy()
