"""Fuzz target: chunks of shards, which are pieces of tar files, `pretrain.data.shards`."""

import hashlib
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_target import Target, refused, to_json
from mutations import NUMBERS, mutated_bytes, odd_text
from random_parses import random_parse

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.data.annotation import pack
from pretrain.data.shard_writer import ShardWriter, split_summary
from pretrain.data.shards import DamagedShard, ShardReader

_HEADER = 512


class Shards(Target):
    """A case is a line of JSON, what the manifest says, and the bytes of one chunk."""

    name = "shard"
    about = "chunks of tar files, with a hash that agrees; what is accepted is in range and decodes"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "train").mkdir()
        chance = random.Random(0)
        self._chunks = [self._written(chance, number) for number in range(60)]

    def _written(self, chance: random.Random, number: int) -> tuple[dict[str, Any], bytes]:
        """Write a chunk as a preparation does; return what the manifest says of it, and its bytes."""
        width, dtype = chance.choice((1, 1, 2, 3)), chance.choice(("uint16", "int32"))
        count = chance.choice((1, 2, 5))
        sequences = Ragged.from_sequences(
            [[chance.randrange(9) for _ in range(chance.randrange(1, 6))] for _ in range(count * width)]
        )
        labels = np.array([chance.randrange(3) for _ in range(count)]) if chance.random() < 0.3 else None
        parses = (
            [random_parse(100 * number + row) for row in range(count * width)]
            if chance.random() < 0.5
            else None
        )
        with ShardWriter(self.folder / "train" / "written.tar", dtype) as shard:
            shard.write(
                sequences,
                sequences.offsets[:-1],
                sequences.offsets[:1],
                width,
                labels,
                parses and pack(parses),
            )
        row = shard.record["chunks"][0]
        said = {
            "token_dtype": dtype,
            "columns": ["text", "positive", "negative"][:width],
            "labels": 0 if labels is None else 3,
            "annotation": {"language": "en"} if parses else None,
            "sequences": row[2],
            "tokens": row[3],
        }
        return said, (self.folder / "train" / "written.tar").read_bytes()[row[0] : row[0] + row[1]]

    def generate(self, chance: random.Random) -> bytes:
        said, data = chance.choice(self._chunks)
        said, draw = dict(said), chance.random()
        if draw < 0.2:
            key = chance.choice(("sequences", "tokens"))
            said[key] = max(1, chance.choice((said[key] + 1, said[key] - 1, chance.choice(NUMBERS)))) % (
                1 << 62
            )
        elif draw < 0.3:
            other, _ = chance.choice(self._chunks)
            key = chance.choice(list(said))
            said[key] = other[key]
        if draw < 0.1:
            pass
        elif draw < 0.6:
            data = self._member_damaged(chance, data)
        elif draw < 0.85:
            data = self._header_damaged(chance, data)
        else:
            data = mutated_bytes(chance, data)
        return to_json(said) + b"\n" + data

    def _member_damaged(self, chance: random.Random, data: bytes) -> bytes:
        """Change one member, and write a tar of them."""
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            members = [(one.name, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]
        number = chance.randrange(len(members))
        name, content = members[number]
        kind = chance.randrange(12)
        if kind == 0:
            members.pop(number)
        elif kind == 1:
            members.append((name, chance.choice(members)[1]))
        elif kind == 2:
            members[number] = (odd_text(chance).encode("utf-8", "replace").decode()[:90] or "x", content)
        elif kind < 6 and len(content) >= 4:
            numbers = np.frombuffer(content[: len(content) // 4 * 4], "<u4").copy()
            numbers[chance.randrange(len(numbers))] = chance.choice(NUMBERS) % (1 << 32)
            members[number] = (name, numbers.tobytes())
        else:
            members[number] = (name, mutated_bytes(chance, content, 1))
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, content in members:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                try:
                    tar.addfile(info, io.BytesIO(content))
                except ValueError:  # a name that no such header takes
                    continue
        return stream.getvalue()

    def _header_damaged(self, chance: random.Random, data: bytes) -> bytes:
        """Change the type, the size or another field of a member's header, and make its sum agree."""
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            start = chance.choice([one.offset for one in tar])
        header = bytearray(data[start : start + _HEADER])
        kind = chance.randrange(4)
        if kind == 0:
            header[156:157] = chance.choice(
                (b"0", b"1", b"2", b"5", b"7", b"g", b"x", b"L", b"K", b"S", b"V", b"\0")
            )
        elif kind == 1:
            size = chance.choice((0, 1, 511, 512, 513, 8**11 - 1, 2**33 - 1, 10**6))
            header[124:136] = f"{size:011o}\0".encode()
        elif kind == 2:
            header[124:136] = bytes([chance.choice((128, 255))]) + bytes(
                chance.randrange(256) for _ in range(11)
            )
        else:
            place = chance.randrange(_HEADER)
            header[place] = chance.randrange(256)
        header[148:156] = b" " * 8
        header[148:156] = f"{sum(header):06o}\0 ".encode()
        return data[:start] + bytes(header) + data[start + _HEADER :]

    def check(self, case: bytes) -> str:
        line, _, data = case.partition(b"\n")
        said = json.loads(line)
        digest = hashlib.sha256(data).hexdigest()
        file = self.folder / "train" / "shard-00000.tar"
        file.write_bytes(data)
        row = [0, len(data), said["sequences"], said["tokens"], digest]
        manifest = {
            "format": "clear-shards-1",
            "unit": "sentence",
            "max_length": 64,
            "vocabulary_size": 9,
            "token_dtype": said["token_dtype"],
            "tokenizer": "tokenizer",
            "tokenizer_hash": "",
            "columns": said["columns"],
            "labels": said["labels"],
            "annotation": said["annotation"],
            "splits": {
                "train": split_summary(
                    [{"file": "train/shard-00000.tar", "bytes": len(data), "sha256": digest, "chunks": [row]}]
                )
            },
        }
        if not data:
            return "empty"
        (self.folder / "manifest.json").write_bytes(to_json(manifest))
        try:
            reader = ShardReader(self.folder)
        except UserError as error:
            return refused(error, str(self.folder))
        try:
            chunk = reader.read(0)
        except DamagedShard as error:
            return refused(error, str(file), "chunk 0")
        finally:
            reader.close()
        stored, width = chunk.stored, len(chunk.columns)
        assert len(stored) == said["sequences"] * width == len(chunk.sequence_ids) * width
        assert stored.num_tokens == said["tokens"] == stored.offsets[-1] and stored.offsets[0] == 0
        assert (stored.lengths >= 0).all() and (stored.ids >= 0).all()
        for starts in (chunk.sentence_starts, chunk.document_starts):
            assert (np.diff(starts) >= 0).all() and ((starts >= 0) & (starts <= len(stored.ids))).all()
        assert sum(len(chunk.column(name)) for name in chunk.columns) == len(stored)
        if chunk.labels is not None:
            assert ((chunk.labels >= 0) & (chunk.labels < said["labels"])).all()
        if chunk.annotation is not None:
            assert all(chunk.annotation[row].text == chunk.annotation.text(row) for row in range(len(stored)))
        return "accepted"
