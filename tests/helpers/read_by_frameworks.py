"""Read launch files with a framework's own parser, in a process of its own (torch and JAX may clash).

`python read_by_frameworks.py FRAMEWORK RELEASES FOLDER ...` prints what was read as JSON. RELEASES is
JSON, package -> the release that the files are for. Exit status 3, and why on the last line, where the
framework is not installed or a package is of another release.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from importlib import metadata
from pathlib import Path
from unittest import mock


class Silent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for the modules of telemetry, which no configuration needs."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: mock.MagicMock()
        return module

    def exec_module(self, module):
        pass


def torchtitan(folder, groups):
    """Degrees, layers of stages and batches of each group, as ConfigManager reads them."""
    sys.meta_path.insert(0, Silent())
    sys.path.insert(0, folder)
    # ConfigManager would not say which package is missing.
    importlib.import_module("hippo_plan")
    from torchtitan.config import ConfigManager

    return [_group(ConfigManager, g) for g in range(1, int(groups) + 1)]


def _group(manager, g):
    read = manager().parse_args(["--module", "hippo_plan", "--config", f"group_{g}"])
    parallel = read.parallelism
    parts = parallel.module_fqns_per_model_part or []
    tolerant = getattr(read, "fault_tolerance", None)
    return {
        "pp": parallel.pipeline_parallel_degree,
        "tp": parallel.tensor_parallel_degree,
        "cp": parallel.context_parallel_degree,
        "dp": parallel.data_parallel_replicate_degree * parallel.data_parallel_shard_degree,
        "stages": [sum("layers." in m for m in part) for part in parts],
        "layers": len(read.model_spec.model.layers),
        "local_batch": read.training.local_batch_size,
        "global_batch": read.training.global_batch_size,
        "method": tolerant and tolerant.semi_sync_method,
        "replica": tolerant and [tolerant.replica_id, tolerant.group_size],
        "period": tolerant and [tolerant.sync_steps, tolerant.num_fragments],
    }


def megatron(folder):
    """Layers of every stage and what else each holds, as megatron-core's configuration reads them."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    words = Path(folder, "megatron_args.txt").read_text().split()
    said = {word: words[i + 1] for i, word in enumerate(words[:-1]) if word.startswith("--")}
    read = TransformerConfig(
        num_layers=int(said["--num-layers"]),
        hidden_size=int(said["--hidden-size"]),
        ffn_hidden_size=int(said["--ffn-hidden-size"]),
        num_attention_heads=int(said["--num-attention-heads"]),
        num_query_groups=int(said["--num-query-groups"]),
        tensor_model_parallel_size=int(said["--tensor-model-parallel-size"]),
        pipeline_model_parallel_size=int(said["--pipeline-model-parallel-size"]),
        pipeline_model_parallel_layout=said["--pipeline-model-parallel-layout"],
        sequence_parallel="--sequence-parallel" in words,
        gated_linear_unit="--swiglu" in words,
        pipeline_dtype=torch.bfloat16,
        bf16=True,
    )
    layout = read.pipeline_model_parallel_layout.layout
    return [[kind.name for part in stage for kind in part] for stage in layout]


def deepspeed(folder, ranks):
    """Batches and stage of ZeRO, as DeepSpeedConfig reads them."""
    from deepspeed.runtime import config

    body = json.loads(Path(folder, "ds_config.json").read_text())
    mesh = mock.patch.object(config.dist, "get_world_size", return_value=int(ranks))
    with mesh, mock.patch.object(config.dist, "get_rank", return_value=0):
        read = config.DeepSpeedConfig(body)
    return {
        "batch": read.train_batch_size,
        "accumulated": read.gradient_accumulation_steps,
        "zero": read.zero_config.stage,
    }


def maxtext(folder):
    """Keys that MaxText's base.yml does not have."""
    import yaml

    (place,) = importlib.util.find_spec("maxtext").submodule_search_locations
    known = set(yaml.safe_load(Path(place, "configs", "base.yml").read_text()))
    return sorted(set(yaml.safe_load(Path(folder, "maxtext.yml").read_text())) - known)


def other_release(releases):
    """What is here instead of the releases that are wanted, "" if nothing."""
    for package, wanted in releases.items():
        try:
            here = metadata.version(package)
        except metadata.PackageNotFoundError:  # under another name: nothing to compare
            continue
        if here.partition("+")[0] != wanted:
            return f"{package} {here} is here, the export is for {wanted}"
    return ""


def main(framework, releases, *arguments):
    if importlib.util.find_spec(framework) is None:
        print(f"{framework} is not installed")
        return 3
    if why := other_release(json.loads(releases)):
        print(why)
        return 3
    try:
        read = globals()[framework](*arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", framework, "hippo_plan"):  # ours, or a name that is gone
            raise
        print(f"{package} is not installed, which {framework} needs")
        return 3
    print("\n" + json.dumps(read))  # the last line: frameworks print, too
    return 0


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: names of helpers are not names of modules
    sys.exit(main(*sys.argv[1:]))
