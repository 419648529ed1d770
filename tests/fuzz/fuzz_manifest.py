"""Fuzz target: `manifest.json` of prepared data, `pretrain.data.manifest`."""

import json
import random
from pathlib import Path
from typing import Any

from fuzz_target import Target, refused, to_json
from mutations import mutated_bytes, mutated_tree

from pretrain.common.errors import UserError
from pretrain.data.manifest import outdated, read_manifest, require_files
from pretrain.data.shards import ShardReader

_HASH = "0123456789abcdef" * 4


def valid_manifest(chance: random.Random) -> dict[str, Any]:
    """Draw a manifest that is one."""
    columns = chance.choice((["text"], ["text", "positive"], ["text", "positive", "negative"]))
    manifest: dict[str, Any] = {
        "format": "clear-shards-1",
        "unit": chance.choice(("sentence", "sequence", "document", "record")),
        "max_length": chance.choice((1, 64, 512)),
        "vocabulary_size": 30000,
        "token_dtype": chance.choice(("uint16", "int32")),
        "tokenizer": "tokenizer",
        "tokenizer_hash": _HASH,
        "columns": columns,
        "splits": {split: _split(chance, split) for split in ("train", "heldout")},
    }
    if chance.random() < 0.5:
        manifest |= {"preparation": chance.choice(range(1, 10)), "config": {"unit": "sentence"}}
    if chance.random() < 0.3:
        manifest |= {"labels": 3, "label_names": ["a", "b", "c"]}
    if chance.random() < 0.3:
        manifest["annotation"] = {"language": "en", "parser": "en_core_web_sm", "texts": "whole"}
    if chance.random() < 0.2:
        manifest["cache"] = {"rules": _HASH, "resources": {"wordnet": _HASH}, "content": {"train": _HASH}}
    return manifest


def _split(chance: random.Random, split: str) -> dict[str, Any]:
    shards, rows = [], []
    for number in range(chance.choice((0, 1, 1, 2))):
        chunks, offset = [], 0
        for _ in range(chance.choice((0, 1, 2, 3))):
            size = 512 * chance.randrange(1, 200)
            chunks.append([offset, size, chance.randrange(1, 99), chance.randrange(1, 999), _HASH])
            offset += size
        rows += chunks
        shards.append(
            {
                "file": f"{split}/shard-{number:05d}.tar",
                "bytes": offset + 1024,
                "sha256": _HASH,
                "chunks": chunks,
            }
        )
    sums = {
        "sequences": sum(row[2] for row in rows),
        "tokens": sum(row[3] for row in rows),
        "chunks": len(rows),
    }
    return {**sums, "shards": shards}


class Manifests(Target):
    name = "manifest"
    about = "manifest.json of prepared data; what is accepted opens as a reader whose numbers add up"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._file = folder / "manifest.json"

    def generate(self, chance: random.Random) -> bytes:
        manifest, draw = valid_manifest(chance), chance.random()
        case = to_json(mutated_tree(chance, manifest) if draw < 0.8 else manifest)
        return mutated_bytes(chance, case) if draw > 0.7 else case

    def check(self, case: bytes) -> str:
        self._file.write_bytes(case)
        try:
            manifest = read_manifest(self.folder)
        except UserError as error:
            return refused(error, str(self._file))
        assert json.dumps(manifest) == json.dumps(json.loads(case))
        said = outdated(self.folder, manifest)
        assert said is None or str(self.folder) in said
        for name, split in manifest["splits"].items():
            reader = ShardReader(self.folder, name)
            assert reader.num_chunks == len(reader.chunk_sizes) == split["chunks"]
            assert int(reader.chunk_sizes.sum()) == reader.num_sequences == split["sequences"]
            assert int(reader.chunk_tokens.sum()) == reader.num_tokens == split["tokens"]
            assert (reader.chunk_sizes > 0).all() and (reader.chunk_tokens > 0).all()
            for shard in split["shards"]:
                inside = Path(self.folder, shard["file"]).resolve()
                assert self.folder.resolve() in inside.parents, f"{shard['file']!r} leaves the folder"
        try:
            require_files(self.folder, manifest)
        except UserError as error:
            refused(error, str(self.folder))
            return "accepted, files missing"
        return "accepted"
