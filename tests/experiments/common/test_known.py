"""Names listed for help and early refusals are those that the packages define."""

import yaml

from agents import registry
from experiments.common import known
from experiments.evaluate.suites import SHIPPED
from jaxsim.cluster import list_clusters
from jaxsim.cluster.gpu import GPU_PRESETS
from jaxsim.env.sharing import SHARING
from jaxsim.load.jobs_file import MOST_JOBS
from jaxsim.network.fitted_links import FITTED_KINDS, KINDS, is_file_name
from jaxsim.planning.space import ALLOWED
from jaxsim.scenario.settings import FILE_NAME, JITTERS
from jaxsim.workload.workload import MODEL_PRESETS


def test_the_names_are_those_of_the_registries():
    assert set(known.EVERYBODY) == set(registry.names())
    assert registry.names(learned=True) == (known.LEARNED,)
    assert registry.names(low_communication=True) == known.LOW_COMMUNICATION
    assert registry.names(oracle=True) == known.ORACLES
    assert tuple(MODEL_PRESETS) == known.MODELS and tuple(GPU_PRESETS) == known.GPUS
    assert tuple(yaml.safe_load(SHIPPED.read_text())["suites"]) == known.SUITES
    assert list_clusters() == known.CLUSTERS
    assert ALLOWED == known.ALLOWED
    assert known.SHARING == SHARING and known.LINK_KINDS == KINDS and known.MOST_JOBS == MOST_JOBS
    assert ("uniform", "ou", *FITTED_KINDS, "none") == JITTERS


def test_a_file_of_link_processes_is_told_from_a_misspelt_kind():
    for name in ("mine.yaml", "mine.yml", "a/b.yaml:heavy", "a.yaml:ou"):
        assert FILE_NAME.search(name) and is_file_name(name)
    for name in ("heavi", "yaml", "mine.csv", ".yaml.gz"):
        assert not FILE_NAME.search(name) and not is_file_name(name)


def test_a_name_that_is_close_or_the_beginning_of_what_was_typed_is_suggested():
    assert known.did_you_mean("seqq", ["seq", "seeds"]) == "; did you mean seq?"
    assert known.did_you_mean("sequence", ["seeds", "seq"]) == "; did you mean seq?"
    assert known.did_you_mean("sequence", ["s", "model"]) == ""
