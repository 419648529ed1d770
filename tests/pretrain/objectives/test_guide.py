"""Another encoder that finds false negatives: sentence-transformers' GISTEmbedLoss, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from encoder_helpers import make_encoder, make_tokenizer, scale_matrices
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from pretrain.common.errors import UserError
from pretrain.config.recipe import validate_config
from pretrain.model.encoder import load_encoder
from pretrain.objectives import BatchContext, build_objective
from pretrain.start.encoder import guiding_encoder

N, TEMPERATURE = 24, 0.07


def saved(folder: Path, seed: int, **sizes: object) -> Path:
    """A plain Hugging Face folder of a small encoder with weights of ordinary size."""
    encoder = make_encoder("bert", **sizes)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    scale_matrices(encoder)
    encoder.lm.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def with_modules(folder: Path, pooling: str, dense: bool) -> Path:
    """The same encoder as a folder of sentence-transformers, as its own `save` writes it."""
    transformer = Transformer(str(folder))
    width = transformer.get_embedding_dimension()
    head = [Dense(width, width, activation_function=torch.nn.Tanh())] if dense else []
    model = SentenceTransformer(modules=[transformer, Pooling(width, pooling), *head, Normalize()])
    model.save(str(folder / "saved"))
    return folder / "saved"


def config_of(guide: object, **rule: object):
    rules = {"guide": str(guide), **rule}
    return validate_config(
        {
            "objective": {
                "name": "simcse",
                "mlm": {"weight": 0.0},
                "simcse": {"head": "none", "temperature": TEMPERATURE, "hard_negatives": True},
                "false_negatives": rules,
            },
            "train": {"global_batch": N},
            "data": {"lanes": 1},
        },
        "test",
    )


def sentences() -> list[list[str]]:
    """Three columns, of the words that the tokenizer knows."""
    draw = torch.Generator().manual_seed(3)

    def sentence() -> str:
        count = int(torch.randint(2, 12, (), generator=draw))
        return " ".join(f"w{int(word)}" for word in torch.randint(0, 60, (count,), generator=draw))

    return [[sentence() for _ in range(N)] for _ in range(3)]


@pytest.mark.parametrize(
    "pooling, dense, rule",
    [
        ("mean", False, {"margin": 0.02}),
        ("cls", False, {"margin": 0.05, "strategy": "relative"}),
        ("mean", True, {"margin": 0.0}),
    ],
)
def test_loss_and_gradient_equal_gist_embed_loss_with_that_guide(tmp_path, pooling, dense, rule):
    """Both models in float64: the guide is a folder of sentence-transformers, of another width and depth."""
    tokenizer = make_tokenizer()
    trained = saved(tmp_path / "trained", 1)
    folder = with_modules(saved(tmp_path / "guide", 2, layers=1, hidden_size=16), pooling, dense)
    config = config_of(folder, **rule)
    guide = guiding_encoder(config, tokenizer)
    assert guide.pooling == pooling and (guide.head is not None) == dense and not guide.training
    assert not any(parameter.requires_grad for parameter in guide.parameters())

    # sentence-transformers' loss, without dropout
    theirs = SentenceTransformer(modules=[(module := Transformer(str(trained))), Pooling(32, "mean")])
    theirs, other = theirs.double().eval(), SentenceTransformer(str(folder)).double().eval()
    settings = {"temperature": TEMPERATURE, "margin": rule["margin"]}
    settings |= {"margin_strategy": rule.get("strategy", "absolute")}
    loss = losses.GISTEmbedLoss(theirs, other, **settings, contrast_anchors=False, contrast_positives=False)
    expected = loss([theirs.tokenize(column) for column in sentences()], None)
    expected.backward()
    gradients = {name: p.grad for name, p in module.auto_model.named_parameters() if p.grad is not None}

    # ours
    encoder = load_encoder(trained, tokenizer).double().eval()
    objective = build_objective(config, encoder, tokenizer, guide=guide.double())
    views, guided = {}, {}
    for role, column in zip(objective.roles, sentences()):
        ids = [tokenizer(text)["input_ids"] for text in column]
        packed = torch.tensor([token for row in ids for token in row]), torch.tensor([len(r) for r in ids])
        views[role], guided[role] = encoder.embed(*packed), guide.embed(*packed)
    groups = torch.zeros(N, dtype=torch.long)
    there = {"negative": torch.ones(N, dtype=torch.bool)}
    context = BatchContext(0, 0.0, groups, None, there, None, 5, guided=guided, collects_diagnostics=True)
    ours = objective.relate(views, context)["simcse"]
    ours.backward()
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
    mine = {name: p.grad for name, p in encoder.lm.base_model.named_parameters() if p.grad is not None}
    assert len(gradients) > 30
    for name, gradient in gradients.items():
        if "pooler" not in name:
            torch.testing.assert_close(mine[name], gradient, rtol=1e-6, atol=1e-9)
    assert 0.01 < float(context.measures["simcse_masked_share"]) < 0.9


def test_it_is_no_parameter_and_no_tensor_of_the_state(tmp_path):
    tokenizer = make_tokenizer()
    config = config_of(saved(tmp_path / "guide", 2, hidden_size=16))
    encoder = make_encoder("bert")
    guide = guiding_encoder(config, tokenizer)
    objective = build_objective(config, encoder, tokenizer, guide=guide)
    assert objective.guide is guide and guide.pooling == "mean"
    assert not list(objective.parameters()) and not objective.state_dict()
    assert guiding_encoder(config_of("self"), tokenizer) is None


def test_loading_it_leaves_the_random_state(tmp_path):
    config = config_of(saved(tmp_path / "guide", 2))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    guiding_encoder(config, make_tokenizer("[DEL]"))  # a token that the guide does not know
    assert torch.equal(torch.get_rng_state(), before)


def swap(folder: Path) -> None:
    """Give two words of a tokenizer each other's ids."""
    content = json.loads((folder / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["w1"], words["w2"] = words["w2"], words["w1"]
    (folder / "tokenizer.json").write_text(json.dumps(content))


def other_pooling(folder: Path) -> None:
    shutil.move(with_modules(folder, "max", False) / "1_Pooling", folder)
    shutil.copy(folder / "saved" / "modules.json", folder)


@pytest.mark.parametrize(
    "change, says",
    [
        (
            swap,
            r"token 'w\d+' has id .* in the guide's own; .*--data.prepare.tokenizer .*, and train an encoder",
        ),
        (other_pooling, "pooling max"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), "cannot load the encoder"),
    ],
)
def test_one_that_cannot_guide_is_refused(tmp_path, change, says):
    folder = saved(tmp_path / "guide", 2)
    change(folder)
    with pytest.raises(UserError, match=f"(?s)objective.false_negatives.guide={folder}.*{says}"):
        guiding_encoder(config_of(folder), make_tokenizer())
