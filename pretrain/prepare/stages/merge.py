"""The last stage of preparation: what the tasks counted and wrote becomes the manifest."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections import Counter
from typing import Any

from pretrain.common.errors import UserError
from pretrain.data.annotation import WHOLE
from pretrain.data.manifest import PREPARATION
from pretrain.data.shards import FORMAT, split_summary, token_dtype, write_manifest
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.prepare.stages.texts import SPLITS, Step

MOST_FAULTS = 20  # named in the manifest; `counts` has the number of all


class Merge(Step):
    """Put the tokenizer in place and write the manifest: from then on the folder is prepared data."""

    name = "merge"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        counts: Counter[str] = Counter()
        for stage in ("reader", "read", "resolve"):
            for path in sorted((self.work / "counts" / stage).glob("*.json")):
                counts.update(json.loads(path.read_text()))
        if self.config.unit != "record":
            counts["documents_near_duplicate"] = counts.pop("documents_read") - counts["documents"]
        faults = [fault for path in sorted((self.work / "counts" / "faults").glob("*.json"))
                  for fault in json.loads(path.read_text())["named"]]  # fmt: skip
        shards: dict[str, list] = {split: [] for split in SPLITS}
        # the stage that packs, and that which writes shards of what was packed
        for stage in ("build", "shuffle"):
            for path in sorted((self.work / "counts" / stage).glob("*.json")):
                done = json.loads(path.read_text())
                counts.update(done.get("counts", {}))
                for split, record in done["shards"].items():
                    shards[split].append(record)
        summaries = {split: split_summary(records) for split, records in shards.items()}
        if not summaries["train"]["sequences"]:
            raise UserError(
                f"No training sequence came out of {self.plan['described']}; check the source and min_words."
            )
        if self.config.heldout and not summaries["heldout"]["sequences"]:
            raise UserError(
                f"No held-out sequence came out of {self.plan['described']}: its text is too little, or "
                "what was held out "
                "fell to long_sentences or a weight below 1, or stands in training text too. Give more "
                "text, or --heldout 0."
            )
        tokenizer = self.out / "tokenizer"
        if not tokenizer.exists():
            os.replace(self.work / "tokenizer", tokenizer)
        config = self.config
        vocabulary = json.loads((self.work / "counts" / "tokenizer" / "00000.json").read_text())[
            "vocabulary_size"
        ]
        annotation = {}
        if config.annotate is not None:
            figures = {"words": counts.pop("annotated_words"), "bytes": counts.pop("annotation_bytes")}
            annotation = {"annotation": {**self.plan["annotation"], "texts": WHOLE, **figures}}
        manifest = {
            "format": FORMAT,
            "preparation": PREPARATION,
            "unit": config.unit,
            "max_length": config.max_length,
            **self.columns,
            "vocabulary_size": vocabulary,
            "token_dtype": token_dtype(vocabulary),
            "tokenizer": "tokenizer",
            "tokenizer_hash": tokenizer_hash(tokenizer),
            **annotation,
            "splits": summaries,
            "counts": dict(sorted(counts.items())),
            **({"faults": faults[:MOST_FAULTS]} if faults else {}),
            "config": config.model_dump(mode="json"),
            "buckets": self.buckets,
            "versions": {
                name: importlib.metadata.version(name) for name in ("tokenizers", "webdataset", "datatrove")
            },
        }
        write_manifest(self.out, manifest)
