"""`python -m augment` as a user runs it."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import augment_tokenizers
import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess:
    variables = {**os.environ, "COLUMNS": "160", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-m", "augment", *arguments],
        capture_output=True,
        text=True,
        env=variables,
        timeout=120,
        **({"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}),
    )


def test_shows_built_in_sentences_without_input():
    result = run("--aug", "del-span,reorder")
    assert result.returncode == 0, result.stderr
    for text in ("original", "view 1", "view 2", "changed", "[DEL]", "WordPiece one was made", "4 sentences"):
        assert text in result.stdout
    assert run("--aug", "del-span,reorder").stdout == result.stdout
    assert run("--aug", "del-span,reorder", "--seed", "1").stdout != result.stdout


def test_sentences_from_text_file_and_standard_input(tmp_path):
    plain = tmp_path / "sentences.txt"
    plain.write_text("one two three\n\nfour five six\nseven eight\n")
    packed = tmp_path / "sentences.txt.gz"
    with gzip.open(packed, "wt") as file:
        file.write(plain.read_text())
    outputs = [
        run(str(plain), "--aug", "none").stdout,
        run(str(packed), "--aug", "none").stdout,
        run("--aug", "none", stdin=plain.read_text()).stdout,
        run("-", "--aug", "none", stdin=plain.read_text()).stdout,
    ]
    assert len(set(outputs)) == 1
    assert "four five six" in outputs[0] and "3 sentences: 0% of the tokens changed" in outputs[0]
    assert "1 sentence:" in run(str(plain), "--aug=none", "--limit", "1").stdout
    assert "12, 13" in run("--aug", "none", "--text", "12, 13").stdout.replace("12 , 13", "12, 13")


def test_tokenizer_folder_and_synonyms(tmp_path):
    augment_tokenizers.byte_level(delete=False).save_pretrained(tmp_path / "tokenizer")
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"big": ["large"]}))
    arguments = [
        "--aug",
        "subs:rate=0.1,del-word:rate=0.0",
        "--text",
        "a Big house is big",
        "--synonyms",
        str(table),
    ]
    result = run(*arguments, "--tokenizer", str(tmp_path / "tokenizer"))
    assert result.returncode == 0, result.stderr
    assert "large" in result.stdout.lower() and "of 5 words" in result.stdout
    assert "large" in run(*arguments).stdout.lower()


def test_list_and_help():
    listed = run("--list")
    assert listed.returncode == 0
    for text in (
        "del-word",
        "del-span",
        "reorder",
        "subs",
        "repeat",
        "crop",
        "rate=0.7",
        "CLEAR",
        "ESimCSE",
        "example",
    ):
        assert text in listed.stdout
    page = run("--help")
    assert page.returncode == 0
    for text in (
        "--aug (default: del-span,reorder)",
        "--tokenizer",
        "--synonyms",
        "--list",
        "name",
        "one after the other",
    ):
        assert text in page.stdout
    assert "Traceback" not in page.stderr + listed.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agu", "none"], "did you mean --aug?"),
        (["--aug", "del-spam"], "did you mean 'del-span'"),
        (["--seed", "x"], "--seed x"),
        (["--limit", "0"], "--limit 0"),
        (["no such file"], "no such file cannot be read"),
        (["--text", "a", "b.txt"], "not both"),
        (["--tokenizer", "nowhere"], "nowhere: no such folder"),
        (["--aug", "subs", "--synonyms", "nowhere.json"], "nowhere.json does not exist"),
    ],
)
def test_errors_are_one_message(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr and "Traceback" not in result.stderr and result.stderr.count("\n") == 1


def test_empty_input_is_an_error():
    result = run(stdin="\n \n")
    assert result.returncode == 2 and "no sentences" in result.stderr


def test_augment_imports_no_torch():
    code = "import sys, augment.registry, augment.preview; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
