"""Environment variables that must be set before torch is imported.

Import this module first in every entry point that trains.
"""

import os

# oneDNN keeps a compiled primitive for every shape it meets, 1024 by default; packed batches have ever new shapes.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
# glibc keeps freed memory of varying sizes in its heaps; large blocks given back at once keep the process flat.
os.environ.setdefault("MALLOC_ARENA_MAX", "2")
# Tokenizers' threads and forked loader workers do not mix; preparation asks for them itself.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
