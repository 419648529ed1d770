"""How alike clouds of anchors, entailed and contradicting sentences are, against the measures one by one."""

import json

import numpy as np
import pytest
from commands import call
from model_folders import make_tokenizer, save_bert

from finetune.geometry import __main__ as geometry
from finetune.geometry import measures
from finetune.geometry.measures import compare_clouds
from finetune.geometry.options import GeometryOptions
from finetune.geometry.run import read_isomorphism
from finetune.results import read
from pretrain.common.errors import UserError


def write_sets(data, count=40):
    """Triplets in SimCSE's format, and a round of ANLI; return the folder."""
    (data / "NLI").mkdir(parents=True)
    rows = [f"a man {n} eats,a person {n} eats,nobody {n} eats" for n in range(count)]
    (data / "NLI" / "nli_triplets_from_snli.csv").write_text(
        "\n".join(["sent0,sent1,hard_neg", *rows]) + "\n"
    )
    folder = data / "ANLI" / "R1"
    folder.mkdir(parents=True)
    examples = [
        {"context": f"the cat {n}", "hypothesis": f"{kind} {n}", "label": kind}
        for n in range(count)
        for kind in "enc"
    ]
    for part in ("dev", "test"):
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    return data


@pytest.mark.full
def test_clouds_are_compared_by_the_measures():
    random = np.random.default_rng(0)
    first, second = random.normal(size=(50, 8)), 2 * random.normal(size=(50, 8)) + 1
    found = compare_clouds(first, second)
    spectra = [measures.singular_values(cloud) for cloud in (first, second)]
    assert found["svg"] == measures.singular_value_gap(*spectra)
    conditions = [measures.effective_condition_number(values) for values in spectra]
    assert found["cond_hm"] == pytest.approx(2 / (1 / conditions[0] + 1 / conditions[1]))
    assert found["gromov_hausdorff"] == measures.gromov_hausdorff(first, second)
    assert (
        compare_clouds(first, first)["gromov_hausdorff_as_coded"] == compare_clouds(first, first)["svg"] == 0
    )
    some = compare_clouds(np.repeat(first, 41, axis=0), np.repeat(second, 41, axis=0))
    assert np.isfinite(some["gromov_hausdorff_as_coded"])  # of 2,000 of the 2,050


def test_the_command_measures_both_sets_under_its_label(tmp_path):
    data = write_sets(tmp_path / "data")
    texts = [
        text
        for triplets, _ in read_isomorphism(GeometryOptions(eval_data=str(data), sentences=30)).values()
        for triplet in triplets
        for text in triplet
    ]
    model = save_bert(tmp_path / "bert", make_tokenizer(texts))
    flags = {"measure": "isomorphism", "label": "x", "pooling": "mean", "sentences": 30, "out": str(tmp_path)}
    call(geometry.geometry, str(model), eval_data=str(data), **flags)
    found = read(tmp_path / "geometry-x-mean.json")
    assert found.evaluation == "geometry-x" and (tmp_path / "geometry-x-mean").is_dir()
    assert list(found.tasks) == [
        f"isomorphism/{name} {pair}" for name in ("NLI", "ANLI") for pair in ("A-E", "A-C", "E-C")
    ]
    assert found.tasks["isomorphism/NLI A-E"].details == {"triplets": 30}
    assert any("dev and test sets" in note for note in found.notes)


def test_one_set_is_enough_and_none_is_an_error(tmp_path):
    data = write_sets(tmp_path / "data")
    (data / "NLI" / "nli_triplets_from_snli.csv").unlink()
    sets = read_isomorphism(GeometryOptions(eval_data=str(data), sentences=30))
    assert list(sets) == ["ANLI"] and len(sets["ANLI"][0]) == 30
    assert all(near.startswith("e") and far.startswith("c") for _, near, far in sets["ANLI"][0])
    for part in ("dev", "test"):
        (data / "ANLI" / "R1" / f"{part}.jsonl").unlink()
    with pytest.raises(UserError, match=r"nli_for_simcse\.csv"):
        read_isomorphism(GeometryOptions(eval_data=str(data), sentences=30))
