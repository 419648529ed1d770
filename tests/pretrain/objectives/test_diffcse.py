"""DiffCSE's generator: it may know fewer tokens and positions than the encoder that is trained."""

from pathlib import Path

import numpy as np
import pytest
import torch
from exactness_worker import VOCABULARY, FakeTokenizer
from run_helpers import command, finish, records, start

from pretrain.common.errors import UserError
from pretrain.config.recipe import validate_config
from pretrain.data.microbatches import MicroBatch
from pretrain.data.shards import ShardReader
from pretrain.model.encoder import build_encoder
from pretrain.model.modules import parameter_groups
from pretrain.objectives import build_objective

ADDED = 3
SIZES = {"type": "bert", "layers": 1, "heads": 2, "max_positions": 64, "intermediate_size": 32}


class GrownTokenizer(FakeTokenizer):
    """One to which tokens were added since the generator was published: [DEL], and two more."""

    def __len__(self):
        return VOCABULARY + ADDED


def diffcse(folder: Path, positions: int = 64, head: bool = True, **settings):
    """The term, with a generator of the tokenizer's first tokens alone."""
    torch.manual_seed(0)
    lm = build_encoder(SIZES | {"hidden_size": 16, "max_positions": positions}, FakeTokenizer()).lm
    (lm if head else lm.base_model).save_pretrained(folder)
    tree = {"name": "diffcse", "diffcse": {"generator": str(folder), **settings}}
    config = validate_config({"objective": tree, "train": {"global_batch": 32}, "data": {"lanes": 1}}, "test")
    tokenizer = GrownTokenizer()
    return build_objective(config, build_encoder(SIZES | {"hidden_size": 32}, tokenizer), tokenizer).terms[
        "diffcse"
    ]


@pytest.mark.parametrize("reading", ["code", "paper"])
def test_every_token_stays_within_both_models(tmp_path, reading):
    """Over many draws: what the generator reads is in its embedding, and what it writes in the
    discriminator's."""
    term = diffcse(tmp_path, reading=reading, mask_rate=0.9)
    read = []
    term._generator[0].lm.get_input_embeddings().register_forward_pre_hook(
        lambda _, inputs: read.append(inputs[0][: 200 * 50])
    )
    generator = torch.Generator().manual_seed(1)
    lengths = torch.full((200,), 50)
    ids = torch.randint(5, VOCABULARY + ADDED, (10_000,), generator=generator)
    first = lengths.cumsum(0) - lengths
    ids[first] = 2
    edited = term.edit(ids, lengths, np.arange(200, dtype=np.uint64))
    known = ids < VOCABULARY
    assert edited[known].max() < VOCABULARY and (edited[known] != ids[known]).any()
    assert torch.equal(edited[~known], ids[~known]), (
        "a token that the generator does not know stays what it is"
    )
    drawn = read[0].flatten()
    assert drawn.max() < VOCABULARY and len(drawn.unique()) > 0.9 * (VOCABULARY - 5)
    assert (drawn.view(200, 50).flatten()[~known] == term.mask_id).all()
    masked, other = drawn[known] == term.mask_id, drawn[known] != ids[known]
    shares = [float(one.float().mean()) for one in (masked, other & ~masked)]
    assert shares == pytest.approx([0.9 * 0.8 * 0.98, 0.9 * 0.1 * 0.98], rel=0.1)  # of BERT; 1 in 50 is [CLS]
    row = MicroBatch(ids, lengths, torch.arange(200), keys=np.arange(200, dtype=np.uint64))
    loss = term.sequence_loss(None, "anchor", row, torch.zeros(200, 32))
    assert loss.isfinite()


def test_the_generator_has_dropout_of_its_own(tmp_path):
    """Of the sequences' keys, but not the dropout that an encoder draws from them."""
    term = diffcse(tmp_path, mask_rate=0.3)
    generator, read = term._generator[0], []
    generator.lm.get_input_embeddings().register_forward_pre_hook(
        lambda _, inputs: read.append(inputs[0].flatten())
    )
    lengths, keys = torch.full((20,), 30), np.arange(20, dtype=np.uint64)
    ids = torch.randint(5, VOCABULARY, (600,), generator=torch.Generator().manual_seed(1))
    edited = term.edit(ids, lengths, keys)
    assert torch.equal(edited, term.edit(ids, lengths, keys))
    first = lengths.cumsum(0) - lengths

    def likeliest(own: np.ndarray) -> torch.Tensor:
        hidden = generator.states(read[0][:600], lengths, None, keys=own).last
        return generator.mlm_logits(hidden).argmax(1).index_copy(0, first, ids[first])

    assert generator.training and not torch.equal(edited, likeliest(keys))
    term.eval()
    assert torch.equal(term.edit(ids, lengths, keys), likeliest(keys))  # there is none


def test_the_discriminators_encoder_learns_at_the_rate_of_an_encoder(tmp_path):
    term = diffcse(tmp_path)
    groups = parameter_groups(torch.nn.ModuleDict({"objective": term}), 0.1, head_lr_scale=5.0)
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    trained = [p for p in term.discriminator.parameters() if p.requires_grad]
    heads = [*term.head.parameters(), *term.replaced.parameters()]
    assert len(scales) == len(trained) + len(heads) and trained
    assert {scales[id(p)] for p in trained} == {1.0} and {scales[id(p)] for p in heads} == {5.0}


def test_sequences_longer_than_the_generator_are_refused_by_name(tmp_path):
    term = diffcse(tmp_path, positions=16)
    with pytest.raises(
        UserError, match=rf"objective.diffcse.generator={tmp_path} takes 16 positions: .* max_length 16"
    ):
        term.edit(torch.full((17,), 5), torch.tensor([17]), np.arange(1, dtype=np.uint64))


def test_a_generator_without_a_masked_language_head_is_refused(tmp_path):
    with pytest.raises(UserError, match=rf"{tmp_path} is no masked language model"):
        diffcse(tmp_path, head=False)


@pytest.mark.full
def test_a_generator_that_is_too_short_is_found_at_the_start(tmp_path, tiny_data):
    """Before a run trains, on every rank: not at the step at which one of them meets a long sequence."""
    from pretrain.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tiny_data / "tokenizer")
    longest = ShardReader(tiny_data, "train").max_length
    generator = tmp_path / "generator"
    flags = {
        "objective__name": "diffcse",
        "aug": "none",
        "train__steps": 2,
        "model__max_positions": longest,
        "objective__diffcse__generator": generator,
    }
    for positions, expected in ((longest - 1, 2), (longest, 0)):
        build_encoder(SIZES | {"hidden_size": 16, "max_positions": positions}, tokenizer).lm.save_pretrained(
            generator
        )
        tokenizer.save_pretrained(generator)
        run = tmp_path / str(positions)
        output = finish(start(command(tiny_data, run, **flags)), expect=expected)
        assert (f"takes {positions} positions: name one with {longest}" in output) == (expected == 2)
        assert (
            any("loss" in record for record in records(run)) == (expected == 0) and "Traceback" not in output
        )


def test_a_generator_that_numbers_tokens_otherwise_is_refused(tmp_path, tiny_data):
    """As many tokens are not the same tokens."""
    from pretrain.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tiny_data / "tokenizer")
    folder = tmp_path / "generator"
    build_encoder(SIZES | {"hidden_size": 16}, tokenizer).lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    text = (folder / "tokenizer.json").read_text()
    words = [token for token in tokenizer.get_vocab() if token.isalpha()][:2]
    for old, new in (
        (f'"{words[0]}":', '"@@":'),
        (f'"{words[1]}":', f'"{words[0]}":'),
        ('"@@":', f'"{words[1]}":'),
    ):
        text = text.replace(old, new)
    tree = {"objective": {"name": "diffcse", "diffcse": {"generator": str(folder)}}}
    encoder = build_encoder(SIZES | {"hidden_size": 32}, tokenizer)
    build_objective(validate_config(tree, "test"), encoder, tokenizer)
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match="does not fit the generator"):
        build_objective(validate_config(tree, "test"), encoder, tokenizer)
