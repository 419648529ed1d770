"""Near-duplicate documents, by datatrove's MinHash (the FineWeb settings: 5-grams, 14 x 8 hashes, ~72%
similarity)."""

from __future__ import annotations

from pathlib import Path

from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.utils.hashing import HashConfig


def minhash_stages(
    reader: PipelineStep, work: Path, tasks: int
) -> list[tuple[str, str, list[PipelineStep], int]]:
    """(name, title, steps, tasks) of the stages that find near duplicates; one of each cluster stays.

    `reader` gives the documents in the order in which `minhash_filter` will see them again.
    """
    # datatrove 0.10 hands its xxhash a str, which xxhash 4 refuses; sha1 works with every version.
    config = MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="sha1"))
    folder = work / "minhash"
    signatures, pairs, remove = (str(folder / name) for name in ("signatures", "pairs", "remove"))
    return [
        (
            "signatures",
            "near-duplicate signatures",
            [reader, MinhashDedupSignature(signatures, config)],
            tasks,
        ),
        (
            "pairs",
            "near-duplicate pairs",
            [MinhashDedupBuckets(signatures, pairs, config=config)],
            config.num_buckets,
        ),
        ("clusters", "near-duplicate clusters", [MinhashDedupCluster(pairs, remove, config)], 1),
    ]


def minhash_filter(work: Path) -> PipelineStep:
    """The step that leaves out what `minhash_stages` found."""
    return MinhashDedupFilter(str(work / "minhash" / "remove"))
