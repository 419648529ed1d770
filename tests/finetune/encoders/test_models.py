"""Every kind of model under one interface: the vectors are the model's own, mistakes are one message."""

import json
import math
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from model_folders import (
    SENTENCES,
    albert,
    make_tokenizer,
    padded,
    save_bert,
    save_guest,
    save_prompted,
    save_run,
)
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    LayerNorm,
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
)
from transformers import AutoModel, AutoTokenizer, BertModel

from finetune.encoders.embed import PackedModel
from finetune.encoders.models import open_model
from finetune.encoders.padded import PaddedModel
from finetune.encoders.source import ModelSource, cached_folder, kind_of, reach_hub, resolve
from finetune.results import Evaluation
from pretrain.benchmarks.distinct import distinct
from pretrain.commands.convert import convert
from pretrain.common.errors import UserError
from pretrain.export.sentence_transformers import read_modules


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def run_folder(hugging_face, tmp_path_factory):
    """A run of ours, trained for cls pooling, with an export."""
    return save_run(hugging_face, tmp_path_factory.mktemp("runs") / "mine", "cls")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_hugging_face_folder(hugging_face, pooling, capsys):
    model = open_model(hugging_face, pooling)
    assert (model.pooling, model.trained_pooling, model.run) == (pooling, None, None)
    assert model.source.folder == hugging_face
    np.testing.assert_allclose(model.encode(SENTENCES), padded(hugging_face, pooling), atol=2e-5)
    assert model.remark is None and "which pooling" not in capsys.readouterr().err
    assert (
        open_model(hugging_face).pooling == "mean"
        and "does not say which pooling it was trained with" in capsys.readouterr().err
    )
    open_model(hugging_face, quiet=True)
    assert "which pooling" not in capsys.readouterr().err


def test_products_in_bfloat16(hugging_face, tmp_path):
    exact, rounded = (open_model(hugging_face, "mean", precision=name) for name in ("fp32", "bf16"))
    a, b = exact.encode(SENTENCES), rounded.encode(SENTENCES)
    assert b.dtype == np.float32 and 0 < np.abs(a - b).max() < 0.05
    np.testing.assert_array_equal(rounded.encode_poolings(SENTENCES, ["mean"])["mean"], b)
    assert Evaluation.of("sts", rounded, "").notes == ["vectors computed in bf16"]
    assert Evaluation.of("sts", exact, "").notes == []
    with pytest.raises(UserError, match="makes its vectors itself; leave the flag out"):
        open_model(lambda texts: np.ones((len(texts), 2)), precision="bf16")
    with pytest.raises(UserError, match="no precision 'fp16'; choose fp32 or bf16"):
        open_model(hugging_face, "mean", precision="fp16")


def with_pooler(bert, folder):
    """The same encoder with a trained pooler, as SimCSE's authors publish theirs: no masked-language head."""
    shutil.copytree(bert, folder)
    torch.manual_seed(2)
    model = BertModel.from_pretrained(bert, add_pooling_layer=True)
    torch.nn.init.normal_(model.pooler.dense.weight, std=0.3)
    torch.nn.init.normal_(model.pooler.dense.bias, std=0.3)
    model.save_pretrained(folder)
    return model.eval()


def test_the_pooler_that_a_checkpoint_brings(hugging_face, tmp_path):
    reference = with_pooler(hugging_face, tmp_path / "simcse")
    model = open_model(tmp_path / "simcse", "pooler")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "simcse")
    with torch.no_grad():
        expected = reference(**tokenizer(SENTENCES, padding=True, return_tensors="pt")).pooler_output.numpy()
    assert model.pooling == "pooler"
    assert model.trained_pooling is model.remark is model.encode_poolings is None
    np.testing.assert_allclose(model.encode(SENTENCES), expected, atol=1e-5)
    cls = open_model(tmp_path / "simcse", "cls")
    assert cls.head is None and np.abs(cls.encode(SENTENCES) - expected).max() > 0.1
    with pytest.raises(UserError, match="has no weights of a pooler"):
        open_model(hugging_face, "pooler")
    with pytest.raises(UserError, match="runs padded only"):
        open_model(albert(tmp_path / "albert"), "pooler")


def test_a_type_that_runs_padded_only(tmp_path):
    folder = albert(tmp_path)
    model = open_model(folder, "cls")
    np.testing.assert_allclose(model.encode(SENTENCES), padded(folder, "cls"), atol=2e-5)
    both = model.encode_poolings(SENTENCES, ["mean", "cls"])
    for pooling, vectors in both.items():
        np.testing.assert_allclose(vectors, padded(folder, pooling), atol=2e-5)
    model, transformer = open_model(folder, "first-last"), AutoModel.from_pretrained(folder).eval()
    for sentence, vector in zip(SENTENCES, model.encode(SENTENCES)):
        encoded = AutoTokenizer.from_pretrained(folder)(sentence, return_tensors="pt")
        with torch.no_grad():
            states = transformer(**encoded, output_hidden_states=True).hidden_states
        expected = (states[1] + states[-1]).mean(1)[0] / 2
        np.testing.assert_allclose(vector, expected, atol=2e-5)


def test_what_a_type_that_runs_padded_cuts_is_counted(tmp_path):
    folder = albert(tmp_path)
    model, short = open_model(folder, "cls"), open_model(folder, "cls", max_length=8)
    texts = ["a man rides", " ".join(["guitar"] * 20), " ".join(["cat"] * 100)]
    assert (model.longest, short.longest) == (64, 8)
    assert (model.count_cut(texts), short.count_cut(texts)) == (1, 2)


@pytest.mark.parametrize(("limit", "longest"), [(None, None), (math.inf, None), (9, 9)])
def test_a_guest_without_a_limit_cuts_nothing(limit, longest):
    guest = PaddedModel(lambda pooling: SimpleNamespace(max_seq_length=limit, tokenizer="its"), "mean", 8)
    assert (guest.longest, guest.tokenizer) == (longest, None if longest is None else "its")


def test_run_folder_and_export(run_folder, capsys):
    from_run, from_export = open_model(run_folder), open_model(run_folder / "export")
    assert f"{run_folder}: weights from {run_folder / 'export'} (" in capsys.readouterr().err
    for model in (from_run, from_export):
        assert (model.pooling, model.trained_pooling, model.remark) == ("cls", "cls", None)
        assert (model.run, model.source.folder) == (run_folder, run_folder / "export")
    np.testing.assert_array_equal(from_run.encode(SENTENCES), from_export.encode(SENTENCES))
    own = SentenceTransformer(str(run_folder / "export"), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(from_run.encode(SENTENCES), own, atol=2e-5)


@pytest.mark.parametrize(
    "prompts,default,include_prompt",
    [
        (None, None, True),
        (None, "document", False),
        ({"query": "a man ", "passage": "the cat "}, "query", True),
        ({"STS": "cats bark "}, "STS", False),
        ({"query": None, "document": None, "corpus": "cats bark "}, "corpus", True),
    ],
)
def test_queries_and_documents_have_the_prompts_of_sentence_transformers(
    hugging_face, tmp_path, monkeypatch, prompts, default, include_prompt
):
    folder = save_prompted(hugging_face, tmp_path / "model", prompts, default, include_prompt)
    library = SentenceTransformer(str(folder), device="cpu")
    expected = [one(SENTENCES) for one in (library.encode, library.encode_query, library.encode_document)]
    monkeypatch.setenv("CLEAR_VECTORS", str(tmp_path / "kept"))
    for ours in (open_model(folder), open_model(folder)):  # encoded, and kept
        for one, vectors in zip((ours.encode, ours.encode_query, ours.encode_document), expected):
            np.testing.assert_allclose(one(SENTENCES), vectors, atol=2e-5)
        if include_prompt:
            vectors = library.encode(SENTENCES, prompt="dogs ")
            np.testing.assert_allclose(ours.encode(SENTENCES, "dogs "), vectors, atol=2e-5)
        else:
            with pytest.raises(UserError, match="leaves prompts out of its mean"):
                ours.encode(SENTENCES, "dogs ")


def test_a_pickled_head_is_refused_and_can_be_converted(hugging_face, tmp_path):
    folder = save_guest(hugging_face, tmp_path / "st", "mean", Dense(32, 8))
    expected, head = open_model(folder).encode(SENTENCES), folder / "2_Dense"
    torch.save(load_file(head / "model.safetensors"), head / "pytorch_model.bin")
    (head / "model.safetensors").unlink()
    for read in (open_model, read_modules):  # the second as of a name of the hub
        with pytest.raises(UserError, match=r"2_Dense.* can run code.* clearly convert"):
            read(str(folder))
    convert(folder)
    np.testing.assert_array_equal(open_model(folder).encode(SENTENCES), expected)


def test_no_vectors_are_kept_where_the_folder_is_none(run_folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEAR_VECTORS", "none")
    assert open_model(run_folder).kept_vectors is None
    assert not list(tmp_path.iterdir())


def test_a_pooling_it_was_not_trained_for_is_said_aloud(run_folder, capsys):
    model = open_model(run_folder, "mean")
    remark = f"{run_folder} was trained with cls pooling and is evaluated with mean pooling"
    assert model.remark == remark and f"note: {remark}" in capsys.readouterr().err
    np.testing.assert_allclose(model.encode(SENTENCES), padded(run_folder / "export", "mean"), atol=2e-5)


PROMPTS = {"query": "cats : ", "document": "the man "}


@pytest.mark.parametrize(
    "pooling,after,settings,packed",
    [
        ("mean", [Normalize], {"longest": 7}, True),  # as all-MiniLM-L6-v2
        ("cls", [], {"prompts": PROMPTS, "default_prompt_name": "query"}, True),
        ("mean", [lambda: Dense(32, 5), Normalize], {}, True),
        ("mean", [lambda: Dense(32, 8, bias=False, activation_function=torch.nn.Identity())], {}, True),
        (("cls", "mean"), [], {}, "pooling cls and mean"),
        ("max", [], {"prompts": PROMPTS, "default_prompt_name": "document"}, "pooling max"),
        ("cls", [lambda: Dense(32, 5, activation_function=torch.nn.SiLU())], {}, "Dense"),
        ("mean", [Normalize, lambda: Dense(32, 5)], {}, "order of modules"),
        ("mean", [lambda: LayerNorm(32)], {}, "sentence_transformers.LayerNorm"),
    ],
)
def test_a_sentence_transformers_folder_has_its_own_vectors(
    hugging_face, tmp_path, capsys, pooling, after, settings, packed
):
    torch.manual_seed(3)
    folder = save_guest(hugging_face, tmp_path / "st", pooling, *(make() for make in after), **settings)
    reference, model = SentenceTransformer(str(folder), device="cpu"), open_model(folder)
    assert (model.pooling, model.trained_pooling, model.source.folder) == ("own modules", None, folder)
    expected = reference.encode(SENTENCES)
    rounding = {"atol": 1e-6 * np.linalg.norm(expected, axis=1).max()}
    np.testing.assert_allclose(model.encode(SENTENCES), expected, **rounding)
    for name in reference.prompts:
        found = model.encode(SENTENCES, model.prompts.get(name, ""))
        np.testing.assert_allclose(found, reference.encode(SENTENCES, prompt_name=name), **rounding)
    assert (
        f"runs padded, which takes longer: packing does not know its {packed}" in capsys.readouterr().err
    ) is not (packed is True)
    assert isinstance(model.runs, PackedModel) is (packed is True)
    reference.max_seq_length = 5
    cut = open_model(folder, max_length=5).encode(SENTENCES)
    np.testing.assert_allclose(cut, reference.encode(SENTENCES), **rounding)
    with pytest.raises(UserError, match="brings its own pooling"):
        open_model(folder, "cls")


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_mean_leaves_prompts_out_where_the_model_says_so(hugging_face, tmp_path, pooling):
    modules = [Transformer(str(hugging_face)), Pooling(32, pooling, include_prompt=False)]
    prompts = {"prompts": PROMPTS, "default_prompt_name": "query"}
    SentenceTransformer(modules=modules, device="cpu", **prompts).save(str(tmp_path))
    expected = SentenceTransformer(str(tmp_path), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(open_model(tmp_path).encode(SENTENCES), expected, atol=5e-6)


def test_static_embeddings(tmp_path):
    tokenizer = make_tokenizer()
    table = np.random.RandomState(0).randn(len(tokenizer), 8).astype(np.float32)
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table)], device="cpu").save(
        str(tmp_path)
    )
    model = open_model(tmp_path, max_length=4)
    ids = tokenizer(SENTENCES[4], add_special_tokens=False)["input_ids"]
    np.testing.assert_allclose(model.encode(SENTENCES)[4], table[ids].mean(0), atol=1e-6)
    assert model.max_length is None  # reads whole texts: there is no limit to set
    assert math.isinf(SentenceTransformer(str(tmp_path)).max_seq_length)


def test_texts_are_cut_where_a_protocol_says_so(hugging_face, tmp_path):
    cut, words = open_model(hugging_face, "cls", max_length=5), "dogs bark at night and cats do not"
    assert cut.max_length == 5
    whole = open_model(hugging_face, "cls")
    # with [CLS] and [SEP]
    np.testing.assert_allclose(cut.encode([words]), whole.encode(["dogs bark at"]), atol=2e-5)
    assert np.abs(cut.encode([words]) - whole.encode([words])).max() > 1e-3
    assert open_model(hugging_face, "cls", max_length=512).encode([words]) == pytest.approx(
        whole.encode([words])
    )
    transformer = Transformer(str(hugging_face))
    SentenceTransformer(modules=[transformer, Pooling(32, "cls")], device="cpu").save(str(tmp_path / "st"))
    model = open_model(tmp_path / "st", max_length=5)
    assert model.max_length == 5
    np.testing.assert_allclose(model.encode([words]), cut.encode([words]), atol=2e-5)


def embed(sentences):
    return np.array([[len(sentence), 1.0] for sentence in sentences])


def test_functions(tmp_path, monkeypatch):
    (tmp_path / "encoder_of_mine.py").write_text(
        "import numpy\ndef embed(texts):\n    return numpy.eye(len(texts), 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    for source, name in (
        (embed, "embed"),
        *(2 * (text,) for text in ("encoder_of_mine.py:embed", "encoder_of_mine:embed")),
    ):
        model = open_model(source)
        assert (model.name, model.pooling, model.run, model.remark) == (name, "function", None, None)
        assert model.encode(["a", "b"]).dtype == np.float32 and len(model.encode(SENTENCES[:2])) == 2
    with pytest.raises(UserError, match="is a function"):
        open_model(embed, "cls")
    with pytest.raises(UserError, match=r"there is no file .*other\.py"):
        open_model("other.py:embed")
    with pytest.raises(UserError, match="no_such_module cannot be imported"):
        open_model("no_such_module:embed")
    with pytest.raises(UserError, match="encode"):
        open_model("encoder_of_mine.py:encode")
    sys.modules.pop("encoder_of_mine", None)


def test_each_distinct_sentence_is_encoded_once():
    calls = []

    def once(sentences):
        calls.append(list(sentences))
        return embed(sentences)

    vectors = open_model(once).encode(SENTENCES)
    assert calls == [list(dict.fromkeys(SENTENCES))]
    np.testing.assert_array_equal(vectors, embed(SENTENCES))
    np.testing.assert_array_equal(open_model(once).encode(iter(SENTENCES)), vectors)


def test_a_function_may_give_tensors():
    made = torch.tensor([[1.5, 2.0], [0.25, 1.0]], dtype=torch.bfloat16, requires_grad=True)
    vectors = open_model(lambda texts: made).encode(["a", "b"])
    assert vectors.dtype == np.float32 and vectors.tolist() == [[1.5, 2.0], [0.25, 1.0]]


def test_half_of_a_surrogate_pair_is_named():
    with pytest.raises(UserError, match=r"sentence 1 has half of a surrogate pair.* 'b \\ud83d c'"):
        open_model(embed).encode(["a \U0001f642", "b \ud83d c"])


@pytest.mark.parametrize(
    "function,message",
    [
        (
            lambda s: np.full((len(s), 2), np.nan),
            "NaN, infinity or an .* in 2 of 2 vectors, first in that of 'a'",
        ),
        (lambda s: np.zeros((len(s) + 1, 2)), r"shape \(3, 2\) for 2 sentences"),
        (lambda s: np.zeros(len(s)), r"shape \(2,\) for 2 sentences"),
        (lambda s: np.array([["a"], [None]], dtype=object), "gave no array of numbers"),
        (lambda s: [[1.0], [1.0, 2.0]], "gave no array of numbers"),
        (lambda s: np.full((len(s), 2), 1e39), "infinity or an infinite length in 2 of 2"),
        (
            lambda s: np.full((len(s), 2), 1e37),
            "NaN, infinity or an .* in 2 of 2 vectors, first in that of 'a'",
        ),
    ],
)
def test_bad_vectors_are_one_message(function, message):
    with pytest.raises(UserError, match=message):
        distinct(function, ["a", "b", "a"], "model")


def test_folders_without_a_model(tmp_path, hugging_face):
    with pytest.raises(UserError, match="there is no folder"):
        open_model(tmp_path / "none")
    with pytest.raises(UserError, match=r"no model there; a model folder has a config\.json"):
        open_model(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("name: x\n")
    with pytest.raises(UserError, match=r"without an export yet.*clearly export"):
        open_model(run)
    with pytest.raises(UserError, match="mean"):
        open_model(hugging_face, "maen")
    broken = tmp_path / "st"
    broken.mkdir()
    (broken / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": "", "type": "no.such.Module"}])
    )
    with pytest.raises(UserError, match="cannot load the model"):
        open_model(broken)
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / "config.json").write_text('{"model_type": "none such"}')
    with pytest.raises(UserError, match="cannot load"):
        open_model(unknown)


def test_a_folder_without_tokenizer(hugging_face, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((hugging_face / name).read_bytes())
    with pytest.raises(UserError, match=f"{tmp_path} holds no tokenizer"):
        open_model(tmp_path, "cls")


def test_the_hub_is_asked_once_and_a_cached_model_is_taken(tmp_path, monkeypatch):
    (tmp_path / "modules.json").touch()
    there, asked = {}, []

    def cached_file(name, file, **how):
        asked.append((name, file, how.get("local_files_only", False)))
        if name == "owner/broken":
            raise OSError("not there")
        return there.get(file)

    monkeypatch.setattr("transformers.utils.cached_file", cached_file)
    monkeypatch.setattr("finetune.encoders.source.hub_fault", lambda: "the hub does not answer")
    for name in ("owner/name", "owner/broken"):
        with pytest.raises(UserError, match=f"no run or folder {name} here, .* the hub does not answer"):
            kind_of(name)
    assert asked[:2] == [("owner/name", "modules.json", True), ("owner/name", "config.json", True)]
    there["config.json"] = str(tmp_path / "config.json")
    assert cached_folder("owner/name") == tmp_path and kind_of("owner/name") == "hub"
    there["modules.json"] = str(tmp_path / "modules.json")
    assert cached_folder("owner/name") == tmp_path and kind_of("owner/name") == "sentence-transformers"
    there.clear()
    monkeypatch.setattr("finetune.encoders.source.hub_fault", lambda: "")
    assert kind_of("owner/name") == "hub" and not reach_hub("owner/name", "do so")
    monkeypatch.setattr("finetune.encoders.source.hub_fault", lambda: "no")
    with pytest.raises(UserError, match=r"cannot load owner/name: no\. Without network, do so; HF_HUB_OFF"):
        reach_hub("owner/name", "do so")


def test_the_run_of_a_folder_is_that_of_its_best_or_its_export(hugging_face, run_folder, tmp_path):
    run = shutil.copytree(run_folder, tmp_path / "run")
    shutil.copytree(run / "export", run / "best")
    (run / "other").symlink_to(hugging_face)
    assert resolve(run / "best").run == resolve(run / "export").run == resolve(run).run == run
    assert resolve(run / "other").run is None and resolve(hugging_face).run is None
    assert resolve(run).location == str(run / "best") and resolve(run).trained_pooling == "cls"
    (run / "config.yaml").unlink()
    assert resolve(run / "export").run is None and resolve(hugging_face).trained_pooling is None
    assert ModelSource("x", "owner/name").identity == "x" and ModelSource("x", "owner/name").folder is None
    assert resolve(hugging_face).identity != resolve(run / "export").identity


def test_documents_that_are_cut_are_counted_to_the_token(hugging_face, tmp_path):
    model, short = open_model(hugging_face, "cls", max_length=6), " ".join(["cat"] * 4)
    assert [model.count_cut([text]) for text in (short, f"{short} cat", "cat")] == [0, 1, 0]
    prompted = open_model(save_prompted(hugging_face, tmp_path / "p"), max_length=7)
    assert prompted.document_prompt == "a man rides "  # of three tokens
    assert [prompted.count_cut([" ".join(["cat"] * n)]) for n in (2, 3)] == [0, 1]
    function = open_model(embed)
    assert function.count_cut([short * 99]) == 0 and function.longest is None
    assert (function.identity, function.head, function.encoder, function.tokenizer) == ("embed", *[None] * 3)
    assert repr(model) == f"<{hugging_face}: pooling cls, fp32>" and function.prompts == {}


def test_words_pooling_needs_a_model_that_was_trained_so(hugging_face, run_folder):
    for folder in (hugging_face, run_folder):
        with pytest.raises(UserError, match=r"--pooling words: .* was not trained so; clearly export --stat"):
            open_model(folder, "words")


def test_kinds(hugging_face, run_folder):
    assert kind_of(str(hugging_face)) == "hugging face" and kind_of(str(run_folder / "export")) == "ours"


def test_what_cannot_be_imported_is_one_message(tmp_path):
    (tmp_path / "broken.py").write_text("def embed(:\n")
    (tmp_path / "fails.py").write_text("raise RuntimeError('no licence')\n")
    for source, match in (
        (f"{tmp_path}/broken.py:embed", "SyntaxError"),
        (f"{tmp_path}/fails.py:embed", "no licence"),
        ("./models:v2", "no such folder"),
        (":embed", "no such folder"),
        ("no_such_module:f", "cannot be imported"),
    ):
        with pytest.raises(UserError, match=match):
            open_model(source)
