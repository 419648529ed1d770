"""Fine-tuning: packed logits and gradients against the padded library; stopped and broken runs."""

import copy
import random
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from finetuning_helpers import PAIRS, sentence
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from transformers.models.modernbert import modeling_modernbert

from finetune.tuning import finetuning
from finetune.tuning.finetuning import Execution, FineTuning, build_classifier, learning_rate, loss_of
from finetune.tuning.labelled import encode_examples, open_source
from finetune.tuning.recipe import Interrupted, Recipe, until_stopped
from finetune.tuning.tasks import TABLE_1, TASKS
from pretrain.common.errors import UserError
from pretrain.data.microbatches import pack

ROOT = Path(__file__).resolve().parents[3]


def test_recipe_is_fairseqs():
    large, small = dict.fromkeys(("MNLI", "QNLI", "QQP", "SST-2"), (1e-5, 32)), (2e-5, 16)
    expected = large | {"RTE": small, "STS-B": small, "MRPC": (1e-5, 16), "CoLA": (1e-5, 16)}
    assert {task: TASKS[task].recipe[:2] for task in TABLE_1} == expected
    recipe = Recipe(lr=2e-5, batch_size=16)
    assert (recipe.betas, recipe.eps, recipe.weight_decay, recipe.clip, recipe.epochs) == (
        (0.9, 0.98),
        1e-6,
        0.1,
        0.0,
        10,
    )
    rates = [learning_rate(recipe, step, 1000) for step in range(1000)]
    assert max(rates) == rates[59] == pytest.approx(2e-5)
    assert rates[0] == pytest.approx(2e-5 / 60)
    assert rates[60 + 470] == pytest.approx(1e-5)
    assert 0 < rates[-1] < 1e-7
    assert [learning_rate(recipe, step, 99) for step in (0, 5)] == pytest.approx([2e-5 / 6, 2e-5])


def rotated_in_full_precision(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(x * cos + modeling_modernbert.rotate_half(x) * sin for x in (q, k))


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_packed_logits_and_gradients_equal_the_padded_librarys(folders, kind, monkeypatch):
    source = open_source(folders[kind])
    source.encoder.double()
    first, second = zip(*PAIRS)
    targets = np.array([n % 3 for n in range(len(PAIRS))])
    data = encode_examples(source, first, second, targets, 40)
    assert (data.token_types is not None) == (kind == "bert")
    packed = build_classifier(source, 3, dropout=0.0, seed=5).eval()
    order = np.arange(len(PAIRS))
    row = pack(data.tokens, order, torch.device("cpu"))
    ids, lengths = row.ids, row.lengths
    token_types = None if data.token_types is None else pack(data.token_types, order, torch.device("cpu")).ids
    logits = packed(ids, lengths, token_types)
    loss_of(logits, torch.from_numpy(targets), regression=False).backward()

    tokenizer = AutoTokenizer.from_pretrained(folders[kind])
    settings = {
        "truncation": True,
        "max_length": 40,
        "return_tensors": "pt",
        "return_token_type_ids": kind == "bert",
    }
    batch = tokenizer(list(first), list(second), padding=True, **settings)
    head = (packed.dense, packed.output)
    near = {"rtol": 0, "atol": 1e-10}
    if kind == "modernbert":  # its own head is another one
        # Its eager attention takes the softmax in float32, and its rotation rounds to float32.
        monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", rotated_in_full_precision)
        base = AutoModel.from_pretrained(folders[kind], attn_implementation="sdpa").double().eval()
        theirs = copy.deepcopy(packed.dense), copy.deepcopy(packed.output)
        for layer in theirs:
            layer.zero_grad()
        expected = theirs[1](torch.tanh(theirs[0](base(**batch).last_hidden_state[:, 0])))
    else:
        model = (
            AutoModelForSequenceClassification.from_pretrained(
                folders[kind],
                attn_implementation="eager",
                num_labels=3,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
            .double()
            .eval()
        )
        base = model.base_model
        # RoBERTa's own head is ours; BERT's is its pooler (linear, tanh) and a classifier: the same.
        theirs = (
            (base.pooler.dense, model.classifier)
            if kind == "bert"
            else (model.classifier.dense, model.classifier.out_proj)
        )
        for layer, ours in zip(theirs, head):
            layer.load_state_dict(ours.state_dict())
        expected = model(**batch).logits
    torch.testing.assert_close(logits, expected, **near)
    torch.nn.functional.cross_entropy(expected, torch.from_numpy(targets), reduction="sum").backward()
    for layer, ours in zip(theirs, head):
        torch.testing.assert_close(ours.weight.grad, layer.weight.grad, **near)
    gradients = {name: p.grad for name, p in packed.encoder.lm.base_model.named_parameters()}
    compared = 0
    for name, parameter in base.named_parameters():
        if "pooler" in name or parameter.grad is None:
            continue
        torch.testing.assert_close(gradients[name], parameter.grad, **near)
        compared += 1
    assert compared == sum(gradient is not None for gradient in gradients.values())


def test_tokens_are_the_librarys_and_cut_texts_are_counted(folders, source):
    tokenizer = AutoTokenizer.from_pretrained(folders["bert"])
    first, second = zip(*PAIRS)
    data = encode_examples(source, first, second, None, 20)
    expected = tokenizer(
        list(first), list(second), truncation=True, max_length=20, return_token_type_ids=True
    )
    assert [row.tolist() for row in data.tokens] == expected["input_ids"]
    assert [row.tolist() for row in data.token_types] == expected["token_type_ids"]
    whole = tokenizer(list(first), list(second))["input_ids"]
    assert data.cut == sum(len(row) > 20 for row in whole) > 0


@pytest.mark.parametrize("outputs", [2, finetuning.REGRESSION])
def test_split_batches_give_the_same_update(folders, outputs):
    source = open_source(folders["bert"])
    source.encoder.double()
    rng = random.Random(3)
    data = encode_examples(source, [sentence(rng) for _ in range(16)], None, np.arange(16) % 2, 64)
    recipe = Recipe(lr=1e-2, batch_size=8, epochs=1, dropout=0.0)
    states = []
    for budget in (64, 4096):
        model = build_classifier(source, outputs, recipe.dropout, 1)
        execution = Execution(token_budget=budget)
        training = FineTuning(model, data, recipe, 1, lambda _: (0.0, {}, np.empty(0)), execution)
        training.run()
        states.append(training.model.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=0, atol=1e-9)


def test_best_epoch_is_the_first_of_the_highest_and_nan_is_no_figure(source):
    data = encode_examples(source, ["a dog"] * 4, None, np.arange(4) % 2, 64)
    figures = iter([float("nan"), 3.0, 7.0, 7.0, 5.0])

    def evaluate(logits):
        value = next(figures)
        return value, {"accuracy": value}, np.array([value])

    recipe = Recipe(lr=1e-3, batch_size=4, epochs=5)
    execution = Execution(keep_weights=True)
    training = FineTuning(build_classifier(source, 2, 0.1, 1), data, recipe, 1, evaluate, execution)
    outcome = training.run()
    assert outcome.best["epoch"] == 3 and outcome.answers == [7.0]
    assert len(outcome.curve) == 5
    for name, tensor in training.model.state_dict().items():
        assert torch.equal(tensor.cpu(), training.best_weights[name])


@pytest.mark.parametrize("every", [0, 2])
def test_a_loss_of_the_curve_is_the_mean_since_the_evaluation_before(source, monkeypatch, every):
    data = encode_examples(source, ["a dog", "the horse"] * 5, None, np.arange(10) % 2, 64)
    losses, update = [], FineTuning.update
    monkeypatch.setattr(FineTuning, "update", lambda *given: losses.append(update(*given)) or losses[-1])
    training = FineTuning(
        build_classifier(source, 2, 0.1, 1),
        data,
        Recipe(lr=1e-2, batch_size=4, epochs=2),
        1,
        lambda _: (0.0, {}, np.empty(0)),
        evaluate_every=every,
    )
    ends = [0, *(entry["step"] for entry in training.run().curve)]
    assert ends == ([0, 2, 3, 4, 6] if every else [0, 3, 6])
    means = [float(torch.stack(losses[start:end]).mean()) for start, end in pairwise(ends)]
    assert [entry["loss"] for entry in training.curve] == pytest.approx(means)


def test_a_loss_that_is_not_finite_is_an_error(source):
    data = encode_examples(source, ["a dog", "the horse"], None, np.array([np.nan, 1.0], np.float32), 64)
    with pytest.raises(UserError, match="loss is not finite by update 1"):
        model = build_classifier(source, 1, 0.1, 1)
        FineTuning(model, data, Recipe(1e-3, 2, 1), 1, lambda _: (0.0, {}, np.empty(0))).run()


def test_a_damaged_state_is_one_message(tmp_path):
    """One bit is enough, also of a number, which torch would read as another."""
    finetuning.write_tensors(tmp_path / "state", {"a": torch.ones(2), "step": 3})
    assert finetuning.read_tensors(tmp_path / "state")["step"] == 3
    whole = (tmp_path / "state").read_bytes()
    place = whole.index(torch.ones(2).numpy().tobytes())
    for content in (b"damaged", whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]):
        (tmp_path / "state").write_bytes(content)
        with pytest.raises(UserError, match="remove it"):
            finetuning.read_tensors(tmp_path / "state")


def test_a_command_that_is_stopped_ends_with_the_status_of_the_request(capsys):
    def stopped() -> None:
        raise Interrupted(75)

    assert until_stopped(stopped) == 75 and "the same command continues" in capsys.readouterr().err
    assert until_stopped(lambda: None) == 0


def trained(source, recipe, seed=1, count=8, **more):
    """Train on a few examples; return the training and the rows of each update."""
    rng, seen = random.Random(3), []
    data = encode_examples(source, [sentence(rng) for _ in range(count)], None, np.arange(count) % 2, 64)
    model = build_classifier(source, 2, recipe.dropout, seed)
    training = FineTuning(model, data, recipe, seed, lambda _: (0.0, {}, np.empty(0)), **more)
    update = training.update
    training.update = lambda rows: seen.append(rows.tolist()) or update(rows)
    training.run()
    return training, seen


def test_every_epoch_has_all_examples_in_an_order_of_its_own(source):
    recipe = Recipe(lr=1e-4, batch_size=3, epochs=2)
    training, seen = trained(source, recipe)
    assert [len(rows) for rows in seen] == [3, 3, 2] * 2 and training.steps == 6
    epochs = [[row for rows in part for row in rows] for part in (seen[:3], seen[3:])]
    assert epochs == [np.random.default_rng((1, epoch)).permutation(8).tolist() for epoch in (0, 1)]
    _, own = trained(source, recipe, rows=lambda seed, epoch: np.array([seed, epoch, 5, 6]))
    assert own == [[1, 0, 5], [6], [1, 1, 5], [6]]
    assert [entry["step"] for entry in training.curve] == [3, 6] and training.curve[0]["epoch"] == 1.0


def test_dropout_differs_by_step_and_seed_alone(source):
    still = {"lr": 1e-12, "batch_size": 8, "epochs": 3, "warmup": 0.0}
    losses = [
        [entry["loss"] for entry in trained(source, Recipe(**still, dropout=dropout))[0].curve]
        for dropout in (0.3, 0.3, 0.0)
    ]
    assert losses[0] == losses[1] and len({round(loss, 6) for loss in losses[0]}) == 3
    assert losses[2] == pytest.approx([losses[2][0]] * 3, abs=1e-5)


def test_the_optimizer_is_the_recipes(source):
    recipe = Recipe(lr=3e-5, batch_size=4, epochs=1, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.2)
    training, _ = trained(source, recipe)
    groups = training.optimizer.param_groups
    assert {group["betas"] for group in groups} == {(0.8, 0.95)} and {group["eps"] for group in groups} == {
        1e-7
    }
    decayed = {id(one): group["weight_decay"] for group in groups for one in group["params"]}
    for name, parameter in training.model.named_parameters():
        if id(parameter) in decayed:
            plain = name.endswith("bias") or "LayerNorm" in name
            assert decayed[id(parameter)] == (0.0 if plain else 0.2), name
    assert {group["lr"] for group in groups} == {learning_rate(recipe, 1, 2)}


def test_gradients_are_clipped_where_the_recipe_says_so(source):
    moved = []
    for clip in (0.0, 1e-9):
        start = build_classifier(source, 2, 0.0, 1).state_dict()
        training, _ = trained(
            source, Recipe(1e-3, 8, 1, warmup=0.0, clip=clip, weight_decay=0.0, dropout=0.0)
        )
        end = training.model.state_dict()
        moved.append(max(float((end[name].cpu() - start[name]).abs().max()) for name in start))
    assert moved[0] > 1e-4 and moved[1] < 1e-2 * moved[0]


def test_losses_are_sums_and_what_cannot_be_trained_is_refused(source):
    logits = torch.tensor([[0.5, 2.0], [1.0, -1.0]])
    numbers = loss_of(logits[:, :1], torch.tensor([1.5, 0.0]), regression=True)
    assert numbers.item() == pytest.approx((0.5 - 1.5) ** 2 + 1.0)
    classes = loss_of(logits, torch.tensor([1, 1]), regression=False)
    expected = np.log(1 + np.exp(-1.5)) + np.log(1 + np.exp(2.0))
    assert classes.item() == pytest.approx(expected)
    with pytest.raises(UserError, match="nothing to train on: no training examples, or no epochs"):
        trained(source, Recipe(1e-3, 8, 1), count=0)
    assert finetuning.choose_precision("fp32") == "fp32" and finetuning.choose_precision("bf16") == "bf16"


def test_texts_are_stripped_and_tokenizers_must_be_fast(source, folders, monkeypatch):
    spaced, plain = (encode_examples(source, [f"{a} dog{a}"], [f"{a}a man "], None, 64) for a in (" ", ""))
    assert spaced.tokens == plain.tokens and spaced.token_types == plain.token_types and plain.cut == 0
    assert encode_examples(source, ["a dog"], None, None, 64).token_types is None
    slow = lambda given: (source.encoder, SimpleNamespace(is_fast=False))  # noqa: E731
    monkeypatch.setattr("finetune.encoders.embed.load_model", slow)
    with pytest.raises(UserError, match="its tokenizer has no fast version"):
        open_source(folders["bert"])
