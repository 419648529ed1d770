"""How recipes, flags and their names are read."""

from pathlib import Path

import pytest

from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.typed_values import (
    OTHER_NAMES,
    named_places,
    nearest,
    parse_value,
    parse_yaml,
    value_text,
)
from pretrain.config.data import DataConfig, Source
from pretrain.config.recipe import as_yaml, flags, load_config
from pretrain.config.run import Config
from pretrain.config.validation import leaves, merged, read_yaml, type_at


@pytest.mark.parametrize(
    ("steps", "given", "warmup"),
    [
        ("100", {}, 10),
        ("101", {}, 100),
        ("1_0", {}, 1),
        ("50", {"train.warmup_steps": "20"}, 20),
    ],
)
def test_a_warm_up_that_does_not_fit_keeps_its_share(steps, given, warmup, tmp_path):
    (tmp_path / "r.yaml").write_text("train: {steps: 1000, warmup_steps: 100}\n")
    for recipe in (tmp_path / "r.yaml", None):  # the defaults are the same
        config = load_config(recipe, {"train.steps": steps} | given)
        assert config.train.warmup_steps == warmup


def test_a_start_that_a_flag_names_brings_its_own_sizes(tmp_path):
    (tmp_path / "r.yaml").write_text("model: {layers: 7, hidden_size: 96, pooling: mean, dropout: 0.3}\n")
    start = {"model.init": "bert-base-uncased"}
    plain, started, given = (
        load_config(tmp_path / "r.yaml", flags).model
        for flags in (
            {},
            {"init": start["model.init"]},
            start | {"model.layers": "7", "model.pooling": "cls"},
        )
    )
    assert (plain.layers, plain.hidden_size) == (7, 96) and "pooling" in plain.model_fields_set
    assert started.model_fields_set == {"init", "dropout"} and started.dropout == 0.3
    assert given.model_fields_set == {"init", "dropout", "layers", "pooling"}
    assert load_config(tmp_path / "r.yaml", {"init": "none"}).model == plain


def test_types_at_keys_and_trees_one_over_the_other():
    assert type_at(Config, "train.lr") is float and type_at(Config, "train.faults.skip") is int
    for nothing in ("train.x", "x", "train.lr.x", "name.x"):
        assert type_at(Config, nothing) is None
    assert type_at(Config, "data.prompts.anchor") is str and type_at(Config, "deepspeed.a.b.c") is not None
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3, "f": {"g": 1}}
    assert merged(base, {"a": {"c": {"h": 4}}, "e": {"i": 5}, "f": 6}) == {
        "a": {"b": 1, "c": {"d": 2, "h": 4}},
        "e": {"i": 5},
        "f": 6,
    }
    assert list(leaves(base, "x.")) == [("x.a.b", 1), ("x.a.c.d", 2), ("x.e", 3), ("x.f.g", 1)]


def test_a_line_separator_comes_back_from_yaml(tmp_path):
    for text in ("a\u2028b", "a\u2029b", "a\x85b", "ü"):
        (tmp_path / "c.yaml").write_text(as_yaml({"name": text}), "utf-8")
        assert read_yaml(tmp_path / "c.yaml") == {"name": text}
    assert "ü" in as_yaml({"name": "ü"})
    assert as_yaml({"b": "\u2028", "a": 1}).startswith("b:") and as_yaml({"b": "", "a": 1}).startswith("b:")


@pytest.mark.parametrize(
    "name", ["batch_size", "learning_rate", "epochs", "seeds", "gradient_accumulation_steps"]
)
def test_what_other_programs_call_a_flag_is_said_with_its_name_here(name):
    ours, remark = OTHER_NAMES[name]
    for one in ours.split():
        said = nearest(f"train.{name}", ["train.x", one], "--")
        assert said == f"; its name here is --{one}" + (f" ({remark})" if remark else "")
    assert nearest(name, ["train.x"]) == ""


def test_every_other_name_stands_for_a_key_or_flag():
    known = {name for name, *_ in flags()} | DataConfig.model_fields.keys() | {"batch_size", "lr"}
    known |= {"out", "pooling", "precision", "workers", "source", "text"}
    for other, (ours, _) in OTHER_NAMES.items():
        assert set(ours.split()) <= known, other


def test_a_name_with_its_section_is_that_of_the_section():
    names = [name for name, *_ in flags()]
    assert nearest("simcse.temperature", names, "--") == "; did you mean --objective.simcse.temperature?"
    assert "objective.contrastive.temperature (" in nearest("temperature", names)


def test_a_flag_for_results_stands_before_the_run_that_a_command_reads():
    assert nearest("output_dir", ["run", "out"]) == "; its name here is out"
    assert nearest("output_dir", ["run", "folder"]) == "; its name here is run"
    assert nearest("output_dir", ["folder"]) == ""  # of figures, of weights to convert: it is there already


def test_the_batch_of_evaluations_is_not_taken_for_that_of_training():
    names = [name for name, *_ in flags()]
    for known in (names, ["batch_size", "lr"]):
        assert nearest("per_device_eval_batch_size", known) == nearest("eval_batch_size", known) == ""


def test_a_tilde_is_the_home_folder_in_a_recipe_and_behind_an_equals_sign(monkeypatch):
    """A shell expands it in neither."""
    monkeypatch.setenv("HOME", "/home/jane")
    settings = load_config(None, {"run": "~/runs/a", "data": "~/data", "evaluate.sts": "~no-such-user/~"})
    assert settings.run_folder == Path("/home/jane/runs/a")
    assert settings.data_folder == Path("/home/jane/data")
    assert settings.evaluate.sts == Path("~no-such-user/~")

    def of(*, out: str) -> str:
        return out

    assert cli.Command(of, "of")(out="~/a") == "/home/jane/a"


def test_names_of_earlier_versions_and_of_texts_are_known():
    said = [nearest(name, ["eval_data", "run", "seed"]) for name in ("data", "sts", "folder")]
    assert all(
        text.startswith(f"; its name here is {ours} (")
        for text, ours in zip(said, ("eval_data",) * 2 + ("run",))
    )
    for other in ("sources", "corpus", "input", "texts", "text_file", "train_file", "text"):
        assert nearest(other, ["source", "data"]) == "; its name here is source"
        assert nearest(other, ["data", "x"]) == "; its name here is data"
        assert other == "text" or nearest(other, ["aug", "text", "file"]) == "; its name here is file"
    assert nearest("data", ["data2", "text"]) == "; its name here is text"


def test_keys_of_a_source_lead_to_the_flag_of_sources():
    keys = "text_key", "positive_key", "negative_key", "label_key", "score_key", "layout", "markup", "unwrap"
    assert set(keys) <= Source.model_fields.keys()
    remark = " (a key of a source: '[{source: PLACE, text_key: FIELD}]')"
    for key in keys:
        for flag in ("source", "data.prepare.sources", "text"):
            assert nearest(key, ["x", flag], "--") == f"; its name here is --{flag}{remark}"


@pytest.mark.parametrize(("number", "fits"), [(2**63 - 1, True), (2**63, False), (-(2**63) + 1, True)])
def test_integers_have_64_bits(number, fits):
    for read in (lambda: parse_value(str(number), int, "--n"), lambda: parse_yaml(f"[{number}]", "here")):
        if fits:
            assert read() in (str(number), [number])
        else:
            with pytest.raises(UserError, match="is too large"):
                read()


def test_places_with_names_and_values_as_they_are_typed():
    given = ["a/b.c.tsv.gz", " x=d.tsv ", "", "e f/g h.csv/"]
    assert named_places(given) == {"b": "a/b.c.tsv.gz", "x": "d.tsv", "g-h": "e f/g h.csv/"}
    assert named_places(None) == named_places("none") == {} and named_places({1: 2}) == {"1": "2"}
    with pytest.raises(UserError, match=r"a/b\.tsv and c/b\.tsv would both be called b"):
        named_places("a/b.tsv,c/b.tsv")
    assert [value_text(v) for v in (None, (), [1, 2], (0.5,), True, "a")] == [
        "none",
        "none",
        "1,2",
        "0.5",
        "True",
        "a",
    ]
