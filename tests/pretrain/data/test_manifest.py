"""Manifests and chunks that are not what they say: one error that names the place, before anything is
computed."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from loader_helpers import write_folder
from run_helpers import command, finish, records, start

from augment.core.ragged import Ragged
from augment.rules.clause_forms import sentence_spans
from augment.text.parsed import ParsedSentence
from pretrain.common.errors import UserError
from pretrain.data.annotation import Annotation, pack
from pretrain.data.manifest import read_manifest, require_files
from pretrain.data.shard_writer import ShardWriter, split_summary, write_manifest
from pretrain.data.shards import DamagedShard, ShardReader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    sequences = Ragged.from_sequences([[2, *range(5, 6 + n % 7), 3] for n in range(200)])
    splits = {"train": sequences, "heldout": sequences.slice(0, 20)}
    write_folder(folder, splits, 100, 16, chunk_tokens=200, chunks_per_shard=4)
    return folder


def places(tree, path=()):
    """Every place of a JSON tree, its root left out."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def changed(tree, path, value):
    """A copy of a tree with one place replaced, or left out (value ...)."""
    tree = copy.deepcopy(tree)
    node = tree
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return tree


WRONG = (
    ...,
    None,
    -1,
    1 << 70,
    0,
    2.5,
    True,
    "",
    "x",
    "/etc/passwd",
    "../x",
    "a/../../b",
    "\0",
    [],
    {},
    [[]],
    [None],
    {"x": 1},
)


@pytest.mark.full
def test_whatever_is_wrong_in_a_manifest_is_one_error(folder, tmp_path):
    """Every place of a manifest left out or replaced: the data is read as before, or one UserError names the
    file."""
    good = read_manifest(folder)
    shutil.copytree(folder, tmp_path / "data")
    refused = 0
    for path in [path for path in places(good) if path[2:4] not in (("shards", 2), ("shards", 3))]:
        for value in WRONG:
            (tmp_path / "data" / "manifest.json").write_text(json.dumps(changed(good, path, value)))
            try:
                reader = ShardReader(tmp_path / "data")
                require_files(reader.folder, reader.manifest)
                for chunk in range(reader.num_chunks):
                    reader.read(chunk)
            except DamagedShard:
                assert (
                    "chunks" in path
                    or path == ("token_dtype",)
                    or path == ("columns",)
                    or path == ("labels",)
                ), (path, value)
            except UserError as error:
                assert str(tmp_path / "data") in str(error), error
                refused += 1
    assert refused > 500


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.tar", "train/../../x.tar", "", ".", "\ud800"])
@pytest.mark.parametrize("key", ["file", "tokenizer"])
def test_paths_stay_inside_the_folder(folder, tmp_path, key, name):
    manifest = read_manifest(folder)
    if key == "file":
        manifest["splits"]["train"]["shards"][0]["file"] = name
    else:
        manifest["tokenizer"] = name
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=rf"{tmp_path}.*damaged.*{key}"):
        ShardReader(tmp_path)


def test_a_manifest_that_is_no_json_object(tmp_path):
    for text in ("[" * 100_000, "[]", "null", '{"format": "clear-shards-1"}', "{", '"x"'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(UserError, match="damaged"):
            read_manifest(tmp_path)


def test_sizes_are_those_of_the_manifest(folder, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    require_files(data, read_manifest(data))
    with open(data / "heldout" / "shard-00000.tar", "ab") as file:
        file.write(b"\0")
    (data / "train" / "shard-00001.tar").unlink()
    with pytest.raises(
        UserError,
        match=rf"{data} lacks.*train/shard-00001.tar is missing; heldout/shard-00000.tar has .* bytes",
    ):
        require_files(data, read_manifest(data))


def test_a_run_looks_at_the_files_of_both_splits_before_its_first_evaluation(tiny_data, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(tiny_data, data)
    for shard in [*(data / "train").glob("*.tar")][-1:]:
        shard.write_bytes(shard.read_bytes()[:-512])
    output = finish(start(command(data, tmp_path / "run", train__steps=3)), expect=2)
    assert str(data) in output and "bytes instead of" in output and "--data.damaged skip" in output
    assert "Traceback" not in output and not records(tmp_path / "run")


def write_chunk(folder, monkeypatch=None, labels=None, **arrays):
    """Prepared data of one chunk of four sequences, its arrays as given."""
    chunk = Ragged(np.arange(5, 17, dtype=np.int32), np.array([0, 3, 6, 9, 12]))
    with ShardWriter(folder / "train" / "shard-00000.tar", arrays.pop("dtype", "uint16")) as shard:
        sequences = Ragged(arrays.pop("ids", chunk.ids), chunk.offsets)
        original = shard._tar.write

        def write(sample):
            original(
                {
                    **sample,
                    **{
                        key.replace("__", "."): np.asarray(a).astype("<u4").tobytes()
                        for key, a in arrays.items()
                    },
                }
            )

        shard._tar.write = write
        shard.write(sequences, labels=labels)
    return reader_of(folder, shard, **({"labels": 3, "unit": "record"} if labels is not None else {}))


def reader_of(folder: Path, shard: ShardWriter, **more: object) -> ShardReader:
    """Write the manifest of a folder with one shard, and open it."""
    manifest = {
        "format": "clear-shards-1",
        "unit": "sentence",
        "max_length": 8,
        "vocabulary_size": 100,
        "tokenizer": "tokenizer",
        "token_dtype": shard.dtype,
        "tokenizer_hash": "",
        "splits": {"train": split_summary([shard.record])},
    }
    write_manifest(folder, manifest | more)
    return ShardReader(folder)


@pytest.mark.parametrize(
    "wrong,said",
    [
        ({"ids": np.full(12, -1, np.int32), "dtype": "int32"}, "token -1 is negative"),
        ({"sequence_starts__u32": [1, 3, 6, 9]}, "first sequence starts at token 1"),
        ({"sequence_starts__u32": [0, 6, 3, 9]}, "sequence_starts do not rise from 0 to 12"),
        ({"sentence_starts__u32": [1, 40]}, "sentence_starts do not rise from 0 to 12"),
        ({"document_starts__u32": [5, 2]}, "document_starts do not rise from 0 to 12"),
        ({"labels": np.array([0, 1, 2, 3])}, "4 labels from 0 to 2"),
        ({"labels": np.array([0, 1, -1, 2])}, "4 labels from 0 to 2"),
        ({"labels": np.array([0, 1])}, "4 labels from 0 to 2"),
    ],
)
def test_a_chunk_with_a_good_hash_and_arrays_out_of_range(tmp_path, wrong, said):
    assert len(write_chunk(tmp_path / "good").read(0).sequences) == 4
    with pytest.raises(DamagedShard, match=said):
        write_chunk(tmp_path / "bad", **wrong).read(0)


# ---- annotations ------------------------------------------------------------------------------------------


def sentence(text: str, heads: tuple[int, ...]) -> ParsedSentence:
    words = text.split(" ")
    starts = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
    n = len(words)
    return ParsedSentence(
        text,
        tuple(starts),
        tuple(s + len(w) for s, w in zip(starts, words)),
        ("NN",) * n,
        ("NOUN",) * n,
        tuple(f"lemma-{word}" for word in words),
        heads,
        ("dep",) * n,
        "en",
    )


SENTENCES = [
    sentence("The dog barked", (1, 2, 2)),
    sentence("Ä 😀 runs .", (2, 0, 2, 2)),
    sentence("alone", (0,)),
    ParsedSentence("no parse here", (), (), (), (), (), (), (), "en"),
]


def with_item(members: dict[str, bytes], name: str, place: int, value: int) -> dict[str, bytes]:
    array = np.frombuffer(
        members[name], "u1" if name.endswith("u8") else "<u2" if name.endswith("u16") else "<u4"
    ).copy()
    array[place] = value
    return members | {name: array.tobytes()}


@pytest.mark.parametrize(
    "name,place,value,said",
    [
        ("word_heads.u16", 0, 3, "text 0.*depends on a word that is not there"),
        ("word_heads.u16", 2, 0, "text 0.*cycle"),
        ("word_heads.u16", 5, 0, "text 1.*cycle"),
        ("word_tags.u16", 7, 1, "text 2.*word_tags names a row"),
        ("word_lemmas.u16", 0, 99, "text 0.*word_lemmas names a row"),
        ("word_relations.u8", 3, 1, "text 1.*word_relations names a row"),
        ("word_ends.u16", 2, 15, "text 0.*outside the text"),
        ("word_ends.u16", 6, 11, "text 1.*outside the text"),  # 10 characters, 14 bytes
        ("word_starts.u16", 1, 1, "text 0.*overlap"),
        ("word_ends.u16", 0, 0, "text 0.*outside the text"),
        ("text_ends.u32", 1, 10, "do not rise"),
        ("text_ends.u32", 0, 15, "inside a character"),
        ("words.u16", 0, 9, "do not belong together"),
    ],
)
def test_an_annotation_that_names_what_is_not_there_is_refused(name, place, value, said):
    members = pack(SENTENCES)
    assert [Annotation(members, "en")[row] for row in range(4)] == SENTENCES
    with pytest.raises(ValueError, match=said):
        Annotation(with_item(members, name, place, value), "en")


@pytest.mark.parametrize(
    "tables",
    [
        "[]",
        "{}",
        '{"tags": [["NN"]], "relations": [], "lemmas": []}',
        "[" * 100_000,
        '{"tags": [["NN", "N"]], "relations": [1], "lemmas": []}',
        '{"tags": [["NN", "N"]], "relations": ["dep"], "lemmas": "lemmas"}',
    ],
)
def test_tables_that_are_none_are_refused(tables):
    with pytest.raises((ValueError, KeyError, RecursionError)):
        Annotation(pack(SENTENCES) | {"tables.json": tables.encode()}, "en")


def test_heads_are_refused_exactly_where_a_word_comes_to_no_root():
    """Random heads: refused if and only if following them, word by word, comes to no root."""
    random = np.random.default_rng(7)
    outcomes = set()
    for _ in range(400):
        size = int(random.integers(1, 9))
        heads = [int(random.integers(0, size)) if random.random() < 0.7 else i for i in range(size)]

        def comes_to_root(word, heads=heads):
            for _ in heads:
                word = heads[word]
            return heads[word] == word

        sound = all(map(comes_to_root, range(size)))
        members = pack([sentence(" ".join("word" for _ in heads), tuple(heads))])
        outcomes.add(sound)
        if sound:
            sentence_spans(Annotation(members, "en")[0])  # follows heads to their root
        else:
            with pytest.raises(ValueError, match="cycle"):
                Annotation(members, "en")
    assert outcomes == {True, False}
    long = [*range(1, 3000), 2999]  # the deepest tree: every word hangs on the next
    assert len(Annotation(pack([sentence(" ".join("a" for _ in long), tuple(long))]), "en")) == 1
    long[-1] = 0
    with pytest.raises(ValueError, match="cycle"):
        Annotation(pack([sentence(" ".join("a" for _ in long), tuple(long))]), "en")


def test_an_annotation_with_a_cycle_is_a_damaged_chunk(tmp_path: Path):
    sequences = Ragged.from_sequences([[2, 7, 8, 9, 3]])
    with ShardWriter(tmp_path / "train" / "shard-00000.tar", "uint16") as shard:
        shard.write(sequences, annotation=pack([sentence("The dog barked", (1, 0, 2))]))
    reader = reader_of(tmp_path, shard, annotation={"language": "en"})
    with pytest.raises(DamagedShard, match=rf"{tmp_path}.*chunk 0.*cycle"):
        reader.read(0)
