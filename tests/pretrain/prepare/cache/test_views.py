"""`data.cache`: a run that has its views made once is the run on a cache that was made by hand."""

import json
import shutil
from types import SimpleNamespace

import pytest
from cache_helpers import make as make_cache
from forked_python import run_python
from run_helpers import ROOT, command, curve, environment, finish, start

from augment.core.errors import AugmentationError
from augment.spec.resources import resource_hash
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.data.shards import ShardReader
from pretrain.objectives import view_specs
from pretrain.prepare.cache import views as cached_views
from pretrain.prepare.cache.run import view_number
from pretrain.prepare.cache.views import columns_of
from pretrain.start import data as start_data
from pretrain.start import summary

LABELLED = "del-word:rate=0.5|reorder"


def config(**flags):
    return load_config(
        ROOT / "configs" / "augcse_micro.yaml",
        {key.replace("__", "."): value for key, value in flags.items()},
    )


def read_with(settings):
    """Return the configuration that the loader reads with."""
    return cached_views.trains_on(settings, view_specs(settings))


def make_views(settings):
    cached_views.make(settings, view_specs(settings))


@pytest.mark.slow
def test_the_same_run_as_on_a_cache_made_by_hand_and_resumes(tiny_data, tmp_path):
    common = {
        "objective.name": "augcse",
        "objective.mlm.weight": 0,
        "aug": "none",
        "augment.excerpt": "none",
        "train.steps": 6,
        "resume": "auto",
    }
    words = command(tiny_data, tmp_path / "run", **common, **{"augment.augmented": LABELLED, "data.cache": 2})
    said = finish(start(words))
    assert "making the views augmented once" in said
    make_cache(tiny_data, tmp_path / "by_hand", {"augmented": LABELLED}, copies=2, seed=42)
    finish(
        start(command(tmp_path / "by_hand", tmp_path / "second", **common, **{"augment.augmented": "none"}))
    )
    assert curve(tmp_path / "run") == curve(tmp_path / "second")
    assert f"augmented: {LABELLED}" in (tmp_path / "run" / "config.yaml").read_text()  # what the views are

    complete = curve(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")
    said = finish(start(words))
    assert "making the views" not in said and curve(tmp_path / "run") == complete

    line = ["-m", "pretrain.commands.inspect", *words[1:]]
    line = [word for word in line if not word.startswith("--run") and word != str(tmp_path / "run")]
    seen = run_python(line, environment(COLUMNS="200"), ROOT)
    assert seen.returncode == 0 and "del-word:rate=0.5" in seen.stdout and ".cache-" in seen.stdout, (
        seen.stdout + seen.stderr
    )


def test_a_folder_for_each_set_of_views():
    one, other = config(data__cache="1"), config(data__cache="1", augment__augmented="tense|yoda")
    folders = {read_with(settings).data_folder for settings in (one, other, config(data__cache="2"))}
    assert len(folders) == 3 and all(folder.name.startswith("augcse_micro.cache-") for folder in folders)
    assert (
        read_with(one).augment.of_role("augmented") == "none"
        and read_with(config(data__cache="0")).data.cache == 0
    )
    assert read_with(one).data_folder == read_with(config(data__cache="1", train__seed="7")).data_folder
    assert one.augment.of_role("augmented") == "augcse-12-2"  # the run's own configuration stays
    excerpt = read_with(config(data__cache="1", aug="del-span", augment__excerpt="crop:rate=0.5"))
    assert excerpt.augment.of_role("anchor") == "crop:rate=0.5,del-span"


def test_a_synonym_table_makes_other_views_where_one_is_needed():
    def folder(**flags):
        return read_with(config(data__cache="1", **flags)).data_folder

    assert folder(augment__augmented="subs|reorder", augment__synonyms="a.json") not in (
        folder(augment__augmented="subs|reorder"),
        folder(augment__augmented="subs|reorder", augment__synonyms="b.json"),
    )
    assert folder(augment__augmented="reorder", augment__synonyms="a.json") == folder(
        augment__augmented="reorder"
    )


def test_other_rules_make_other_views(monkeypatch):
    settings = config(data__cache="1")
    before = read_with(settings).data_folder
    assert read_with(settings).data_folder == before
    monkeypatch.setattr(cached_views, "rules_digest", lambda: "other")
    assert read_with(settings).data_folder != before


def test_one_worker_where_every_worker_would_load_a_model(tiny_data, monkeypatch):
    made = []
    monkeypatch.setattr(cached_views, "run_module", lambda module, words, what: made.append(words))
    for spec in ("contextual:model=folder|reorder", LABELLED):
        make_views(config(data=str(tiny_data), data__cache="1", augment__augmented=spec))
    assert made[0][-2:] == ["--workers", "1"] and "--workers" not in made[1]


@pytest.mark.parametrize("name", ["augcse", "sda", "sda+augcse"])
def test_columns_draw_with_the_numbers_of_the_views_on_line(name):
    views = view_specs(
        config(objective=name, augment__positive="pi", augment__negative="neg", augment__augmented=LABELLED)
    )
    made = {view.column for view in views if view.role != "anchor"}
    for number, view in enumerate(views):
        assert view.role == "anchor" or view_number(view.column, made) == number


def test_views_of_data_that_was_replaced_are_refused(tiny_data, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(cached_views, "run_module", lambda module, words, what: made.append(words))
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    settings = config(data=str(data), data__cache="1", augment__augmented=LABELLED)
    make_views(settings)
    assert len(made) == 1
    folder = read_with(settings).data_folder
    shutil.copytree(data, folder)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"columns": ["text", "augmented"]}
    manifest["cache"] = {
        "content": {split: ShardReader(data, split).content_hash for split in ("train", "heldout")}
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    make_views(settings)
    assert len(made) == 1  # it is there
    manifest["cache"]["content"]["heldout"] = "other"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"views of other data.*remove that folder"):
        make_views(settings)
    with pytest.raises(UserError, match=r"columns or labels: .*data.cache=0 and augment.augmented=none"):
        make_views(config(data=str(folder), data__cache="1", augment__augmented=LABELLED))


def test_token_augmentations_of_the_anchor_stay_in_the_loader():
    specs = {"augment__anchor": "crop:rate=0.8", "augment__positive": "reorder"}
    settings = read_with(config(**specs, objective="sda", augment__negative="neg"))
    assert [view.augmentation for view in view_specs(settings)] == ["crop:rate=0.8", "none", "none"]
    assert columns_of(view_specs(config(**specs, objective="simcse"))) == {"positive": "reorder"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"augment.augmented": "none", "objective": "simcse"}, "no view but the anchor is augmented"),
        ({"augment.anchor": "pi"}, r"keeps an anchor.s text \(pi\)"),
        ({"objective": "declutr", "augment.positive": "crop:rate=0.8"}, "not positive2"),
    ],
)
def test_what_cannot_be_made_once_is_one_message_before_data_is_prepared(flags, said, monkeypatch):
    monkeypatch.setattr(start_data, "find_or_prepare", None)
    with pytest.raises(UserError, match=said):
        settings = load_config(ROOT / "configs" / "augcse_micro.yaml", {"data.cache": "1", **flags})
        start_data.find_data(settings, view_specs(settings))


@pytest.mark.parametrize(
    ("flags", "error", "said"),
    [
        (
            {"augment.augmented": "contextual|random-word-embedding"},
            AugmentationError,
            "contextual needs a masked language model.*random-word-embedding needs word vectors",
        ),
        (
            {"augment.augmented": "contextual|reorder", "data.cache": "0"},
            AugmentationError,
            "contextual needs a masked language",
        ),
        (
            {"augment.augmented": "subs|reorder", "augment.synonyms": "/no/table.json"},
            AugmentationError,
            "synonym table /no/table.json does not exist",
        ),
        (
            {"augment.augmented": "random-word-embedding:path=/no/file|reorder"},
            AugmentationError,
            "the word vectors /no/file are not a file",
        ),
    ],
)
def test_what_is_missing_is_one_message_before_data_is_prepared(flags, error, said, tmp_path, monkeypatch):
    monkeypatch.delenv("CLEAR_MASKED_LM", raising=False)
    monkeypatch.delenv("CLEAR_WORD_VECTORS", raising=False)
    monkeypatch.setattr(start_data, "find_or_prepare", None)
    settings = load_config(
        ROOT / "configs" / "augcse_micro.yaml", {"data": str(tmp_path / "data"), "data.cache": "1", **flags}
    )
    with pytest.raises(error, match=said):
        start_data.find_data(settings, view_specs(settings))


def test_views_that_are_there_need_no_models(tmp_path, monkeypatch):
    monkeypatch.delenv("CLEAR_MASKED_LM", raising=False)
    settings = config(
        data=str(tmp_path / "data"),
        data__cache="1",
        augment__augmented="contextual|reorder",
        **{"data.prepare.sources": "any.txt"},
    )
    folder = read_with(settings).data_folder
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    asked = []
    monkeypatch.setattr(start_data, "find_or_prepare", lambda *_: asked.append("data"))
    monkeypatch.setattr(cached_views, "make", lambda *_: asked.append("views"))
    start_data.find_data(settings, view_specs(settings))
    assert asked == ["data", "views"]


def test_views_made_with_another_table_of_the_same_name_are_refused(tiny_data, tmp_path, monkeypatch):
    data, table = tmp_path / "data", tmp_path / "table.json"
    shutil.copytree(tiny_data, data)
    table.write_text('{"river": ["stream"]}')
    settings = config(
        data=str(data), data__cache="1", augment__augmented="subs|reorder", augment__synonyms=str(table)
    )
    folder = read_with(settings).data_folder
    shutil.copytree(data, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    content = {split: ShardReader(data, split).content_hash for split in ("train", "heldout")}
    cached = {"content": content, "resources": {"synonyms": resource_hash(table)}}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"cache": cached}))
    make_views(settings)  # there already
    table.write_text('{"river": ["brook"]}')
    with pytest.raises(UserError, match=rf"{folder} was made with another synonyms .*{table}"):
        make_views(settings)
    table.unlink()
    make_views(settings)  # views that are there need no table


def test_a_run_names_the_folder_that_it_reads(monkeypatch):
    monkeypatch.setattr(summary.dist, "get_world_size", lambda: 1)
    settings = config(data__cache="1")
    folder = read_with(settings).data_folder
    model = SimpleNamespace(parameters=lambda: [], config=SimpleNamespace(model_type="bert"))
    encoder = SimpleNamespace(lm=model, pooling="mean", max_positions=64, hidden_size=32, random_head=False)
    train = SimpleNamespace(folder=folder, num_sequences=70, num_tokens=700, unit="record", shares=(1.0,))
    train.parts = [train]
    data = start_data.Data(read_with(settings), [], train, None, None, None, None, {})
    model = SimpleNamespace(encoder=encoder, objective=SimpleNamespace(roles=(), masked_copies=1))
    lines = summary.lines_of_run(settings, data, model, 1, "")
    assert any(line.startswith(f"data       {folder}: 70 sequences") for line in lines)
