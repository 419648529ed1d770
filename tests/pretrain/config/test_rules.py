"""What contradicts what in a configuration, at its edge: the last that is taken, the first refused."""

import numpy as np
import pytest

from pretrain.common.errors import UserError
from pretrain.config.data import DataConfig, LoadingConfig, Source, _by_commas, data_config
from pretrain.config.objectives import ObjectiveConfig, readers, unused
from pretrain.config.recipe import validate_config
from pretrain.config.run import BatchSizes, Config, FaultsConfig, TrainConfig
from pretrain.config.terms import AdversarialReading, VadvcseConfig

WSD = {"train.schedule": "wsd", "train.steps": 100}
SIMCSE = {"objective.name": "simcse"}
PROMPTED = {"data.prompts_pooled": False, "data.prompts": {"anchor": "q: "}}
TAKEN = [
    {"train.steps": 2, "train.warmup_steps": 2},
    {"train.steps": 3, "train.warmup_steps": 2},
    {"train.steps": 3, "train.warmup_steps": 3, "train.schedule": "constant"},
    WSD | {"train.warmup_steps": 90},
    WSD | {"train.warmup_steps": 50, "train.decay_steps": 50},
    {"train.steps": 1000, "train.faults.jump": ["900-999"]},
    {"train.faults.jump": ["8-8"]},
    {"train.optimizer": "lamb", "train.zero": 0},
    {"train.optimizer": "adamw", "train.zero": 3, "train.optimizer_code": "apex"},
    {"train.optimizer": "lamb", "train.zero": 0, "train.optimizer_code": "apex"},
    {"train.betas": [0.0, 0.999]},
    {"train.micro_batch_tokens": 16},
    {"train.batch_start": 192, "train.batch_warmup_steps": 5},
    {"train.patience": 1, "evaluate.every": 1},
    {"checkpoint.keep_every": 1000},
    {"checkpoint.every": 0},
    {"model.heads": 3, "model.init": "bert-base-uncased"},
    {"objective.mlm.mask": 0.6, "objective.mlm.random": 0.4},
    {"objective.start_step": 1},
    {"objective.mlm.weight": 0, "objective.start_step": 0},
    {"objective.mlm.copies": 0},
    {"objective.matryoshka": [1, 2]},
    {"objective.mask_duplicates": False, "objective.name": "simcse"},
    {"objective.scope": "local", "objective.name": "distill", "objective.distill.model": "a"},
    {"objective.scope": "local", "objective.name": "esimcse", "objective.esimcse.queue": 0},
    {"objective.false_negatives.guide": "self", "objective.name": "scored+simcse"},
    {"objective.keep_vectors": "float16", "objective.name": "distill", "objective.distill.model": "a"},
    {"objective.name": "simcse", "objective.simcse.keep_head": True},
    {"objective.name": "simcse", "objective.simcse.in_batch": False, "objective.simcse.hard_negatives": 2},
    {"objective.name": "simcse", "objective.simcse.form": "2n-2", "objective.simcse.positives": 1},
    {"objective.name": "retain+distill", "model.init": "a", "objective.distill.model": "a"},
    {"data.prompts_pooled": False, "data.prompts": {"anchor": "q: "}, "model.pooling": "mean"},
    {"data.sets": ["a@2", "b@1"]},
    {"data.sets": ["a", "b"], "data.damaged": "skip"},
    {"data.no_duplicates": True},
]
REFUSED = [
    ({"train.steps": 3, "train.warmup_steps": 3}, "leaves nothing of train.steps=3"),
    (WSD | {"train.warmup_steps": 91}, "train.warmup_steps=91 and train.decay_steps 10 are more"),
    (WSD | {"train.warmup_steps": 50, "train.decay_steps": 51}, "are more than train.steps=100"),
    ({"train.decay_steps": 5, "train.schedule": "cosine"}, "changes nothing without train.schedule wsd"),
    ({"train.steps": 1000, "train.faults.jump": ["900-1000"]}, "leaves out the last step"),
    ({"train.faults.jump": ["9-8"]}, "9-8 ends before it begins"),
    ({"train.faults.jump": ["0-8"]}, "train.faults.jump.0"),
    ({"train.optimizer": "muon", "train.zero": 1}, "needs train.zero=0"),
    ({"train.optimizer": "muon", "train.zero": 0, "train.optimizer_code": "apex"}, "muon is torch's"),
    ({"train.betas": [0.9, 1.0]}, "each must lie in"),
    ({"train.betas": [-0.1, 0.9]}, "each must lie in"),
    ({"train.micro_batch_tokens": 15}, "an integer from 16 on"),
    ({"train.batch_start": 16}, "changes nothing without train.batch_warmup_steps"),
    ({"train.batch_start": 208, "train.batch_warmup_steps": 5}, "at most 192"),
    ({"train.batch_start": 17, "train.batch_warmup_steps": 5}, "a multiple of data.lanes=16"),
    ({"train.patience": 1, "evaluate.every": 0}, "counts evaluations"),
    ({"train.batch_warmup_steps": 5, "data.sets": ["a", "b"]}, "all batches have one size"),
    ({"train.global_batch": 200}, "not a multiple of data.lanes=16"),
    ({"checkpoint.keep_every": 750}, "must be a multiple of checkpoint.every"),
    ({"checkpoint.keep_every": 5, "checkpoint.every": 0}, "must be a multiple of checkpoint.every"),
    ({"model.heads": 3}, "is not a multiple of model.heads=3"),
    ({"objective.mlm.mask": 0.7, "objective.mlm.random": 0.4}, "exceed 1 together"),
    ({"objective.mlm.later_rates": {0: 0.2}}, "later_rates"),
    ({"objective.mlm.later_rates": {5: 1.0}}, "later_rates"),
    ({"objective.mlm.weight": 0, "objective.start_step": 1}, "nothing is learned before step 1"),
    ({"objective.name": "mlm", "objective.mlm.copies": 0}, "objective mlm needs"),
    ({"objective.name": "mlm", "objective.mlm.weight": 0}, "objective mlm needs"),
    ({"objective.mlm.weight": 0, "objective.contrastive.weight": 0}, "every loss is switched off"),
    ({"objective.matryoshka": [0, 2]}, "give different widths of 1 or more"),
    ({"objective.matryoshka": [2, 2]}, "give different widths of 1 or more"),
    ({"objective.name": "clear+clear"}, "names an objective twice"),
    ({"objective.name": "clera"}, "did you mean 'clear'"),
    (
        {"objective.mask_duplicates": False, "objective.name": "simcse", "objective.simcse.positives": 2},
        "would contrast a record's positives",
    ),
    (
        {"objective.mask_duplicates": False, "objective.name": "simcse", "objective.simcse.positives": True},
        "would contrast a record's positives",
    ),
    ({"objective.scope": "local", "objective.name": "esimcse"}, "queue holds vectors of all ranks"),
    ({"objective.scope": "local", "objective.name": "scored"}, "compares pairs of all ranks"),
    (
        {"objective.scope": "local", "objective.name": "distill", "objective.distill.loss": "kl"},
        "loss kl is over texts of all ranks",
    ),
    ({"objective.false_negatives.guide": "self", "objective.name": "scored+mlm"}, "has no negatives"),
    ({"objective.false_negatives.guide": "self", "objective.name": "retain"}, "has no negatives"),
    ({"objective.keep_vectors": "float16"}, "no frozen encoder is named"),
    (SIMCSE | {"objective.simcse.keep_head": True, "objective.simcse.head": "none"}, "needs head mlp"),
    ({"objective.name": "simcse", "objective.simcse.in_batch": False}, "leaves no negatives"),
    (SIMCSE | {"objective.simcse.form": "2n-2", "objective.simcse.positives": 2}, "positives needs"),
    (
        SIMCSE | {"objective.simcse.form": "symmetric", "objective.simcse.hard_negatives": 1},
        "hard_negatives needs",
    ),
    (
        {"objective.name": "simcse", "objective.simcse.keep_head": True, "model.pooling": "words"},
        "model.pooling=words is used as a table",
    ),
    (
        {"objective.name": "retain+distill", "model.init": "b", "objective.distill.model": "a"},
        "objective.retain.model=b is not objective.distill.model=a, and one frozen encoder",
    ),
    (PROMPTED, "changes nothing without"),
    (PROMPTED | {"data.prompts": {"anchor": ""}, "model.pooling": "mean"}, "changes nothing"),
    *(
        (PROMPTED | more, "exports have no other form")
        for more in ({"model.pooling": "words"}, {"model.pooling": "mean", "model.token_weights": "sif"})
    ),
    ({"data.sets": ["a", "b"], "data.folder": "c"}, "data.sets and data.folder"),
    ({"data.sets": ["a", "b"], "data.cache": 1}, "data.sets and data.cache exclude"),
    ({"data.sets": ["a", "b"], "data.no_duplicates": True}, "data.no_duplicates and data.sets exclude"),
    ({"data.damaged": "skip", "data.no_duplicates": True}, "data.no_duplicates and data.damaged=skip"),
    ({"data.sets": ["a", "./a"]}, "names a folder twice"),
    ({"data.sets": ["a@2", "b"]}, "to all sets, or to none"),
    ({"data.sets": ["a@0", "b@1"]}, "data.sets.0.weight"),
    ({"augment.excerpt": "spam"}, "spam"),
    ({"augment.negative": "del-spam"}, "del-span"),
    ({"augment.augmented": "del-spam"}, "del-span"),
]  # fmt: skip


def tree_of(keys: dict) -> dict:
    tree: dict = {}
    for key, value in keys.items():
        *sections, last = key.split(".")
        node = tree
        for name in sections:
            node = node.setdefault(name, {})
        node[last] = value
    return tree


@pytest.mark.parametrize("keys", TAKEN, ids=str)
def test_what_goes_together_is_taken(keys):
    validate_config(tree_of(keys), "here")


@pytest.mark.parametrize(("keys", "said"), REFUSED, ids=str)
def test_what_contradicts_is_refused_and_named(keys, said):
    with pytest.raises(UserError) as refused:
        validate_config(tree_of(keys), "here")
    assert said in str(refused.value) and str(refused.value).startswith("configuration (here): ")


DATA_TAKEN = [
    {"unit": "record", "long_sentences": "truncate"},
    {"unit": "record", "long_sentences": "drop", "annotate": "auto"},
    {"unit": "sequence", "long_sentences": "split"},
    {"unit": "sentence", "long_sentences": "split"},
    {"unit": "document", "dedup": "minhash"},
    {"pairs": "title", "language": "de"},
    {"pairs": "title", "sources": [{"source": "a", "layout": "passages"}]},
    {"unit": "sentence", "annotate": "auto"},
]
DATA_REFUSED = [
    ({"unit": "sentence", "pairs": "title"}, "makes records, and is not for unit sentence"),
    ({"language": "de"}, "language: de is for pairs"),
    ({"unit": "record", "long_sentences": "split"}, "long_sentences: split is not for unit record"),
    ({"unit": "record", "dedup": "minhash"}, "dedup: minhash is not for unit record"),
    ({"unit": "record", "sources": [{"source": "a", "layout": "passages"}]}, "layout: passages is not for"),
    ({"unit": "sequence", "long_sentences": "truncate"}, "would cut documents, which unit sequence keeps"),
    ({"unit": "document", "long_sentences": "drop"}, "would cut documents, which unit document keeps"),
    ({"unit": "document", "annotate": "auto"}, "annotate is not for unit document"),
    ({"unit": "sentence", "long_sentences": "split", "annotate": "a"}, "annotate is not for long_sentences"),
    ({"sources": []}, "no source given"),
    ({"sources": ""}, "no source given"),
    ({"vocabulery": 5}, "unknown key vocabulery; did you mean vocabulary?"),
    ({"sources": [{"source": "https://jane:pw@host/a"}]}, "a URL with a password"),
    ({"sources": "a\udc80b"}, "is no UTF-8 here"),
    ({"sources": "a\udcffb"}, "is no UTF-8 here"),
]


@pytest.mark.parametrize("keys", DATA_TAKEN, ids=str)
def test_what_of_preparation_goes_together_is_taken(keys):
    config = data_config(keys)
    unit = config.unit
    assert unit == keys.get("unit", "record" if "pairs" in keys else "sentence")
    assert config.keeps_documents == (unit in ("sequence", "document"))
    assert config.long_policy == keys.get("long_sentences", "split" if config.keeps_documents else "truncate")


@pytest.mark.parametrize(("keys", "said"), DATA_REFUSED, ids=ascii)
def test_what_of_preparation_contradicts_is_refused(keys, said):
    with pytest.raises(UserError) as refused:
        data_config(keys)
    assert said in str(refused.value)


def test_places_have_weights_unless_a_file_has_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a,b@2").touch()
    (tmp_path / "c,d").touch()
    assert [
        (one.source, one.weight) for one in DataConfig(sources="a,b@2, c,d@0.5 ,e@3,embedded").sources
    ] == [
        ("a,b@2", 1),
        ("c,d", 0.5),
        ("e", 3),
        ("embedded", 1),
    ]
    assert _by_commas("x, c,d ,y") == ["x", "c,d", "y"]
    assert (
        _by_commas(" ,x, y,") == ["x", "y"] and DataConfig(sources={"source": "z"}).sources[0].source == "z"
    )
    for text in ("e@3", "wiki.txt", "a@b"):
        assert str(Source.model_validate(text)) == text
    sets = LoadingConfig(sets=" a@2 ,b@0.5,").sets
    assert [(str(one.folder), one.weight, str(one)) for one in sets] == [("a", 2, "a@2"), ("b", 0.5, "b@0.5")]
    assert str(LoadingConfig(sets="a").sets[0]) == "a"


def test_a_corpus_by_name_has_its_keys_and_those_that_are_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = Source.model_validate("wikipedia@0.25")
    assert (found.source, found.subset, found.weight) == ("hub:wikimedia/wikipedia", "20231101.en", 0.25)
    own = Source.model_validate({"source": "wikipedia", "subset": "20231101.de"})
    assert (own.source, own.subset) == ("hub:wikimedia/wikipedia", "20231101.de")
    assert Source.model_validate("simcse-wiki1m").layout == "lines"
    (tmp_path / "wikipedia").touch()
    assert Source.model_validate("wikipedia").source == "wikipedia"
    assert 'source: "a.jsonl", text_key: FIELD' in Source(source="a.jsonl").how_to_set("text_key")


# -- what follows from settings --------------------------------------------


def test_a_batch_grows_evenly_and_its_sums_are_those_of_its_steps():
    for full, lanes, start, steps in ((16, 4, 4, 6), (192, 16, 32, 7), (48, 8, 48, 3), (24, 8, 8, 0)):
        sizes = BatchSizes(full, lanes, start, steps)
        by_hand = [
            start + (full - start) // lanes * step // steps * lanes if step < steps else full
            for step in range(12)
        ]
        assert sizes.at(np.arange(12)).tolist() == by_hand == [sizes.at_step(step) for step in range(12)]
        for stop in range(13):
            assert sizes.total_before(stop) == sum(by_hand[:stop])
            assert sizes.full_steps(stop) == sum(by_hand[:stop]) / full
            for first in range(stop):
                larger = [s for s in range(first + 1, stop) if by_hand[s] != by_hand[s - 1]]
                assert sizes.changes(first, stop) == larger
    for lanes, first in ((1, 2), (2, 2), (3, 3), (6, 6)):
        config = Config(data={"lanes": lanes}, train={"global_batch": 6, "batch_warmup_steps": 3})
        assert config.batch_sizes.start == first
    assert Config().batch_sizes == BatchSizes(192, 16, 192, 0)


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        ({"schedule": "linear"}, 100),
        ({"schedule": "cosine", "warmup_steps": 7}, 7),
        ({"schedule": "constant"}, 1001),
        ({"schedule": "wsd"}, 900),
        ({"schedule": "wsd", "decay_steps": 5}, 996),
    ],
)
def test_the_rate_falls_from_a_step_on(given, begins):
    assert TrainConfig(steps=1001, **given).decay_begins == begins


def test_numbers_that_are_not_given_have_their_stand_ins():
    assert TrainConfig().micro_batch == 16384 and TrainConfig(micro_batch_tokens="77").micro_batch == 77
    config = Config(name="x", objective={"mlm": {"rate": 0.3}})
    assert (config.heldout_rate, str(config.run_folder), str(config.data_folder)) == (0.3, "runs/x", "data/x")
    config = Config(folder="r", evaluate={"mask_rate": 0.2}, data={"sets": "a,b"})
    assert (config.heldout_rate, str(config.run_folder), str(config.data_folder)) == (0.2, "r", "a")
    assert str(Config(data={"folder": "d"}).data_folder) == "d"
    assert Config().model.architecture()["intermediate_size"] == 1024
    sizes = Config(model={"intermediate_size": 99, "layers": 2}).model.architecture()
    assert sizes["intermediate_size"] == 99 and sizes["layers"] == 2
    assert not {"init", "pooling", "attention", "token_weights", "initializer_range"} & sizes.keys()
    assert Config(objective={"name": "retain"}, model={"init": "a"}).objective.retain.model == "a"


def test_steps_that_are_left_out_are_put_together_where_they_touch():
    for given, found in (
        ("5", [(4, 5)]),
        ("8-9, 1 2", [(0, 2), (7, 9)]),
        ("1-9,3-4", [(0, 9)]),
        ("1-3,4-6,8", [(0, 6), (7, 8)]),
        ("", []),
    ):
        assert FaultsConfig(jump=given).jumps == found


def test_losses_rise_from_their_first_step_over_their_warm_up():
    objective = ObjectiveConfig(start_step=3, warmup_steps=4)
    assert [objective.rise(step) for step in (0, 2, 3, 4, 6, 7, 90)] == [0, 0, 0.25, 0.5, 1, 1, 1]
    assert [ObjectiveConfig(start_step=3).rise(step) for step in (2, 3)] == [0, 1]
    assert ObjectiveConfig(matryoshka=(8, 32, 16)).widths == (32, 16, 8)


def test_a_guide_is_the_frozen_encoder_that_is_named():
    guided = {"false_negatives": {"guide": "g"}}
    for given, frozen in (
        ({"name": "clear"}, {}),
        ({"name": "clear"} | guided, {"objective.false_negatives.guide": "g"}),
        ({"name": "clear", "false_negatives": {"guide": "self"}}, {}),
        (
            {"name": "distill", "distill": {"model": "t"}, "retain": {"model": "r"}},
            {"objective.distill.model": "t"},
        ),
        ({"name": "retain+clear", "retain": {"model": "r"}}, {"objective.retain.model": "r"}),
    ):
        objective = ObjectiveConfig(**given)
        assert objective.frozen == frozen and objective.guide == next(iter(frozen.values()), None)
        assert objective.guide_key == next(iter(frozen), "objective.false_negatives.guide")
    ways = ObjectiveConfig(name="vascl+mlm+distill").steadier
    assert ways == {
        "objective.vascl.temperature": "raise",
        "objective.vascl.radius": "lower",
        "objective.vascl.neighbourhood_weight": "lower",
        "objective.distill.weight": "lower",
    }
    assert ObjectiveConfig(name="augcse+diffcse+vadvcse+clear").steadier == {
        "objective.augcse.temperature": "raise",
        "objective.augcse.discriminator_weight": "lower",
        "objective.diffcse.temperature": "raise",
        "objective.diffcse.replaced_token_weight": "lower",
        "objective.vadvcse.temperature": "raise",
        "objective.vadvcse.adversarial_weight": "lower",
        "objective.contrastive.temperature": "raise",
    }


def test_readings_of_v_advcse_are_the_documented_ones():
    smart = AdversarialReading(1e-6, 1e-5, 1e-3, "inf", "token", "smart", None, "packaged", "sum", True)
    printed = AdversarialReading(1e-3, 1e-2, 1.0, "l2", "sequence", "ball", 0.05, "printed", "mean", False)
    closed = AdversarialReading(
        1e-3, 1e-2, None, "inf", "sequence", "closed-form", 0.05, "printed", "mean", False
    )
    for name, reading in (("smart-package", smart), ("algorithm-1", printed), ("appendix-A", closed)):
        config = VadvcseConfig(reading=name)
        assert config.resolved == reading
        assert config.loss_weights == [1.0, reading.adversarial_weight]
    given = VadvcseConfig(
        reading="algorithm-1", sigma=0.5, norm="inf", adversarial_weight=0, radius=2, step_size=3
    )
    assert (given.resolved.sigma, given.resolved.norm, given.resolved.adversarial_weight) == (0.5, "inf", 0)
    assert (given.resolved.radius, given.resolved.step_size, given.effective("sigma")) == (2, 3, 0.5)
    for name, reading in (("radius", "smart-package"), ("step_size", "appendix-A")):
        with pytest.raises(ValueError, match=f"{name}=1.0: {reading} has none"):
            VadvcseConfig(reading=reading, **{name: 1.0})


def test_keys_that_no_objective_of_the_sum_reads():
    keys = [f"objective.{name}.x" for name in ("mlm", "contrastive", "sda", "options")]
    keys += [f"objective.{name}" for name in ("scope", "matryoshka", "start_step", "mask_duplicates")]
    keys += ["train.sda", "objective.false_negatives.guide", "objective.warmup_steps"]
    assert unused("clear", keys) == ["objective.sda.x", "objective.options.x"]
    assert unused("clear+sda", keys) == ["objective.options.x"] and unused("mine.py:A+clear", keys) == []
    idle = unused("mlm", keys)
    assert idle == [*keys[1:7], *keys[9:]]
    assert readers(["objective.contrastive.x", "objective.options", "objective.sda"]) == (
        "clear and FILE.py:CLASS and sda"
    )
    assert readers(["objective.start_step", "objective.warmup_steps"]) == "another objective"
    assert (
        readers(["objective.matryoshka", "objective.false_negatives"]) == "objectives with a contrastive loss"
    )


def test_sections_of_earlier_versions_are_read_as_this_one_writes_them():
    former = {"model": {"residual": "fp32", "layer_code": "own"}, "data": {"remote_cache": 5}}
    former |= {"train": {"muon_scale": "match_rms_adamw", "balance": 3, "faults": {"within": 9}}}
    assert validate_config(former, "here") == Config()
    for other in ({"model": {"residual": "bf16"}}, {"train": {"muon_scale": "x"}}):
        with pytest.raises(UserError, match="unknown key"):
            validate_config(other, "here")
    objective = {"name": "sda+simcse", "sda": {"warmup_steps": 3}, "vascl": {"warmup_steps": 9}}
    objective["simcse"] = {"warmup_steps": 3, "scope": "local"}
    with pytest.raises(UserError, match=r"objective\.sda\.scope=global, objective\.simcse\.scope=local: all"):
        ObjectiveConfig(**objective)
    objective["sda"]["scope"] = "local"
    found = ObjectiveConfig(**objective)
    assert (found.warmup_steps, found.scope, found.start_step) == (3, "local", 0)
    assert ObjectiveConfig(**objective, warmup_steps=5).warmup_steps == 5
