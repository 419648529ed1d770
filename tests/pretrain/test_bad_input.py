"""Bad input ends in one clear message, status 2 and nothing lost; by the command, as a user meets it."""

import json
import shutil

import pytest
from run_helpers import command, finish, records, start

from augment.ragged import Ragged
from pretrain import checkpoint
from pretrain.config import load_config
from pretrain.errors import UserError
from pretrain.heldout import _first_sequences
from pretrain.setup_run import check_world
from pretrain.shards import DamagedShard, ShardReader, write_folder


def refused(words: list[str], *needles: str) -> str:
    output = finish(start(words), expect=2)
    errors = output[output.index("error: "):]
    for needle in needles:
        assert needle in errors, errors
    assert "Traceback" not in output
    return output


def test_unknown_flag_names_the_nearest(tiny_data, tmp_path):
    refused(command(tiny_data, tmp_path / "run", train__learning_rat="1"), "train.learning_rat", "did you mean 'train.lr'")
    assert not (tmp_path / "run").exists()


def test_stray_word(tiny_data, tmp_path):
    refused([*command(tiny_data, tmp_path / "run"), "del-span"], "unexpected argument 'del-span'")


def test_missing_corpus(tmp_path):
    output = refused(command(tmp_path / "data", tmp_path / "run", data__prepare__sources=str(tmp_path / "no.txt")),
                     "failed")
    assert str(tmp_path / "no.txt") in output


def test_longer_sequences_than_positions(tiny_data, tmp_path):
    refused(command(tiny_data, tmp_path / "run", model__max_positions=32), "48", "32", "max_positions")


def test_a_run_is_not_overwritten_and_data_is_not_exchanged(tiny_data, tmp_path):
    run = tmp_path / "run"
    finish(start(command(tiny_data, run, train__steps=3)))
    before = (run / "metrics.jsonl").read_bytes()
    refused(command(tiny_data, run, train__steps=3), str(run), "--resume auto", "--run")
    refused(command(tiny_data, run, train__steps=3, checkpoint__resume="auto", train__global_batch=32), "train.global_batch=16")
    other = tmp_path / "other"
    shutil.copytree(tiny_data, other)
    tokenizer = json.loads((other / "tokenizer" / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = dict(reversed(tokenizer["model"]["vocab"].items()))
    first, second = list(tokenizer["model"]["vocab"])[:2]
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(command(other, tmp_path / "run2"), "not the tokenizer", str(other))
    assert (run / "metrics.jsonl").read_bytes() == before


def test_damaged_shard_is_refused_by_name_or_skipped_and_written_down(tiny_data, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    shard = sorted((data / "train").glob("*.tar"))[0]
    content = bytearray(shard.read_bytes())
    content[1000] ^= 0xFF  # inside the first chunk's arrays
    shard.write_bytes(bytes(content))
    flags = {"train__steps": 40, "train__warmup_steps": 2, "checkpoint__every": 0, "evaluate__every": 0}
    refused(command(data, tmp_path / "refuse", **flags), shard.name)
    run = tmp_path / "skip"
    finish(start(command(data, run, data__damaged="skip", **flags)))
    state = checkpoint.read_state(checkpoint.latest(run / "checkpoints"))
    assert state["progress"]["substitutions"], "the substitution must be in the checkpoint"


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tiny_data, tmp_path):
    run = tmp_path / "run"
    refused(command(tiny_data, run, train__lr="1e37", train__clip=0, train__warmup_steps=0, train__schedule="constant",
                    checkpoint__every=1), "not finite at step", "train.lr", "--resume auto")
    assert checkpoint.latest(run / "checkpoints") is not None
    assert records(run)


def test_lanes_must_divide_over_the_ranks():
    config = load_config(None, {"data.lanes": "16", "train.global_batch": "192"})
    check_world(config, 8)
    with pytest.raises(UserError, match=r"data\.lanes=16.*3 ranks.*data\.lanes=12"):
        check_world(config, 3)
    with pytest.raises(UserError, match=r"no number of lanes"):
        check_world(config, 5)


def test_damaged_held_out_chunk_is_refused_or_left_out(tmp_path, capsys):
    sequences = Ragged.from_sequences([[2, *range(5, 5 + n % 7), 3] for n in range(300)])
    write_folder(tmp_path, {"heldout": sequences}, 100, 16, chunk_tokens=256)
    shard = next((tmp_path / "heldout").glob("*.tar"))
    content = bytearray(shard.read_bytes())
    content[1600] ^= 255
    shard.write_bytes(content)
    reader = ShardReader(tmp_path, "heldout")
    with pytest.raises(DamagedShard):
        _first_sequences(reader, 100, skip_damaged=False)
    kept, numbers, _ = _first_sequences(reader, 100, skip_damaged=True)
    first = int(reader.chunk_sizes[0])
    assert len(kept) == 100 and numbers.tolist() == list(range(first, first + 100))
    assert "not comparable" in capsys.readouterr().err
