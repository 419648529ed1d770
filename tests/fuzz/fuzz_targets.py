"""All fuzz targets by name."""

from fuzz_annotation import Annotations
from fuzz_checkpoint import Checkpoints
from fuzz_manifest import Manifests
from fuzz_recipe import Recipes
from fuzz_rules import Rules
from fuzz_shard import Shards
from fuzz_sources import Sources
from fuzz_specification import Specifications
from fuzz_target import Target

_KINDS = (Specifications, Recipes, Manifests, Checkpoints, Shards, Sources, Annotations, Rules)
TARGETS: dict[str, type[Target]] = {kind.name: kind for kind in _KINDS}
