"""Fuzz target: source files, `pretrain.prepare.sources`: text, jsonl, csv and tsv, plain and compressed."""

import bz2
import gzip
import json
import lzma
import random
from typing import Any

import zstandard
from fuzz_target import Target, refused, to_json
from mutations import mutated_bytes, mutated_text, mutated_tree, odd_text

from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.readers import ReadTask
from pretrain.prepare.sources.records import TextRecord, records
from pretrain.prepare.sources.rows import RowFaults, documents

_COMPRESS = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1, mtime=0),
    ".bz2": lambda data: bz2.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": lambda data: zstandard.compress(data, 1),
}
_FIELDS = ("text", "positive", "negative", "augmented", "label", "sent0", "sent1", "hard_neg", "txt", "id")
_WORDS = (
    "A man is here.",
    "Tu es là.",
    "北京很大。",
    "x",
    "",
    " ",
    "two\nlines",
    'says "so"',
    "a,b",
    "a\tb",
    "1",
    "-3",
    "٣",
    "é" * 40,
)


class Sources(Target):
    """A case is a line of JSON, how the file is read, and the file's bytes."""

    name = "sources"
    about = "source files; any cutting into stripes gives the same documents, all of them Unicode"

    def generate(self, chance: random.Random) -> bytes:
        kind = chance.choice(("txt", "txt", "jsonl", "jsonl", "csv", "csv", "tsv"))
        rows = [self._row(chance) for _ in range(chance.choice((0, 1, 2, 5, 12)))]
        data = getattr(self, f"_{kind}")(chance, rows)
        if chance.random() < 0.5:
            data = mutated_bytes(chance, data)
        if chance.random() < 0.05:
            data = chance.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) + data
        ending = chance.choice(("", "", "", *_COMPRESS))
        data = _COMPRESS[ending](data)
        if ending and chance.random() < 0.5:
            data = mutated_bytes(chance, data, 1) if chance.random() < 0.7 else data + data
        said = {
            "file": f"a.{kind}{ending}",
            "layout": chance.choice(("auto", "lines", "paragraphs", "passages")),
            "records": chance.random() < 0.5,
            "other_fields": chance.choice(("refuse", "ignore", "ignore")),
            "stripes": chance.choice((1, 2, 3, 7)),
        }
        return to_json(said) + b"\n" + data

    def _row(self, chance: random.Random) -> dict[str, Any]:
        row: dict[str, Any] = {"text": chance.choice(_WORDS)}
        for field in chance.sample(_FIELDS, chance.choice((0, 0, 0, 1, 2, 3))):
            row[field] = chance.randrange(3) if field == "label" else chance.choice(_WORDS)
        row = mutated_tree(chance, row, 1) if chance.random() < 0.2 else row
        return row if isinstance(row, dict) else {"text": row}

    def _txt(self, chance: random.Random, rows: list[dict[str, Any]]) -> bytes:
        end = chance.choice(("\n", "\n", "\r\n", "\n\n", "\r"))
        return end.join(str(row.get("text", "")) for row in rows).encode("utf-8", "surrogatepass")

    def _jsonl(self, chance: random.Random, rows: list[dict[str, Any]]) -> bytes:
        if rows and chance.random() < 0.05:
            return b"[" * 100_000
        return b"\n".join(
            json.dumps(row, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
            for row in rows
        )

    def _csv(
        self, chance: random.Random, rows: list[dict[str, Any]], mark: str = ",", quote: str = '"'
    ) -> bytes:
        header = list(dict.fromkeys(key for row in rows[:1] for key in row))
        lines = [header, *([row.get(key, "") for key in header] for row in rows)]

        def cell(value: object) -> str:
            text = str(value) if chance.random() < 0.9 else mutated_text(chance, odd_text(chance), 1)
            always = chance.random() < 0.2
            return (
                quote + text.replace(quote, quote * 2) + quote
                if quote and (always or set(text) & set(',"\n'))
                else text
            )

        text = "\n".join(mark.join(map(cell, line)) for line in lines)
        return text.encode("utf-8", "surrogatepass")

    def _tsv(self, chance: random.Random, rows: list[dict[str, Any]]) -> bytes:
        return self._csv(chance, rows, "\t", "")

    def check(self, case: bytes) -> str:
        line, _, data = case.partition(b"\n")
        said = json.loads(line)
        file = self.folder / said["file"]
        file.write_bytes(data)
        source = Source(source=str(file), layout=said["layout"], other_fields=said["other_fields"])
        try:
            planned = plan_tasks([source], said["records"])
            (task,) = planned
            found = self._read(task, 0, 1, source, said["records"])
        except UserError as error:
            return refused(error, str(file))
        striped = []
        if task.layout != "passages" and source.layout != "passages":
            stripes = said["stripes"]
            try:
                striped = [
                    self._read(task, stripe, stripes, source, said["records"]) for stripe in range(stripes)
                ]
            except UserError as error:
                # a share may hold nothing but broken rows, or be the first to hold a label
                return "accepted, a share " + refused(error, str(file))
            together = [item for share in striped for item in share]
            assert sorted(map(repr, together)) == sorted(map(repr, found)), "stripes give other documents"
        return "accepted"

    def _read(self, task: ReadTask, stripe: int, stripes: int, source: Source, as_records: bool) -> list[Any]:
        share = ReadTask(task.source, task.kind, task.place, stripe, stripes, task.size, task.layout)
        found: list[Any] = []
        if as_records:
            found += records(share, source)
            for record in found:
                assert isinstance(record, TextRecord) and record.texts[0] and len(record.texts) == 4
                "".join(record.texts).encode()
                assert record.label is None or 0 <= record.label < 2**31
            return found
        faults = RowFaults()
        for text in documents(share, source, faults):
            text.encode()
            found.append(text)
        for named in faults.named:
            assert named.startswith(task.place) and len(named) < 1000, named
        return found
