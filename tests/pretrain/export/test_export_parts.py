"""Parts of exports: modules as the library's versions write them, sources, data, cards, pushes."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from export_helpers import make_run, make_tokenizer
from hub_server import TOKEN, Hub
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import nn

from pretrain.checkpoint import store
from pretrain.common.errors import UserError
from pretrain.export import folder as exports
from pretrain.export.folder import _describe_data, _settle_weights, export, find_source, interface_of
from pretrain.export.model_card import _corpus, _objective, _scores, hub_card
from pretrain.export.push import Upload, require_repository
from pretrain.export.sentence_transformers import (
    Interface,
    read_modules,
    weights_by_token,
    write_modules,
    write_static,
)
from pretrain.export.sums import changed_files, evaluations_of, weights_identity, write_sums
from pretrain.model.heads import simcse_head

DENSE = {"in_features": 4, "out_features": 3, "bias": True, "activation_function": "torch.nn.Tanh"}


@pytest.fixture
def written(tmp_path):
    """A folder of modules with everything that can be written, in the order of its kinds; edit(file, ...)."""
    interface = Interface(20, True, {"query": "q: ", "document": ""}, "query", True, "dot")
    weights = {"a": 1.0, "b": 0.5, "C": 0.25}
    head = write_modules(tmp_path, "last-two", 3, 3, interface, simcse_head(3), True, weights)
    assert head == "4_Dense"

    def edit(name, **changes):
        path = tmp_path / name
        content = json.loads(path.read_text())
        path.write_text(json.dumps({key: v for key, v in (content | changes).items() if v is not ...}))

    return SimpleNamespace(
        folder=tmp_path, edit=edit, interface=interface, read=lambda: read_modules(str(tmp_path))
    )


def test_modules_are_read_as_they_were_written(written):
    listed = json.loads((written.folder / "modules.json").read_text())
    kinds = ["Transformer", "WeightedLayerPooling", "WordWeights", "Pooling", "Dense", "Normalize"]
    assert [(one["idx"], one["name"], one["type"], one["path"]) for one in listed] == [
        (n, str(n), f"sentence_transformers.models.{kind}", f"{n}_{kind}" if n else "")
        for n, kind in enumerate(kinds)
    ]
    found = written.read()
    assert (found.pooling, found.interface, found.others) == ("last-two", written.interface, [])
    assert found.interface.prompt == "q: " and found.token_weights.tolist() == [1.0, 0.5, 0.25]
    assert found.token_weights.dtype == torch.float32
    row = torch.tensor([[1.0, -2.0, 3.0]])
    saved = load_file(written.folder / "4_Dense" / "model.safetensors")
    expected = torch.tanh(row @ saved["linear.weight"].T + saved["linear.bias"])
    assert torch.allclose(found.head(row), expected, atol=1e-6)
    layers = load_file(written.folder / "1_WeightedLayerPooling" / "model.safetensors")["layer_weights"]
    assert layers.tolist() == [0, 0, 1, 1]
    settings = json.loads((written.folder / "sentence_bert_config.json").read_text())
    assert settings == {
        "max_seq_length": 20,
        "do_lower_case": False,
        "model_args": {"add_pooling_layer": False},
        "config_args": {"output_hidden_states": True},
    }
    pooling = json.loads((written.folder / "3_Pooling" / "config.json").read_text())
    modes = {key: value for key, value in pooling.items() if key.startswith("pooling_mode")}
    assert [key for key, value in modes.items() if value] == ["pooling_mode_mean_tokens"] and len(modes) == 6


def test_plain_modules_have_nothing_besides(tmp_path):
    assert write_modules(tmp_path, "cls", 3, 2, Interface()) is None
    found = read_modules(str(tmp_path))
    assert (found.pooling, found.head, found.token_weights, found.others) == ("cls", None, None, [])
    assert found.interface == Interface() and found.interface.prompt == ""
    assert len(json.loads((tmp_path / "modules.json").read_text())) == 2
    assert "model_args" not in json.loads((tmp_path / "sentence_bert_config.json").read_text())
    assert read_modules(str(tmp_path / "1_Pooling")) is None


POOLING = "3_Pooling/config.json"
BERT = "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("file", "changes", "others"),
    [
        (POOLING, {"pooling_mode_cls_token": True}, ["pooling cls and mean of averaged layers"]),
        (POOLING, {"pooling_mode": "mean"}, []),
        (POOLING, {"pooling_mode": ["mean"]}, []),
        (POOLING, {"pooling_mode": "max"}, ["pooling max of averaged layers"]),
        (POOLING, {"pooling_mode_mean_tokens": False}, []),  # none is the mean
        (POOLING, {"include_prompt": False}, ["WordWeights"]),
        (BERT, {"config_args": ...}, ["pooling mean of averaged layers"]),
        (BERT, {"do_lower_case": True}, ["do_lower_case"]),
        (BERT, {"transformer_task": "fill-mask"}, ["transformer of another task"]),
        (BERT, {"transformer_task": "feature-extraction"}, []),
        ("1_WeightedLayerPooling/config.json", {"layer_start": 1}, ["pooling layers by other weights"]),
        ("4_Dense/config.json", {"activation_function": "torch.nn.Softmax"}, ["Dense"]),
        ("4_Dense/config.json", {"use_residual": True}, ["Dense"]),
        ("4_Dense/config.json", {"module_output_name": "token_embeddings"}, ["Dense"]),
        ("4_Dense/config.json", {"module_input_name": "sentence_embedding"}, []),
    ],
)
def test_what_has_no_counterpart_is_named(file, changes, others, written):
    written.edit(file, **changes)
    assert written.read().others == others


def test_lengths_weights_and_orders_are_read_as_the_library_does(written):
    written.edit(BERT, max_seq_length=...)
    assert written.read().interface.max_length is None
    for longest, found in ((77, 77), (10**30, None), (1e9, None), (999_999_999, 999_999_999)):
        (written.folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": longest}))
        assert written.read().interface.max_length == found
    (written.folder / BERT).rename(written.folder / "sentence_xlm-roberta_config.json")
    written.edit("sentence_xlm-roberta_config.json", max_seq_length=9)
    assert written.read().interface.max_length == 9
    words = {"vocab": ["b", "B", "z"], "word_weights": {"b": 3.0, "a": 1.0}, "unknown_word_weight": ...}
    written.edit("2_WordWeights/config.json", **words)
    assert written.read().token_weights.tolist() == [3.0, 3.0, 1.0]
    written.edit("2_WordWeights/config.json", unknown_word_weight=0.5)
    assert written.read().token_weights.tolist() == [3.0, 3.0, 0.5]
    path = written.folder / "modules.json"
    listed = json.loads(path.read_text())
    path.write_text(json.dumps([*listed[:3], listed[4], listed[3], listed[5]]))
    assert written.read().others == ["order of modules"]
    path.write_text(json.dumps([{**listed[0], "path": "0_Transformer"}, *listed[1:]]))
    assert written.read().others == ["transformer in a folder of its own"]
    path.write_text(json.dumps([*listed, {"type": "mine.models.Own", "path": "6"}]))
    assert written.read().others == ["mine.Own"]
    path.write_text(json.dumps([one for one in listed if "Pooling" not in one["type"]]))
    assert "pooling none" in written.read().others
    path.write_text(json.dumps([{"path": ""}]))
    with pytest.raises(UserError, match="cannot be read: KeyError"):
        written.read()


@pytest.mark.parametrize(
    ("name", "makes"), [("Identity", nn.Identity), ("ReLU", nn.ReLU), ("GELU", nn.GELU), ("Tanh", nn.Tanh)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_module_is_a_linear_map_and_its_activation(name, makes, bias, tmp_path):
    write_modules(tmp_path, "cls", 4, 2, Interface())
    listed = json.loads((tmp_path / "modules.json").read_text())
    listed.append({"idx": 2, "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "2_Dense").mkdir()
    settings = DENSE | {"activation_function": f"torch.nn.modules.activation.{name}", "bias": bias}
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps(settings))
    linear = nn.Linear(4, 3, bias=bias)
    tensors = {f"linear.{key}": value.detach() for key, value in linear.named_parameters()}
    with pytest.raises(UserError, match="clearly convert FOLDER"):
        read_modules(str(tmp_path))
    save_file(tensors, tmp_path / "2_Dense" / "model.safetensors")
    row = torch.randn(5, 4)
    assert torch.allclose(read_modules(str(tmp_path)).head(row), makes()(linear(row)), atol=1e-6)


def test_a_static_table_has_a_tokenizer_that_cuts_nothing(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.backend_tokenizer.enable_padding()
    table = torch.arange(12.0).view(6, 2).T.contiguous().T  # not contiguous
    write_static(tmp_path, nn.Parameter(table), tokenizer, Interface(9))
    saved = load_file(tmp_path / "0_StaticEmbedding" / "model.safetensors")
    assert saved.keys() == {"embedding.weight"} and torch.equal(saved["embedding.weight"], table)
    content = json.loads((tmp_path / "0_StaticEmbedding" / "tokenizer.json").read_text())
    assert content["truncation"] is None and content["padding"] is None
    assert tokenizer.backend_tokenizer.truncation is not None  # that of the run is as it was
    (module,) = json.loads((tmp_path / "modules.json").read_text())
    assert module["type"].endswith(".StaticEmbedding") and module["path"] == "0_StaticEmbedding"
    names = weights_by_token([0.5] * 40, tokenizer)
    assert len(names) == 40 and list(names)[:2] == ["[PAD]", "[CLS]"] and "no token 39" in names


# -- sources and what stands beside them -------------------------------------


KEYS = (
    "format_version pooling kept_head max_length hidden_size normalize token_weights prompts default_prompt "
    "prompts_pooled dimensions step progress data tokenizer_hash heads versions recipe"
)


def test_an_export_says_all_that_is_asked_of_it(tmp_path):
    make_run(tmp_path)
    said = json.loads((export(tmp_path) / "clear.json").read_text())
    assert list(said) == KEYS.split() and (said["format_version"], said["hidden_size"]) == (1, 16)
    assert said["token_weights"] is False and said["prompts_pooled"] is True and said["dimensions"] == []


def test_which_folders_can_be_exported(tmp_path):
    make_run(tmp_path / "run", steps=(3, 5))
    run = tmp_path / "run"
    newest = run / "checkpoints" / "step-00000005"
    assert find_source(run, "latest") == find_source(run / "checkpoints", "latest") == (run, newest)
    assert find_source(run, "3") == (run, newest.with_name("step-00000003")) and find_source(newest, "3") == (
        run,
        newest,
    )
    loose = shutil.copytree(newest, tmp_path / "loose" / newest.name)
    assert find_source(loose, "latest") == (tmp_path / "loose", loose)
    assert find_source(tmp_path / "loose", "latest") == (tmp_path / "loose", loose)
    for step in ("4", "x", "-3"):
        with pytest.raises(UserError, match=f"no checkpoint of step '{step}'; there are: 3, 5, latest, best"):
            find_source(run, step)
    (loose / "state.json").unlink()
    with pytest.raises(UserError, match=r"step-00000005 is damaged.*Export another: clearly export RUN"):
        find_source(loose, "latest")
    (newest / "state.json").unlink()
    with pytest.raises(UserError, match=r"is damaged.*Choose another step"):
        find_source(run, "5")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="nothing to export in"):
        find_source(tmp_path / "empty", "latest")
    with pytest.raises(UserError, match="there are: none, latest, best"):
        find_source(tmp_path / "empty", "3")
    (run / "best").mkdir()
    (run / "best" / "modules.json").write_text("[]")
    for source, step in ((run, "best"), (run / "best", "latest")):
        with pytest.raises(UserError, match="is a sentence-transformers model, no export"):
            find_source(source, step)


def test_what_fails_in_the_middle_is_one_error_and_leaves_the_old_export(tmp_path, monkeypatch):
    make_run(tmp_path)
    out = export(tmp_path)
    before = (out / "clear.json").read_bytes()
    trial = tmp_path / "trial"
    assert export(tmp_path, trial=trial) == trial / "export" and (out / "clear.json").read_bytes() == before
    for raised, said in (
        (
            OSError(28, "No space left"),
            r"cannot write .*export: No space left\. Mend that, then give the same",
        ),
        (OSError("odd"), r"cannot write .*export: odd\. Mend that"),
        (RuntimeError("I/O (os error 5)"), r"cannot write .*: Input/output error\. Mend that"),
        (store.CheckpointError("not readable"), "^not readable$"),
    ):

        def fail(*_, raised=raised):
            raise raised

        monkeypatch.setattr(exports, "_write", fail)
        with pytest.raises(UserError, match=said):
            export(tmp_path)
        assert (out / "clear.json").read_bytes() == before
    monkeypatch.setattr(exports, "_write", lambda *_: os.listdir(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"cannot write .*elsewhere: No such .*\. Name another --out"):
        export(tmp_path, tmp_path / "other" / "elsewhere")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="exists and is not an export"):
        export(tmp_path, tmp_path / "file")


def test_weights_that_stay_keep_their_time_and_have_the_mode_of_other_files(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, text in ((old, "same"), (new, "same")):
        (folder / "head").mkdir(parents=True)
        folder.chmod(0o755)  # whatever the umask
        (folder / "model.safetensors").write_text(text)
        (folder / "head" / "model.safetensors").write_text(str(folder))
    for path in (*old.rglob("*.safetensors"), *new.rglob("*.safetensors")):
        path.chmod(0o600)
    os.utime(old / "model.safetensors", (5, 5))
    os.utime(old / "head" / "model.safetensors", (5, 5))
    _settle_weights(new, old)
    times = [(new / name / "model.safetensors").stat().st_mtime for name in (".", "head")]
    assert times[0] == 5 and times[1] > 5 and (old / "model.safetensors").stat().st_mtime == 5
    assert {path.stat().st_mode & 0o777 for path in new.rglob("*.safetensors")} == {0o644}
    assert {path.stat().st_mode & 0o777 for path in old.rglob("*.safetensors")} == {0o600}


def test_prompts_of_the_recipe_go_by_the_librarys_names_and_else_those_of_the_start_stay():
    start = {"max_length": None, "prompts": {"x": "y"}, "default_prompt": "x", "normalize": True}
    assert interface_of({"data": {}}, start, 9) == Interface(9, True, {"x": "y"}, "x")
    for prompts in ({}, {"anchor": ""}, None):
        assert interface_of({"data": {"prompts": prompts}}, start, 9).prompts == {"x": "y"}
    data = {"prompts": {"anchor": "q: ", "negative": "n: "}, "prompts_pooled": False}
    found = interface_of({"data": data}, start, 9)
    assert found == Interface(9, True, {"query": "q: ", "document": ""}, "query", False)
    answered = interface_of({"data": {"prompts": {"positive": "d: "}}}, {}, 9)
    assert answered == Interface(9, False, {"query": "", "document": "d: "}, "query", True)


def test_data_are_described_by_their_manifest(tmp_path):
    config = {"name": "x", "data": {"folder": str(tmp_path), "prepare": {"sources": ["embedded"]}}}
    manifest = {
        "unit": "record",
        "columns": ["text"],
        "splits": {"train": {"sequences": 3, "tokens": 9, "chunks": 1}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    about = {"folder": str(tmp_path), "sequences": 3, "tokens": 9, "unit": "record", "columns": ["text"]}
    assert _describe_data(config) == about | {"sources": ["embedded"]}
    sources = [{"source": "a"}, {"source": "b"}, {"source": "a"}]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"config": {"sources": sources}}))
    assert _describe_data(config)["sources"] == ["a", "b"]
    config["data"]["sets"] = [{"folder": "d/1"}, {"folder": "d/2"}]
    assert _describe_data(config) == {"folder": "d/1", "sources": ["d/1", "d/2"]}


def test_sums_are_of_every_file_but_the_card(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    for name in ("b", "a", "README.md", "1_Pooling/config.json"):
        (tmp_path / name).write_text(name)
    assert changed_files(tmp_path) is None
    write_sums(tmp_path)
    lines = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["1_Pooling/config.json", "a", "b"]
    (tmp_path / "README.md").write_text("ours")
    assert changed_files(tmp_path) == []
    (tmp_path / "a").write_text("other")
    (tmp_path / "b").unlink()
    assert changed_files(tmp_path) == ["a", "b"]
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  README.md\nbad\n\0  \0\n")
    assert changed_files(tmp_path) == ["SHA256SUMS", "\0"]


def test_weights_are_known_by_sizes_and_times_of_their_files(tmp_path):
    (tmp_path / "m" / "head").mkdir(parents=True)
    for name, time in (("model.safetensors", 1), ("head/pytorch_model.bin", 2), ("config.json", 3)):
        (tmp_path / "m" / name).write_text("x" * time)
        os.utime(tmp_path / "m" / name, ns=(time, time))
    assert weights_identity(tmp_path / "m") == f"{tmp_path}/m 2:2,1:1"
    content = {"source": weights_identity(tmp_path / "m"), "tasks": {"a": 1}}
    others = {"none": {"tasks": {}}, "gone": {"source": "/none 1:1"}, "bare": {"source": ...}}
    for name, changes in ({"good": {}} | others).items():
        kept = {key: value for key, value in (content | changes).items() if value is not ...}
        (tmp_path / f"{name}.json").write_text(json.dumps(kept))
    (tmp_path / "broken.json").write_text("{")
    assert evaluations_of(tmp_path / "m", tmp_path) == ([content], ["gone.json", "none.json"])


# -- cards and pushes ----------------------------------------------------------


@pytest.mark.parametrize("name", ["jane", "jane/", "/model", "a/b/c", ".a/b", "a/.b", "a b/c", ""])
def test_a_model_on_the_hub_has_an_owner_and_a_name(name):
    require_repository("jane/my.model-2_x")
    with pytest.raises(UserError, match="OWNER/NAME"):
        require_repository(name)


def test_the_card_of_the_hub_has_complete_figures_of_published_sets(tmp_path):
    (tmp_path / "README.md").write_text(
        '---\nlicense: mit\n---\n\n# A\n\n"PATH"\n\n## Technical Specifications\n\nlast\n'
    )
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    policy = {
        "recipe": {"name": "n"},
        "step": 1234,
        "versions": {"sentence-clear": "0.1"},
        "tokenizer_hash": "h",
    }

    def evaluation(name, complete, *values):
        tasks = {f"t{n}": {"metric": "cosine spearman", "value": value} for n, value in enumerate(values)}
        return {
            "evaluation": name,
            "pooling": "cls",
            "protocol": "p",
            "notes": ["n"],
            "complete": complete,
            "tasks": tasks,
        }

    given = [evaluation("sts", True, 71.256, None), evaluation("glue", True, 1.0)]
    given += [evaluation("own_sets", True, 2.0), evaluation("nanobeir", False, 3.0)]
    card = hub_card(tmp_path, "jane/m", policy, given)
    found = [
        (one.task_type, one.dataset_name, one.metric_type, one.metric_value) for one in card.data.eval_results
    ]
    assert found == [
        ("sentence-similarity", "t0", "cosine_spearman", 71.26),
        ("text-classification", "t0", "cosine_spearman", 1.0),
    ]
    text = card.text
    assert '"jane/m"' in text and "PATH" not in text and "| step | 1,234 |" in text and "Clearly 0.1" in text
    assert text.count("## Evaluation\n") == 1 and text.count("not comparable with published") == 1
    order = [
        text.index(part)
        for part in ("# A", "## Evaluation", "### sts", "### own_sets", "## Technical", "## More")
    ]
    assert order == sorted(order) and "| t1 | cosine spearman |  |" in text and "p. n.\n" in text
    assert hub_card(tmp_path, "jane/m", policy, given[2:]).data.eval_results is None
    assert "## Evaluation" not in hub_card(tmp_path, "jane/m", policy, []).text


def test_an_objective_a_corpus_and_scores_in_words():
    recipe = {"model": {"init": None}, "objective": {"name": "mlm", "mlm": {"weight": 1, "copies": 1}}}
    assert _objective(recipe, {}) == "from random weights by masked language modelling"
    recipe["objective"]["name"], recipe["augment"] = "retain+scored", {"spec": "none", "anchor": "crop"}
    recipe["model"]["init"] = "/home/jane/run"
    said = "masked language modelling and a loss between views of a sentence (objective `retain+scored`"
    assert _objective(recipe, {}) == f"from run by {said}, augmentation `crop` and `none`)"
    assert _corpus({"folder": "/a/b"}) == _corpus({"folder": "b"}) == "b"
    about = {
        "folder": "d",
        "sources": ["/x/a.txt", "hub:c/d"],
        "sequences": 1200,
        "unit": "record",
        "tokens": 34567,
    }
    assert _corpus(about) == "a.txt, hub:c/d: 1,200 sequences (record), 34.6k tokens"
    records = [{"step": step, "evaluation": {"partner_loss": 1.23456 * step}} for step in (0, 10, 5)]
    assert _scores(records, "untrained").splitlines()[0] == "| measure | untrained | step 10 |"
    assert _scores(records, "x").splitlines()[2].endswith("| 0 | 12.35 |")
    assert _scores(records[1:2], "x").splitlines()[0] == "| measure | step 10 |" and _scores([], "x") == ""


@pytest.fixture
def upload(tmp_path, monkeypatch):
    """An export that is ready to be sent, with a token."""
    make_run(tmp_path / "jane-doe" / "run")
    made = export(tmp_path / "jane-doe" / "run")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    return Upload(made, "jane/m", made.parent / "report")


@pytest.mark.parametrize("public", [True, False])
def test_an_upload_makes_the_repository_and_sends_the_files(public, upload, monkeypatch):
    with Hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        assert "jane/m/commit/" in upload.send(public)
        assert hub.visibility == {"jane/m": "public" if public else "private"}
        sent = hub.files["jane/m"]
    assert sent.keys() == upload.files.keys() and "SHA256SUMS" not in sent and "1_Pooling/config.json" in sent
    assert sent["README.md"] == str(upload.card).encode() and b"jane-doe" not in b"".join(sent.values())
    assert yaml.safe_load(sent["training_config.yaml"])["folder"] == "run"


def test_an_upload_that_is_refused_says_by_whom(upload, monkeypatch):
    with Hub(forbidden=("jane/m",)) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        with pytest.raises(
            UserError, match=rf"--push jane/m: {hub.endpoint} refuses \(403: You have no write"
        ):
            upload.send(False)
        assert not hub.files
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"cannot send to http://127\.0\.0\.1:9"):
        upload.send(False)
    monkeypatch.setattr("pretrain.export.push.get_token", lambda: None)
    with pytest.raises(UserError, match="no token"):
        upload.send(False)
    recipe = Path(upload.files["model.safetensors"]).parent / "training_config.yaml"
    recipe.write_text("name: [")
    with pytest.raises(UserError, match=r"training_config\.yaml is not YAML"):
        Upload(recipe.parent, "jane/m", Path("none"))
    recipe.unlink()
    with pytest.raises(UserError, match=r"lacks training_config\.yaml; export it again"):
        Upload(Path(upload.files["model.safetensors"]).parent, "jane/m", Path("none"))
