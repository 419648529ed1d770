"""Exports: what transformers and sentence-transformers make of them is what was trained."""

import json
import math
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from export_helpers import make_run
from run_helpers import write_corpus
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from finetune.judge.heldout import make_test, training_sources
from pretrain.checkpoint.store import latest, read_json, read_tensors
from pretrain.commands.export import main
from pretrain.common.cli import run
from pretrain.common.errors import UserError
from pretrain.config.data import data_config
from pretrain.config.recipe import validate_config
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.export.folder import _describe_data, _rebuild, export, interface_of, read_policy
from pretrain.export.model_card import _objective, cited
from pretrain.export.sentence_transformers import layer_weights
from pretrain.model.encoder import load_encoder
from pretrain.model.pooling import SECOND_STATE
from pretrain.telemetry.metrics_file import to_line

SENTENCES = [
    "a bird sings",
    "the old roof",
    "nobody listens to it while a bird builds its nest under the roof",
    "it",
]


@pytest.mark.parametrize(("of_start", "longest"), [(None, 20), (8, 8), (64, 20)])
def test_an_export_reads_as_many_tokens_as_its_start_where_the_encoder_takes_them(of_start, longest):
    assert interface_of({"data": {}}, {"max_length": of_start}, 20).max_length == longest


@pytest.mark.parametrize("layers", [2, 4])
def test_weights_that_do_not_fit_their_config_are_refused(tmp_path, layers):
    """One that the config lacks, or a layer that would start at random values."""
    make_run(tmp_path, layers=3)
    checkpoint = latest(tmp_path / "checkpoints")
    content = read_json(checkpoint)
    content["hugging_face"]["config"]["num_hidden_layers"] = layers
    with pytest.raises(UserError, match=r"do not fit their config .*layer\.(2|3)\."):
        _rebuild(checkpoint, content)


@pytest.mark.parametrize("max_seq_length", [None, 8])
def test_raw_text_is_encoded_as_clean_text(tmp_path, max_seq_length):
    """Of a run whose tokenizer does not clean itself, as those of earlier data: the export does."""
    from sentence_transformers import SentenceTransformer

    make_run(tmp_path)
    out = export(tmp_path)
    assert tokenizer_hash(out) == tokenizer_hash(tmp_path / "data")
    model = SentenceTransformer(str(out), device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(out)
    if max_seq_length:
        model.max_seq_length = max_seq_length
    raw = [
        "\n  a bird\tsings ",
        "the\u00a0old\r\nroof",
        "\ufeffno\u00adbody listens\u200bto it\x00\n\nwhile",
        "\u3000it\u2028",
    ]
    cleaned = ["a bird sings", "the old roof", "nobody listens to it while", "it"]
    assert tokenizer(raw)["input_ids"] == tokenizer(cleaned)["input_ids"]
    assert all(tokenizer.unk_token_id not in row for row in tokenizer(raw)["input_ids"])
    assert np.array_equal(model.encode(raw), model.encode(cleaned))


def embed(encoder, tokenizer) -> np.ndarray:
    rows = [tokenizer(sentence)["input_ids"] for sentence in SENTENCES]
    with torch.no_grad():
        ids = torch.tensor([token for row in rows for token in row])
        return encoder.embed(ids, torch.tensor([len(row) for row in rows])).numpy()


def worst(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


@pytest.mark.parametrize("pooling", list(SECOND_STATE))
@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_sentence_transformers_encodes_as_trained(tmp_path, kind, pooling):
    from sentence_transformers import SentenceTransformer

    encoder, tokenizer = make_run(tmp_path, kind, pooling)
    out = export(tmp_path)
    assert out == tmp_path / "export"
    assert (
        len({path.stat().st_mode for path in out.iterdir() if path.is_file()}) == 1
    )  # read by the same people
    model = SentenceTransformer(str(out), device="cpu")
    assert model.max_seq_length == 20
    assert getattr(model[0].auto_model, "pooler", None) is None  # no weights made up, no warning of them
    expected = embed(encoder, tokenizer)
    assert worst(model.encode(SENTENCES), expected) < 1e-5
    assert worst(expected[0], expected[1]) > 0.01
    again = load_encoder(out, AutoTokenizer.from_pretrained(out), pooling).eval()  # --init
    assert worst(embed(again, tokenizer), expected) < 1e-6


def by_hand(out: Path, rows: np.ndarray) -> np.ndarray:
    """tanh(W x + b) in float64, of the weights that the run trained, by their names there."""
    heads = load_file(out / "heads.safetensors")
    weight, bias = (
        heads[f"terms.simcse.head.layers.0.{name}"].double().numpy() for name in ("weight", "bias")
    )
    return np.tanh(rows.astype(np.float64) @ weight.T + bias)


@pytest.mark.parametrize("pooling", ["cls", "first-last"])
def test_a_kept_head_is_part_of_the_sentence_vector(tmp_path, pooling, capsys):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    from finetune.encoders.models import open_model

    encoder, tokenizer = make_run(
        tmp_path, pooling=pooling, simcse={"keep_head": True, "hard_negatives": True}
    )
    out = export(tmp_path)
    pooled = embed(encoder, tokenizer)
    expected = by_hand(out, pooled)
    assert worst(expected, pooled) > 0.1
    model = open_model(out)
    assert worst(model.encode(SENTENCES), expected) < 1e-6
    own = SentenceTransformer(str(out), device="cpu")
    assert worst(own.encode(SENTENCES), model.encode(SENTENCES)) < 1e-6
    policy, kinds = (
        read_policy(out),
        [m["type"].rsplit(".", 1)[1] for m in json.loads((out / "modules.json").read_text())],
    )
    assert kinds[-2:] == ["Pooling", "Dense"] and (model.remark, model.pooling) == (None, pooling)
    assert policy["kept_head"] == {"folder": f"{len(kinds) - 1}_Dense", "name": "terms.simcse.head"}
    own.save_pretrained(str(tmp_path / "theirs"))  # the library writes the same module
    theirs = tmp_path / "theirs" / policy["kept_head"]["folder"]
    ours = json.loads((out / theirs.name / "config.json").read_text())
    assert ours.items() <= json.loads((theirs / "config.json").read_text()).items()
    assert {name: tensor.tolist() for name, tensor in load_file(theirs / "model.safetensors").items()} == {
        name: tensor.tolist() for name, tensor in load_file(out / theirs.name / "model.safetensors").items()
    }
    card = (out / "README.md").read_text()
    assert "tuned on the positives and hard negatives" in card
    assert (
        f"`{theirs.name}`: a linear map and tanh" in card
        and f"pools as trained ({pooling}), then the head" in card
    )

    capsys.readouterr()
    mean = open_model(out, "mean")  # another pooling has no head
    assert (
        "evaluated with mean pooling, without the head that it keeps" in mean.remark
        and mean.remark in capsys.readouterr().err
    )
    both = model.encode_poolings(SENTENCES, ["mean", pooling])
    assert worst(both["mean"], mean.encode(SENTENCES)) == 0 and worst(both[pooling], expected) < 1e-6
    assert (
        worst(
            both["mean"],
            SentenceTransformer(modules=[own[0], Pooling(16, "mean")], device="cpu").encode(SENTENCES),
        )
        < 1e-5
    )

    again = load_encoder(out, AutoTokenizer.from_pretrained(out), pooling).eval()  # --init: the encoder alone
    assert again.head is None and worst(embed(again, tokenizer), pooled) < 1e-6
    shutil.rmtree(out / theirs.name)
    with pytest.raises(UserError, match=f"{theirs.name} lacks config.json"):
        open_model(out)


def test_a_head_that_is_not_kept_leaves_the_export_as_it_was(tmp_path):
    make_run(tmp_path / "kept", pooling="cls", simcse={"keep_head": True})
    make_run(tmp_path / "dropped", pooling="cls", simcse={})
    kept, dropped = export(tmp_path / "kept"), export(tmp_path / "dropped")
    card = (dropped / "README.md").read_text()
    assert (
        read_policy(dropped)["kept_head"] is None
        and "then the head" not in card
        and "not tuned on labelled pairs" in card
    )
    differ = {"2_Dense/config.json", "2_Dense/model.safetensors"}  # beside what names the run or the head
    named = {"modules.json", "clear.json", "README.md", "training_config.yaml", "SHA256SUMS"}
    files = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
    assert files == differ | {
        path.relative_to(dropped).as_posix() for path in dropped.rglob("*") if path.is_file()
    }
    for name in files - differ - named:
        assert (kept / name).read_bytes() == (dropped / name).read_bytes(), name
    modules = [json.loads((folder / "modules.json").read_text()) for folder in (kept, dropped)]
    assert modules[0][:-1] == modules[1] and modules[0][-1]["path"] == "2_Dense"


@pytest.mark.parametrize("pooling", ["first-last", "last-two", "embedding-last"])
def test_one_layer_is_enough_for_every_pooling(tmp_path, pooling):
    from sentence_transformers import SentenceTransformer

    encoder, tokenizer = make_run(tmp_path, "bert", pooling, layers=1)
    model = SentenceTransformer(str(export(tmp_path)), device="cpu")
    assert worst(model.encode(SENTENCES), embed(encoder, tokenizer)) < 1e-5


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "distilbert"])
def test_transformers_loads_encoder_and_masked_language_model(tmp_path, kind):
    encoder, _ = make_run(tmp_path, kind)
    out = export(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.model_max_length == 20 and tokenizer.mask_token == "[MASK]"
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    masked, report = AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    plain = AutoModel.from_pretrained(out)
    with torch.no_grad():
        states = plain.eval()(**batch).last_hidden_state
        logits = masked.eval()(**batch).logits
        lengths = batch["attention_mask"].sum(1)
        rows = batch["attention_mask"].bool()
        packed = encoder.states(batch["input_ids"][rows], lengths, None).last
        assert worst(states[rows], packed) < 1e-5
        assert worst(logits[rows], encoder.mlm_logits(packed)) < 1e-4
    saved = dict(encoder.lm.named_parameters())
    assert all(parameter.equal(saved[name]) for name, parameter in masked.named_parameters())


def test_what_is_written_beside_the_weights(tmp_path):
    make_run(tmp_path)
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(10):
            file.write(
                to_line({"step": step, "loss": {"mlm": 9.0 - step, "contrastive": 5.0, "total": 14.0 - step}})
            )
        file.write(to_line({"step": 0, "evaluation": {"heldout_mlm_loss": 8.25, "partner_found": 0.01}}))
        file.write(to_line({"step": 7, "evaluation": {"heldout_mlm_loss": 4.125, "partner_found": 0.75}}))
        file.write(to_line({"step": 9, "evaluation": {"heldout_mlm_loss": 1.0}}))  # not this model's
    (tmp_path / "data" / "manifest.json").write_text(
        json.dumps(
            {
                "unit": "sentence",
                "config": {"sources": [{"source": "books/*.txt"}]},
                "splits": {"train": {"sequences": 98765, "tokens": 1234567}},
            }
        )
    )
    out = export(tmp_path)
    policy = json.loads((out / "clear.json").read_text())
    assert policy["pooling"] == "mean" and policy["step"] == 7 and policy["max_length"] == 20
    assert policy["recipe"]["model"]["hidden_size"] == 16 and "torch" in policy["versions"]
    heads = load_file(out / "heads.safetensors")
    assert set(heads) == set(policy["heads"]) >= {"projection.0.weight", "projection.1.running_mean"}
    assert (
        validate_config(__import__("yaml").safe_load((out / "training_config.yaml").read_text()), "x").name
        == "test"
    )
    card = (out / "README.md").read_text()
    expected = [
        "library_name: sentence-transformers",
        "books/*.txt: 98,765 sequences (sentence), 1.23M tokens",
        "| steps | 7 of 1,000 |",
        "123k",
        "01:02:05",
        "| held-out MLM loss (nats) | 8.25 | 4.125 |",
        "untrained",
        "SentenceTransformer(",
        "arXiv:2012.15466",
        "`del-span,reorder`",
    ]
    for said in expected:
        assert said in card, said
    assert "| 9 |" not in card and "1.0 |" not in card.replace("14.0 |", "")
    front = card.split("---")[1]
    assert __import__("yaml").safe_load(front)["pipeline_tag"] == "sentence-similarity"


def test_an_export_names_its_dimensions_and_is_cut_to_one(tmp_path):
    from sentence_transformers import SentenceTransformer

    encoder, tokenizer = make_run(tmp_path, matryoshka=(4, 16, 8))
    out = export(tmp_path)
    assert json.loads((out / "clear.json").read_text())["dimensions"] == [4, 16, 8]
    card = (out / "README.md").read_text()
    assert "trained at 16, 8, 4 dimensions" in card and "truncate_dim=4" in card
    cut = SentenceTransformer(str(out), device="cpu", truncate_dim=8).encode(SENTENCES)
    assert worst(cut, embed(encoder, tokenizer)[:, :8]) < 1e-5


@pytest.mark.parametrize(
    ("objective", "papers"),
    [
        ({"name": "mlm"}, {"1810.04805"}),
        ({"name": "clear"}, {"2012.15466", "1810.04805"}),
        ({"name": "clear", "mlm": {"weight": 0.0}}, {"2012.15466"}),
        ({"name": "simcse", "mlm": {"copies": 0}}, {"2104.08821"}),
        ({"name": "mlm+simcse"}, {"2104.08821", "1810.04805"}),
        ({"name": "simcse+retain", "mlm": {"weight": 0.0}}, {"2104.08821", "1606.09282"}),
        ({"name": "own.py:Own", "mlm": {"weight": 0.0}}, set()),
    ],
)
def test_the_card_cites_the_losses_that_were_trained(objective, papers):
    recipe = validate_config({"objective": objective}, "test").model_dump(mode="json")
    assert {paper.partition("arXiv:")[2] for paper in cited(recipe)} == papers


def test_the_card_says_whether_texts_of_pairs_or_views_are_contrasted():
    recipe = validate_config({"objective": {"name": "simcse+retain"}}, "test").model_dump(mode="json")
    for columns, said in ((["text", "positive"], "the texts of a pair"), (["text"], "views of a sentence")):
        assert f"loss between {said} (objective `simcse+retain`" in _objective(recipe, {"columns": columns})


def test_the_corpus_of_an_adapted_model_is_the_users_own_text(tmp_path):
    """`clearly adapt` trains on what it writes beside its test, of all of the user's sources."""
    texts = {name: str(write_corpus(tmp_path / f"{name}.txt", documents=60)) for name in ("faq", "manual")}
    sources = data_config({"sources": [*texts.values()]}).sources
    make_test(sources, tmp_path / "run" / "judge", seed=0, records=True)
    trained = training_sources(sources, tmp_path / "run" / "judge")
    config = {"name": "x", "data": {"folder": None, "prepare": {"sources": trained}}}
    assert len(trained) == 2 and _describe_data(config)["sources"] == [*texts.values()]


@pytest.mark.parametrize(("named", "said"), [("gone/wikibooks", None), (None, ["embedded"])])
def test_data_that_is_gone_has_the_sources_of_the_recipe_only_where_it_was_made_by_it(named, said):
    config = {"name": "x", "data": {"folder": named, "prepare": {"sources": ["embedded"]}}}
    assert _describe_data(config) == {"folder": named or "data/x"} | ({"sources": said} if said else {})


def test_card_of_a_run_without_metrics(tmp_path):
    make_run(tmp_path)
    card = (export(tmp_path) / "README.md").read_text()
    assert "## Evaluation" not in card and "## Training Details" in card


def test_which_checkpoint(tmp_path):
    make_run(tmp_path, steps=(3, 5, 7))
    step = lambda folder: json.loads((folder / "clear.json").read_text())["step"]  # noqa: E731
    assert step(export(tmp_path)) == 7
    assert step(export(tmp_path, tmp_path / "five", 5)) == 5
    assert step(export(tmp_path / "checkpoints", tmp_path / "root")) == 7
    assert step(export(tmp_path / "checkpoints" / "step-00000003", tmp_path / "best")) == 3
    assert step(export(tmp_path, tmp_path / "copy", "best")) == 3
    damaged = tmp_path / "checkpoints" / "step-00000007" / "state.json"
    damaged.write_text("{}")
    assert step(export(tmp_path)) == 5
    with pytest.raises(UserError, match="damaged"):
        export(tmp_path, step=7)
    with pytest.raises(UserError, match=r"no checkpoint of step '4'; there are: 3, 5, 7"):
        export(tmp_path, step=4)


def test_weights_of_other_names_are_refused(tmp_path, monkeypatch):
    """As after an upgrade of transformers that renames them."""

    def renamed(*place):
        for name, tensor in read_tensors(*place):
            yield name.replace("embeddings.LayerNorm", "embeddings.norm"), tensor

    make_run(tmp_path)
    monkeypatch.setattr("pretrain.checkpoint.store.read_tensors", renamed)
    with pytest.raises(UserError, match=r"missing .*LayerNorm.*left over .*\.norm.*version of transformers"):
        export(tmp_path)


def test_an_old_export_is_replaced_and_anything_else_is_not(tmp_path):
    make_run(tmp_path)
    out = export(tmp_path)
    (out / "stale").touch()
    assert not (export(tmp_path) / "stale").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="is not an export of this program"):
        export(tmp_path, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_several_exports_at_once_leave_one_whole(tmp_path):
    """A run that ends exports to the same folder as whoever exports it by hand."""
    make_run(tmp_path)
    with ThreadPoolExecutor(3) as pool:
        folders = list(pool.map(export, [tmp_path] * 3))
    assert set(folders) == {tmp_path / "export"}
    assert read_policy(tmp_path / "export")["step"] == 7
    AutoModel.from_pretrained(tmp_path / "export")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_checkpoint_that_its_run_removes_meanwhile_is_said_to_be_gone(tmp_path, monkeypatch):
    make_run(tmp_path)
    chosen = tmp_path / "checkpoints" / "step-00000007"

    def removed_first(*arguments):
        shutil.rmtree(chosen)
        return read_tensors(*arguments)

    monkeypatch.setattr("pretrain.checkpoint.store.read_tensors", removed_first)
    with pytest.raises(UserError, match=f"{chosen} is gone.*same command again"):
        export(tmp_path)
    assert not (tmp_path / "export").exists()


def test_the_best_is_an_export_already_and_that_of_the_last_step_stays(tmp_path):
    make_run(tmp_path, steps=(3, 5))
    export(tmp_path)
    export(tmp_path, tmp_path / "best", 3)
    before = (tmp_path / "export" / "clear.json").read_bytes()
    assert export(tmp_path, step="best") == tmp_path / "best"
    assert (tmp_path / "export" / "clear.json").read_bytes() == before


def test_missing_things_are_said(tmp_path):
    with pytest.raises(UserError, match=r"there is no folder .*nowhere"):
        export(tmp_path / "nowhere")
    make_run(tmp_path)
    with pytest.raises(UserError, match="no best/ yet"):
        export(tmp_path, step="best")
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"copy tokenizer/ .*: there is none"):
        export(tmp_path)
    assert not (tmp_path / "export").exists()
    shutil.copytree(tmp_path / "elsewhere" / "tokenizer", tmp_path / "tokenizer")
    assert (export(tmp_path) / "tokenizer.json").exists()


def test_policy_is_found_where_there_is_one(tmp_path):
    make_run(tmp_path, pooling="cls")
    assert read_policy(tmp_path) is None
    assert read_policy(export(tmp_path))["pooling"] == "cls"
    (tmp_path / "export" / "clear.json").write_text("")
    with pytest.raises(UserError, match="is damaged") as error:
        read_policy(tmp_path / "export")
    named = str(error.value).rpartition("--out ")[2]
    assert read_policy(export(tmp_path, named)) == read_policy(tmp_path / "export")


def test_command_line(tmp_path, capsys, monkeypatch):
    make_run(tmp_path)

    def status(*words):
        monkeypatch.setattr("sys.argv", ["export", *words])
        with pytest.raises(SystemExit) as exited:
            run(main)
        return exited.value.code

    assert status(str(tmp_path), "--out", str(tmp_path / "out")) == 0
    assert "exported step 7" in capsys.readouterr().out
    assert status(f"{tmp_path}x") == 2 and f"no folder {tmp_path}x; did you mean" in capsys.readouterr().err
    assert status() == 2 and "RUN is missing" in capsys.readouterr().err
    assert status("--help") == 0 and "checkpoint" in capsys.readouterr().out
    assert status(str(tmp_path), "--stp", "3") == 2 and "did you mean --step?" in capsys.readouterr().err


@pytest.mark.full
def test_export_needs_no_deepspeed(tmp_path):
    make_run(tmp_path)
    program = (
        "import sys; sys.modules['deepspeed'] = None; sys.modules['sentence_transformers'] = None\n"
        f"from pretrain.export.folder import export; print(export({str(tmp_path)!r}))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_layer_weights():
    assert layer_weights(1, 4) == [0, 1, 0, 0, 1]
    assert layer_weights(0, 2) == [1, 0, 1]
    assert layer_weights(-2, 3) == [0, 0, 1, 1]
    assert layer_weights(1, 1) == [0, 2]
    assert math.isclose(sum(layer_weights(-2, 1)), 2)
