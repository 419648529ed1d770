"""A model that is not there, or cannot be read, is one message, at once, and runs no code of strangers."""

import json
import shutil
import socket

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from augment.core.errors import AugmentationError, CannotLoad
from augment.core.pretrained import pretrained, require_source
from augment.neural.models import load_masked_lm
from finetune.encoders.embed import load_model
from finetune.encoders.models import open_model
from finetune.encoders.source import resolve
from finetune.tuning.labelled import open_source
from pretrain.commands.convert import convert
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.data.tokenizer import adopt_tokenizer
from pretrain.model.encoder import load_encoder
from pretrain.start.encoder import check_sources


@pytest.fixture
def no_network(monkeypatch):
    """Any attempt to reach a host fails the test."""

    def refuse(*arguments, **options):
        raise AssertionError(f"asked the network: {arguments[:1]}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


NO_HUB_NAMES = (
    "runs/nowhere ./nowhere /no/where nowhere/ a/b/c ../x ~/nothing run/export here/nowhere nowhere/best"
)


@pytest.mark.parametrize("name", [*NO_HUB_NAMES.split(), "a b"])
def test_what_can_only_be_a_folder_is_not_looked_for_on_the_hub(name, no_network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for load in (
        open_model,
        lambda name: load_model(resolve(name)),
        load_masked_lm,
        lambda name: adopt_tokenizer(name, 64),
        lambda name: check_sources(load_config(None, {"init": name})),
    ):
        kind = AugmentationError if load is load_masked_lm else UserError
        with pytest.raises(kind, match="there is no folder"):
            load(name)


@pytest.mark.parametrize(
    "name", ["bert-base-uncased", "princeton-nlp/sup-simcse-bert-base-uncased", "x" * 300, "owner/a.b_c-d"]
)
def test_a_name_that_a_hub_can_have_is_left_to_it(name):
    require_source(name)


def test_a_missing_folder_names_the_nearest_and_a_file_is_no_model(tmp_path):
    (tmp_path / "clear_micro").mkdir()
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(CannotLoad, match=r"did you mean \S*/clear_micro\?"):
        require_source(tmp_path / "clear_mikro")
    with pytest.raises(CannotLoad, match="is a file"):
        require_source(tmp_path / "model.safetensors")


FAULTS = "truncated, empty, pickled, pickled and broken, bad config, deep config, bad tokenizer"


@pytest.fixture(params=FAULTS.split(", "))
def broken(request, folders, tmp_path):
    """A model's folder with one fault, and what the message must say."""
    folder = tmp_path / "model"
    shutil.copytree(folders["bert"], folder)
    weights = folder / "model.safetensors"
    if request.param == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif request.param == "empty":
        weights.write_bytes(b"")
    elif request.param.startswith("pickled"):
        model = AutoModelForMaskedLM.from_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        weights.unlink()
        if "broken" in request.param:
            (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    elif request.param == "bad config":
        (folder / "config.json").write_bytes(b"\xff\xfe{")
    elif request.param == "deep config":
        (folder / "config.json").write_text("[" * 100_000)
    else:
        (folder / "tokenizer.json").write_text("{}")
    word = {
        "truncated": "damaged",
        "empty": "damaged",
        "pickled": "pickled weights alone",
        "pickled and broken": "pickled weights alone",
    }.get(request.param, "model")
    return folder, word, AutoTokenizer.from_pretrained(folders["bert"])


def test_a_broken_model_is_one_message_whoever_opens_it(broken, no_network):
    folder, word, tokenizer = broken
    for load in (open_model, load_masked_lm, lambda folder: load_encoder(folder, tokenizer, "mean")):
        try:
            load(folder)
        except (UserError, AugmentationError) as error:
            assert word in str(error) and len(str(error).splitlines()) < 4, error
        else:
            assert word == "model"  # a broken tokenizer is none of load_encoder's business


@pytest.mark.parametrize("pickled", ["0_Transformer", "2_Dense"])
def test_pickled_weights_of_a_module_of_sentence_transformers_are_refused(folders, tmp_path, pickled):
    width = AutoConfig.from_pretrained(folders["bert"]).hidden_size
    modules = [Transformer(folders["bert"]), Pooling(width), Dense(width, 8)]
    model = SentenceTransformer(modules=modules, device="cpu")
    model.save_pretrained(str(tmp_path), create_model_card=False)
    moved = tmp_path / "0_Transformer"
    if not moved.exists():  # older versions gave the encoder a folder of its own
        moved.mkdir()
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
            (tmp_path / name).rename(moved / name)
        listed = json.loads((tmp_path / "modules.json").read_text())
        listed[0]["path"] = moved.name
        (tmp_path / "modules.json").write_text(json.dumps(listed))
    whole = open_model(tmp_path).encode(["A text."])
    weights = tmp_path / pickled / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    with pytest.raises(UserError, match=rf"pickled weights alone \({pickled}/pytorch_model.bin\)"):
        open_model(tmp_path)
    convert(tmp_path)
    assert np.array_equal(open_model(tmp_path).encode(["A text."]), whole)


def test_a_name_with_a_tilde_is_a_folder_at_home(folders, tmp_path, monkeypatch):
    shutil.copytree(folders["bert"], tmp_path / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    tokenizer = AutoTokenizer.from_pretrained(folders["bert"])
    wanted = open_model(folders["bert"]).encode(["A text."])
    assert np.array_equal(open_model("~/model").encode(["A text."]), wanted)
    load_model(resolve("~/model"))
    open_source("~/model")
    load_masked_lm("~/model")
    load_encoder("~/model", tokenizer, "mean")
    adopt_tokenizer("~/model", 64)
    config = load_config(None, {"init": "~/model"})
    check_sources(config)
    assert config.model.init == str(tmp_path / "model")
    with pytest.raises(CannotLoad, match="there is no folder"):
        require_source("~no-such-user/model")


def test_code_in_a_models_folder_is_never_run(folders, tmp_path, no_network):
    folder = tmp_path / "model"
    shutil.copytree(folders["bert"], folder)
    config = (folder / "config.json").read_text()
    auto = (
        '{"auto_map": {"AutoConfig": "evil.Config", "AutoModelForMaskedLM": "evil.Model"}, '
        '"model_type": "evil-type", '
    )
    (folder / "config.json").write_text(
        auto + config.lstrip().removeprefix("{").replace('"model_type": "bert",', "")
    )
    (folder / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\nclass Model: pass\n"
    )
    with pytest.raises(UserError):
        open_model(folder)
    with pytest.raises(CannotLoad):
        from transformers import AutoConfig

        pretrained(AutoConfig, folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", b'{"pooling": "cls"}', b"[" * 100_000])
def test_a_damaged_export_says_so(folders, tmp_path, content):
    folder = tmp_path / "export"
    shutil.copytree(folders["bert"], folder)
    (folder / "clear.json").write_bytes(content)
    for load in (open_model, resolve):
        with pytest.raises(UserError, match=r"clear\.json is damaged .*python -m pretrain\.export"):
            load(folder)
