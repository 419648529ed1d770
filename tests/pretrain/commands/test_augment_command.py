"""Run `clearly augment` as a user does."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import augment_tokenizers
import parse_builder
import pytest
from tokenizers.processors import BertProcessing

from augment.core.errors import AugmentationError
from augment.spec.catalogue import CATALOGUE
from augment.spec.sets import SETS
from pretrain.commands import augment as command_line
from pretrain.common import cli
from pretrain.common.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess:
    """Run it in its own process, which takes a second: for standard input and the exit status."""
    return subprocess.run(
        [sys.executable, "-m", "augment", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "160", "PYTHONPATH": str(ROOT)},
        **({"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}),
    )


@pytest.fixture
def call(monkeypatch, capsys):
    """Return what runs it in this process: (exit status, standard output, standard error)."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.setattr(sys, "argv", ["augment", *arguments])
        monkeypatch.setattr(command_line, "is_piped", lambda: False)
        capsys.readouterr()
        with pytest.raises(SystemExit) as leaving:
            cli.run(command_line.main)
        captured = capsys.readouterr()
        return leaving.value.code, captured.out, captured.err

    return command


@pytest.mark.full
def test_shows_built_in_sentences_without_input(call):
    result = run("--aug", "del-span,reorder")
    assert result.returncode == 0, result.stderr
    for text in (
        "original",
        "view 1",
        "view 2",
        "changed",
        "[DEL]",
        "tokenizer: made of these",
        "4 sentences",
    ):
        assert text in result.stdout
    assert call("--aug", "del-span,reorder")[1] == result.stdout
    assert call("--aug", "del-span,reorder", "--seed", "1")[1] != result.stdout


@pytest.mark.full
def test_sentences_from_text_file_and_standard_input(tmp_path, call):
    plain = tmp_path / "sentences.txt"
    plain.write_text("one two three\n\nfour five six\nseven eight\n")
    packed = tmp_path / "sentences.txt.gz"
    with gzip.open(packed, "wt") as file:
        file.write(plain.read_text())
    outputs = [
        call(str(plain), "--aug", "none")[1],
        call(str(packed), "--aug", "none")[1],
        run("--aug", "none", stdin=plain.read_text()).stdout,
        run("-", "--aug", "none", stdin=plain.read_text()).stdout,
    ]
    assert len(set(outputs)) == 1
    assert "four five six" in outputs[0] and "3 sentences: 0% of the tokens changed" in outputs[0]
    assert "1 sentence:" in call(str(plain), "--aug=none", "--limit", "1")[1]
    assert "12, 13" in call("--aug", "none", "--text", "12, 13")[1].replace("12 , 13", "12, 13")


def test_sentences_from_a_pipe_that_has_a_name(tmp_path, call):
    """As of the shell's <(command)."""
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", 'echo "a bird sings" > "$0"', str(tmp_path / "pipe")]):
        code, out, err = call(str(tmp_path / "pipe"), "--aug", "none")
    assert code == 0 and "a bird sings" in out, err


@pytest.mark.parametrize("folder", ["short", "/".join(["a folder with a long name"] * 8)])
def test_tokenizer_folder_and_synonyms(tmp_path, call, monkeypatch, folder):
    tokenizer = augment_tokenizers.byte_level(delete=False)
    sep, cls = (tokenizer.convert_tokens_to_ids(token) for token in ("[SEP]", "[CLS]"))
    tokenizer.backend_tokenizer.post_processor = BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    table = tmp_path / folder / "table.json"
    table.parent.mkdir(parents=True)
    table.write_text(json.dumps({"big": ["large"]}))
    text = [
        "--text",
        "a Big house is big",
        "--synonyms",
        str(table),
        "--aug",
        "subs:rate=0.1,del-word:rate=0.0",
    ]
    monkeypatch.setenv("HOME", str(tmp_path))
    status, output, error = call(*text, "--tokenizer=~/tokenizer")
    assert status == 0, error
    assert "large" in output.lower()
    (line,) = (line for line in output.splitlines() if line.startswith("synonyms: "))
    assert str(table) in line and "62.5% of the tokens" in line
    assert "large" in call(*text)[1].lower()


def test_list_and_help(call):
    status, listed, error = call("--list")
    assert (status, error) == (0, "")
    for text in (*CATALOGUE, "rate=0.7", "CLEAR", "ESimCSE", "DeCLUTR", "VaSCL", "SDA"):
        assert text in listed
    status, page, error = call("--help", "all")
    assert (status, error) == (0, "")
    for syntax in ("one after the other", *SETS):
        assert syntax in page and syntax in listed
    for text in ("--aug str (default del-span,reorder)", "--tokenizer", "--synonyms", "--list"):
        assert text in page
    assert "--list" in call("--help")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agu", "none"], "did you mean --aug?"),
        (["--aug", "del-spam"], "did you mean 'del-span'"),
        (["--seed", "x"], "--seed: Input should be a valid integer"),
        (["--limit", "0"], "--limit: Input should be greater than or equal to 1 (got '0')"),
        (["A lazy dog."], "there is no file A lazy dog.; a sentence is given by --text"),
        (["--text", "a", "b.txt"], "not both"),
        (["--tokenizer", "nowhere"], "tokenizer nowhere cannot be opened"),
        (["--aug", "subs", "--synonyms", "nowhere.json"], "nowhere.json does not exist"),
    ],
)
def test_errors_are_one_message(call, arguments, message):
    status, _, error = call(*arguments)
    assert status == 2
    assert message in error and len(error.strip().splitlines()) == 1


def test_empty_input_is_an_error():
    result = run(stdin="\n \n")
    assert result.returncode == 2 and "no sentences" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.full
def test_input_that_is_no_text_is_an_error(tmp_path, call):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C"}
    environment.pop("PYTHONIOENCODING", None)
    damaged = b"a line\ncaf\xe9 \xff\n"
    for given, said in (
        (["-"], "standard input cannot be read as text"),
        ([], "standard input cannot be read as text"),
        (["--text", damaged], "--text is not UTF-8"),
    ):
        words = [sys.executable, "-m", "augment", *given]
        result = subprocess.run(words, input=damaged, capture_output=True, env=environment)
        error = result.stderr.decode()
        assert result.returncode == 2 and said in error and "Traceback" not in error
    whole = gzip.compress(os.urandom(3000).hex().encode())
    for damaged in (whole[:1000], whole[:500] + b"\xff" * 200 + whole[700:]):
        (tmp_path / "a.gz").write_bytes(damaged)
        status, _, error = call(str(tmp_path / "a.gz"))
        assert status == 2 and "a.gz is cut short or damaged" in error


def test_the_list_says_what_text_augmentations_do_to_the_meaning_and_need(call):
    status, output, _ = call("--list")
    entry = output[output.index("\nneg  (text)") :]
    assert status == 0 and "meaning: altering" in entry and "needs: a dependency parse (--parser" in entry
    assert "phrases=sound (one of sound, published)" in output
    for said in (
        "a synonym table",
        r"a tokenizer with \[DEL\]",
        "a tokenizer with punct",
        "tags and lemmas",
        "WordNet",
    ):
        assert re.search(rf"needs: (.*, )?{said}", output)
    assert "a model: " in output and "model:" not in output.replace("a model: ", "")
    assert "He travelled widely in Europe. -> He did not travel widely in Europe." in entry


def test_text_augmentations_are_shown_as_they_write(call, monkeypatch):
    text = "Zoë said  “no”."
    parsed = parse_builder.parse(
        text, "Zoë/NNP/nsubj/2 said/VBD/ROOT/0 “/``/punct/4 no/UH/obj/2 ”/''/punct/4 ././punct/2"
    )
    monkeypatch.setattr(command_line, "parse_texts", lambda texts, model: [parsed for _ in texts])
    status, output, _ = call("--aug", "neg", "--text", text, "--parser", "any")
    assert status == 0 and "Zoë did not say  “no”." in output and text in output
    status, output, _ = call("--aug", "neg,del-word:rate=0.9", "--text", text, "--parser", "any")
    assert status == 0 and "[DEL]" in output


def test_a_missing_parser_is_one_clear_error(call, monkeypatch):
    monkeypatch.delenv("CLEAR_PARSER", raising=False)
    monkeypatch.setattr("spacy.util.get_installed_models", lambda: [])
    status, _, error = call("--aug", "pi", "--text", "Rain fell.")
    assert status == 2 and "spacy download en_core_web_sm" in error and "--parser" in error
    status, _, error = call("--aug", "pi", "--text", "Rain fell.", "--parser", "nowhere")
    assert status == 2 and "'nowhere' cannot be loaded" in error


def test_what_is_no_sentence_is_refused_and_pipes_are_told_from_terminals(tmp_path, monkeypatch):
    """/dev/null and a closed standard input have nothing to wait for."""
    file = tmp_path / "a.txt"
    for content in (b"a b\xff\n", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.txt cannot be read as text"):
            command_line.read_sentences(str(file), "", 5)
    file.write_bytes(b" \n\na\n b \n\nc\n\xff\n")
    assert command_line.read_sentences(str(file), "", 3) == ["a", "b", "c"]  # and no more is read
    file.write_bytes(b"\n \n")
    for given, said in ((str(file), r"no sentences in .*a\.txt"), ("", "no sentences in --text")):
        with pytest.raises(AugmentationError, match=said):
            command_line.read_sentences(given, "" if given else " ", 5)
    with pytest.raises(AugmentationError, match="--text is not UTF-8"):
        command_line.read_sentences("", "a \udcff", 5)
    with pytest.raises(AugmentationError, match="a file or --text, not both"):
        command_line.read_sentences(str(file), "a", 5)
    with pytest.raises(UserError, match="is a file: give it without --text"):
        command_line.read_sentences("", str(file), 5)
    for gone in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match="there is no file"):
            command_line.read_sentences(str(gone), "", 5)
    file.write_bytes(b"piped\n")
    for name, piped in ((file, True), ("/dev/null", False)):
        with open(name) as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert command_line.is_piped() is piped
            found = command_line.read_sentences("", "", 2)
            assert found == (["piped"] if piped else list(command_line.EXAMPLES[:2]))
    monkeypatch.setattr(sys, "stdin", stream)  # closed
    assert command_line.is_piped() is False
    reader, writer = os.pipe()
    os.close(writer)
    with os.fdopen(reader) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert command_line.is_piped() is True


def test_a_table_is_looked_for_only_where_it_is_used(call, monkeypatch, tmp_path):
    def nowhere() -> Path:
        raise AugmentationError("no synonym table found")

    monkeypatch.setattr("augment.tokens.synonyms.find_synonyms", nowhere)
    assert call("--aug", "reorder", "--text", "A dog runs and a cat sleeps.")[0] == 0
    status, _, error = call("--aug", "subs", "--text", "A dog runs.")
    assert status == 2 and "no synonym table found" in error
