"""What decides a run's batches is in its record by hash, and a resumed run must find the same."""

import json
import shutil

import pytest
from run_helpers import command, curve, finish, start
from test_bad_input import refused

from augment.core.errors import AugmentationError
from augment.spec.catalogue import CATALOGUE
from augment.spec.resources import resource_hash, resources
from pretrain.checkpoint import store
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.data.shards import ShardReader
from pretrain.objectives import view_specs
from pretrain.start import continuity


def collect(data, **flags):
    settings = load_config(
        None, {"objective": "clear", "data": str(data)} | {k.replace("__", "."): v for k, v in flags.items()}
    )
    return continuity.collect(
        settings, view_specs(settings), ShardReader(data, "train"), ShardReader(data, "heldout")
    )


@pytest.mark.full
def test_a_resume_with_another_synonym_table_is_refused_and_may_be_accepted(tiny_data, tmp_path):
    run, table = tmp_path / "run", tmp_path / "table.json"
    table.write_text(json.dumps({"river": ["stream"], "old": ["ancient"], "garden": ["yard"]}))
    flags = {
        "train__steps": 4,
        "evaluate__every": 0,
        "checkpoint__every": 2,
        "checkpoint__keep": 9,
        "augment__spec": "subs:rate=0.9",
        "augment__synonyms": table,
    }
    finish(start(command(tiny_data, run, **flags)))
    first = resource_hash(table)
    source = run / "checkpoints" / "step-00000002"
    assert store.read_state(source)["inputs"]["synonyms"] == {"sha256": first, "where": str(table)}
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    whole = curve(run)
    table.write_text(json.dumps({"river": ["brook"]}))
    second = resource_hash(table)
    refused(
        command(tiny_data, run, **flags, checkpoint__resume="auto"),
        f"synonyms was {first[:12]} ({table})",
        second[:12],
        "--init",
        "--checkpoint.accept 'synonyms'",
    )
    assert curve(run) == whole, "a refused resume changes nothing"
    output = finish(
        start(command(tiny_data, run, **flags, checkpoint__resume="auto", checkpoint__accept="synonyms"))
    )
    assert f"changed    input synonyms: {first[:12]} ({table}) until step 2, {second[:12]}" in output
    assert store.read_state(run / "checkpoints" / "step-00000004")["inputs"]["synonyms"]["sha256"] == second
    assert curve(run)[3]["loss"] != whole[3]["loss"]


def test_every_input_counts_by_its_content(tiny_data, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    table = tmp_path / "table.json"
    table.write_text('{"river": ["stream"]}')
    before = collect(data, augment__spec="subs", augment__synonyms=str(table))
    assert set(before) == {"shards", "held-out shards", "manifest", "tokenizer", "synonyms"}
    assert collect(data, augment__spec="reorder").keys() == before.keys() - {"synonyms"}

    def differing(change):
        change()
        now = collect(data, augment__spec="subs", augment__synonyms=str(table))
        with pytest.raises(UserError) as caught:
            continuity.require_same("step-1", before, now)
        return {
            line.split(" was ")[0].strip() for line in str(caught.value).splitlines()[1:] if " was " in line
        }

    def edit(change):
        manifest = json.loads((data / "manifest.json").read_text())
        change(manifest)
        (data / "manifest.json").write_text(json.dumps(manifest))

    good = (data / "manifest.json").read_text()
    assert differing(lambda: table.write_text('{"river": ["brook"]}')) == {"synonyms"}
    table.write_text('{"river": ["stream"]}')
    assert differing(lambda: edit(lambda m: m.update(max_length=47))) == {"manifest"}
    (data / "manifest.json").write_text(good)
    for split, name in (("train", "shards"), ("heldout", "held-out shards")):
        assert differing(
            lambda split=split: edit(lambda m: m["splits"][split]["shards"][-1].update(sha256="0" * 64))
        ) == {name}
        (data / "manifest.json").write_text(good)
    # How the data was made is no input: the shards record it.
    edit(lambda m: m.update(run={"seconds": 1}))
    assert (
        continuity.require_same(
            "step-1", before, collect(data, augment__spec="subs", augment__synonyms=str(table))
        )
        == []
    )


def test_all_that_differs_is_one_error_and_what_cannot_change_cannot_be_accepted():
    before = {
        name: {"sha256": "a" * 64, "where": "/then"}
        for name in ("shards", "rules", "contextual.model", "wordnet")
    }
    now = {
        name: {"sha256": "b" * 64, "where": "/now"}
        for name in ("shards", "rules", "contextual.model", "synonyms")
    }
    with pytest.raises(UserError) as caught:
        continuity.require_same("step-7", before, now)
    shards = "shards was aaaaaaaaaaaa (/then), is bbbbbbbbbbbb (/now)"
    for needle in ("step-7", shards, "rules was", "contextual.model"):
        assert needle in str(caught.value)
    assert "--checkpoint.accept 'rules,contextual.model'" in str(caught.value)
    with pytest.raises(UserError, match="shards cannot change within a run"):
        continuity.require_same("step-7", before, now, "rules,shards")
    with pytest.raises(UserError, match="has no input tables; it has shards, rules"):
        continuity.require_same("step-7", before, now, "tables")
    same = before | {"rules": now["rules"]}
    assert continuity.require_same("step-7", before, same, " rules ") == [
        {"key": "input rules", "from": "aaaaaaaaaaaa (/then)", "to": "bbbbbbbbbbbb (/now)"}
    ]


def test_every_augmentation_that_reads_something_names_it(tmp_path, monkeypatch, small_wordnet):
    """By the catalogue: whatever needs a table, WordNet, vectors or a model has a hash that its content
    decides."""
    table, model = tmp_path / "table.json", tmp_path / "model"
    table.write_text('{"river": ["stream"]}')
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"1")
    for entry in CATALOGUE.values():
        for parameter in entry.parameters:
            if parameter.variable:
                monkeypatch.setenv(parameter.variable, str(model))
        found = resources([entry.name], table)
        reads = {need.split(":")[0] for need in entry.needs} & {"synonyms", "wordnet", "model"}
        assert bool(found) == bool(reads), entry.name
        assert ("wordnet" in found) == ("wordnet" in reads) and ("synonyms" in found) == ("synonyms" in reads)
        assert all(resource_hash(where) for where in found.values()), entry.name
    before = resource_hash(model)
    (model / "README.md").write_text("notes")
    (model / ".cache").write_text("x")
    assert resource_hash(model) == before
    (model / "model.safetensors").write_bytes(b"2")
    assert resource_hash(model) != before
    assert (
        resource_hash(tmp_path / "nowhere") is None and resource_hash("some/model-that-is-not-cached") is None
    )
    both = resources(["contextual:model=a|contextual:model=b"])
    assert set(both.values()) == {"a", "b"}
    monkeypatch.setenv("CLEAR_DATA", str(tmp_path / "empty"))
    with pytest.raises(AugmentationError, match="no synonym table"):
        monkeypatch.setattr("augment.tokens.synonyms.wordnet_candidates", lambda: [tmp_path / "none"])
        resources(["subs"])
