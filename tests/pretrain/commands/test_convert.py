"""The command that a refusal of pickled weights prints converts them and loses nothing."""

import json
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import call
from safetensors.torch import load_file
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from augment.core.errors import CannotLoad
from augment.core.pretrained import pretrained_model, require_weights
from pretrain.commands.convert import main
from pretrain.common.errors import UserError

ROOT = Path(__file__).resolve().parents[3]
BERT = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
T5 = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}


def pickle_weights(model, folder: Path) -> dict[str, torch.Tensor]:
    """Save a model as older versions of transformers did; return its tensors."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return model.state_dict()


def run_printed_command(folder: Path) -> None:
    """Run, as a shell would, the command in the message that refuses the folder."""
    with pytest.raises(CannotLoad, match="pickled weights alone") as refused:
        require_weights(folder)
    words = shlex.split(re.search("clearly convert .*", str(refused.value)).group())
    subprocess.run(
        [sys.executable, "-m", "pretrain.clearly", *words[1:]], cwd=ROOT, check=True, capture_output=True
    )


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["t5", "a bert's $HOME"])
def test_the_printed_command_converts_any_model(name, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    torch.manual_seed(1)
    # T5 ties its embeddings: tensors that share memory. BertModel has a pooler and no masked-language head.
    model = T5ForConditionalGeneration(T5Config(**T5)) if name == "t5" else BertModel(BertConfig(**BERT))
    tensors = pickle_weights(model, folder)
    config = (folder / "config.json").read_bytes()
    run_printed_command(folder)
    assert same(load_file(folder / "model.safetensors"), tensors)
    assert (folder / "config.json").read_bytes() == config
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode
    again, report = pretrained_model(type(model), folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert same(again.state_dict(), tensors)


def test_shards_and_the_modules_of_sentence_transformers_are_converted(tmp_path):
    from pretrain.commands.convert import convert

    model, dense = tmp_path / "0_Transformer", tmp_path / "2_Dense"
    model.mkdir()
    dense.mkdir()
    modules = [{"path": "0_Transformer"}, {"path": "1_Pooling"}, {"path": "2_Dense"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    tensors = pickle_weights(BertModel(BertConfig(**BERT)), model)
    shards = {f"pytorch_model-0000{n}-of-00002.bin": list(tensors)[n - 1 :: 2] for n in (1, 2)}
    for file, names in shards.items():
        torch.save({name: tensors[name] for name in names}, model / file)
    (model / "pytorch_model.bin").unlink()
    weight_map = {name: file for file, names in shards.items() for name in names}
    (model / "pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    torch.save({"linear.weight": torch.eye(8)}, dense / "pytorch_model.bin")

    require_weights(tmp_path / "1_Pooling")
    with pytest.raises(CannotLoad, match=r"0_Transformer/pytorch_model-00001-of-00002\.bin"):
        require_weights(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in convert(tmp_path)] == [
        "0_Transformer/model-00001-of-00002.safetensors",
        "0_Transformer/model-00002-of-00002.safetensors",
        "2_Dense/model.safetensors",
        "0_Transformer/model.safetensors.index.json",
    ]
    require_weights(tmp_path)
    assert same(pretrained_model(BertModel, model).state_dict(), tensors)
    assert convert(tmp_path) == []


@pytest.mark.parametrize("content", [b"", pickle.dumps(print), {"a": "text"}, torch.zeros(1)])
def test_what_is_no_dictionary_of_tensors_is_refused_and_not_run(content, tmp_path):
    from pretrain.commands.convert import convert

    if isinstance(content, bytes):
        (tmp_path / "pytorch_model.bin").write_bytes(content)
    else:
        torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CannotLoad, match="holds more than tensors, or is damaged"):
        convert(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    pickle_weights(BertModel(BertConfig(**BERT)), tmp_path)
    call(main, tmp_path)
    assert capsys.readouterr().out == f"wrote {tmp_path / 'model.safetensors'}\n"
    call(main, tmp_path)
    assert capsys.readouterr().out == f"{tmp_path} holds no pickled weights to convert\n"
    with pytest.raises(UserError, match="none: there is no such folder"):
        call(main, tmp_path / "none")
