"""`data.cache`: a run that has its views made once is the run on a cache that was made by hand."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from run_helpers import ROOT, command, curve, finish, start

from pretrain import cached_views, setup_run
from pretrain.cache import cache
from pretrain.cached_views import columns_of, make, trains_on
from pretrain.config import load_config
from pretrain.errors import UserError
from pretrain.objectives import view_specs
from pretrain.shards import ShardReader

LABELLED = "del-word:rate=0.5|reorder"


def config(**flags):
    return load_config(ROOT / "configs" / "augcse_micro.yaml", {key.replace("__", "."): value for key, value in flags.items()})


@pytest.mark.slow
def test_the_same_run_as_on_a_cache_made_by_hand_and_resumes(tiny_data, tmp_path):
    common = {"objective.name": "augcse", "objective.mlm.weight": 0, "aug": "none", "train.steps": 6, "resume": "auto"}
    words = command(tiny_data, tmp_path / "run", **common, **{"augment.augmented": LABELLED, "data.cache": 2})
    said = finish(start(words))
    assert "making the views augmented once" in said
    cache(tiny_data, tmp_path / "by_hand", {"augmented": LABELLED}, copies=2, progress=False)
    finish(start(command(tmp_path / "by_hand", tmp_path / "second", **common, **{"augment.augmented": "none"})))
    assert curve(tmp_path / "run") == curve(tmp_path / "second")
    assert f"augmented: {LABELLED}" in (tmp_path / "run" / "config.yaml").read_text()  # what the views are

    complete = curve(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")
    said = finish(start(words))
    assert "making the views" not in said and curve(tmp_path / "run") == complete

    line = [sys.executable, "-m", "pretrain.inspect", *words[1:]]
    line = [word for word in line if not word.startswith("--run") and word != str(tmp_path / "run")]
    seen = subprocess.run(line, cwd=ROOT, env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True)
    assert seen.returncode == 0 and "del-word:rate=0.5" in seen.stdout and ".cache-" in seen.stdout, seen.stdout + seen.stderr


def test_a_folder_for_each_set_of_views():
    one, other = config(data__cache="1"), config(data__cache="1", augment__augmented="tense|yoda")
    folders = {trains_on(settings).data_folder for settings in (one, other, config(data__cache="2"))}
    assert len(folders) == 3 and all(folder.name.startswith("augcse_micro.cache-") for folder in folders)
    assert trains_on(one).augment.of_role("augmented") == "none" and trains_on(config(data__cache="0")).data.cache == 0
    assert trains_on(one).data_folder == trains_on(config(data__cache="1", train__seed="7")).data_folder
    assert one.augment.of_role("augmented") == "augcse-12-2"  # the run's own configuration stays


def test_a_synonym_table_makes_other_views_where_one_is_needed():
    def folder(**flags):
        return trains_on(config(data__cache="1", **flags)).data_folder

    assert folder(augment__augmented="subs|reorder", augment__synonyms="a.json") not in (
        folder(augment__augmented="subs|reorder"), folder(augment__augmented="subs|reorder", augment__synonyms="b.json"))
    assert folder(augment__augmented="reorder", augment__synonyms="a.json") == folder(augment__augmented="reorder")


def test_views_of_data_that_was_replaced_are_refused(tiny_data, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(cached_views, "in_own_process", lambda module, words, what: made.append(words))
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    settings = config(data=str(data), data__cache="1", augment__augmented=LABELLED)
    make(settings)
    assert len(made) == 1
    folder = trains_on(settings).data_folder
    shutil.copytree(data, folder)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"columns": ["text", "augmented"]}
    manifest["cache"] = {"content": {split: ShardReader(data, split).content_hash for split in ("train", "heldout")}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    make(settings)
    assert len(made) == 1  # it is there
    manifest["cache"]["content"]["heldout"] = "other"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"views of other data.*remove that folder"):
        make(settings)
    with pytest.raises(UserError, match=r"columns or labels of its own.*data.cache=0 and augment.augmented=none"):
        make(config(data=str(folder), data__cache="1", augment__augmented=LABELLED))


def test_token_augmentations_of_the_anchor_stay_in_the_loader():
    specs = {"augment__anchor": "crop:rate=0.8", "augment__positive": "reorder"}
    settings = trains_on(config(**specs, objective="sda", augment__negative="neg"))
    assert [view.augmentation for view in view_specs(settings)] == ["crop:rate=0.8", "none", "none"]
    assert columns_of(config(**specs, objective="simcse")) == {"positive": "reorder"}


@pytest.mark.parametrize(("flags", "said"), [
    ({"augment.augmented": "none", "objective": "simcse"}, "nothing to make"),
    ({"augment.anchor": "pi"}, "augment.anchor=pi would rewrite its text"),
    ({"objective": "declutr", "augment.positive": "crop:rate=0.8"}, "has positive2 besides"),
])
def test_what_cannot_be_made_once_is_one_message_before_data_is_prepared(flags, said, monkeypatch):
    monkeypatch.setattr(setup_run, "find_or_prepare", None)
    with pytest.raises(UserError, match=said):
        setup_run.find_data(load_config(ROOT / "configs" / "augcse_micro.yaml", {"data.cache": "1", **flags}))
