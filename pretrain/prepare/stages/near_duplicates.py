"""Find near-duplicate documents by datatrove's MinHash.

The settings are FineWeb's: 5-grams, 14 x 8 hashes, about 72% similarity.
"""

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

from pretrain.prepare.executors import Job


def minhash_jobs(reader: PipelineStep, work: Path, tasks: int) -> list[Job]:
    """Return the stages that find near duplicates; one document of each cluster stays.

    reader: gives the documents in the order in which `minhash_filter` will see them again.
    """
    # datatrove 0.10 hands its xxhash a str, which xxhash 4 refuses; sha1 works with every version.
    config = MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="sha1"))
    folder = work / "minhash"
    signatures, pairs, remove = (str(folder / name) for name in ("signatures", "pairs", "remove"))
    sign = [reader, MinhashDedupSignature(signatures, config)]
    match = [MinhashDedupBuckets(signatures, pairs, config=config)]
    cluster = [MinhashDedupCluster(pairs, remove, config)]
    return [
        Job("signatures", "near-duplicate signatures", [1] * tasks, sign),
        Job("pairs", "near-duplicate pairs", [1] * config.num_buckets, match),
        Job("clusters", "near-duplicate clusters", [1], cluster),
    ]


def minhash_filter(work: Path) -> PipelineStep:
    """Return the step that leaves out what `minhash_jobs` found."""
    return MinhashDedupFilter(str(work / "minhash" / "remove"))
