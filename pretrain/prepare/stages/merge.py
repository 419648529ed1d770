"""Stage `merge`: what the tasks counted and wrote becomes the manifest."""

import importlib.metadata
import json
from collections import Counter
from typing import Any

from pretrain.common.errors import UserError
from pretrain.common.files import copy_tree
from pretrain.data.annotation import WHOLE
from pretrain.data.manifest import FORMAT, PAIRS, PREPARATION, SPLITS
from pretrain.data.shard_writer import split_summary, token_dtype, write_atomically, write_manifest
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.prepare import work_folder as files
from pretrain.prepare.work_folder import PlannedStep

MOST_FAULTS = 20  # named in the manifest; `counts` has the number of all


class Merge(PlannedStep):
    """Put the tokenizer in place and write the manifest: from then on the folder is prepared data."""

    stage = "merge"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        config, counts = self.config, self._counts()
        faults = [fault for task in files.UnreadRows.read_all(self.work).values() for fault in task.named]
        summaries = self._summaries()
        made, tokenizer = self.work / "tokenizer", self.out / "tokenizer"
        if not tokenizer.exists():
            copy_tree(made, tokenizer)  # a rename may lose it, in a power cut
        elif tokenizer_hash(tokenizer) != tokenizer_hash(made):
            mend = "move it away, and give the same command again, which keeps what is done"
            raise UserError(f"{tokenizer} is not that of the shards: {mend}.")
        size = files.TokenizerSize.read(self.work)
        vocabulary = size.vocabulary_size
        accented = {} if size.accented_letters is None else {"accented_letters": size.accented_letters}
        columns: dict[str, Any] = {}
        annotation: dict[str, Any] = {}
        if config.unit == "record":
            columns = files.Columns.read(self.work).model_dump(exclude_none=True)
        if config.annotate is not None:
            figures = {"words": counts.pop("annotated_words"), "bytes": counts.pop("annotation_bytes")}
            annotation = {"annotation": {**self.annotation, "texts": WHOLE, **figures}}
        manifest = {
            "format": FORMAT,
            "preparation": PREPARATION,
            "unit": config.unit,
            "max_length": config.max_length,
            **columns,
            "vocabulary_size": vocabulary,
            "token_dtype": token_dtype(vocabulary),
            "tokenizer": "tokenizer",
            "tokenizer_hash": tokenizer_hash(tokenizer),
            **accented,
            **annotation,
            "splits": summaries,
            "counts": dict(sorted(counts.items())),
            **({"faults": faults[:MOST_FAULTS]} if faults else {}),
            **({"pairs": shown} if (shown := files.ShownPairs.few(self.work)) else {}),
            "config": config.model_dump(mode="json"),
            "buckets": self.plan.buckets,
            "versions": {
                name: importlib.metadata.version(name) for name in ("tokenizers", "webdataset", "datatrove")
            },
        }
        if pairs := files.sample_of(files.ParagraphPairs.each(self.work)):
            write_atomically(self.out / PAIRS, json.dumps(pairs, ensure_ascii=False).encode())
        write_manifest(self.out, manifest)

    def _counts(self) -> Counter[str]:
        """Add up what all tasks counted."""
        counts: Counter[str] = Counter()
        for kind in (files.DocumentCounts, files.SentenceCounts, files.ResolveCounts):
            counts.update(kind.total(self.work))
        if self.config.unit != "record":
            counts["documents_near_duplicate"] = counts.pop("documents_read") - counts["documents"]
        for task in files.BuiltShards.read_all(self.work).values():
            counts.update(task.counts)
        return counts

    def _summaries(self) -> dict[str, dict]:
        """Return the manifest's entry of each split. Raises: UserError for a split that came out empty."""
        shards: dict[str, list] = {split: [] for split in SPLITS}
        # of the stage that packs, and of that which writes shards of what was packed
        for kind in (files.BuiltShards, files.ShuffledShards):
            for task in kind.read_all(self.work).values():
                for split, record in task.shards.items():
                    shards[split].append(record)
        summaries = {split: split_summary(records) for split, records in shards.items()}
        if not summaries["train"]["sequences"]:
            raise UserError(f"No training sequence came out of {self.plan.described}; check min_words.")
        if self.config.heldout and not summaries["heldout"]["sequences"]:
            raise UserError(f"No held-out sequence in {self.plan.described}: more text, or --heldout 0.")
        return summaries
