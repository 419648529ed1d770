"""Environment variables that must be set before torch computes or DeepSpeed is imported.

Import this module first in every entry point that trains.
"""

import os

from pretrain.memory import limit_kernel_cache, reuse_large_blocks

limit_kernel_cache()
reuse_large_blocks()
# Tokenizers' threads and forked loader workers do not mix; preparation asks for them itself.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch  # noqa: E402  (reads the variables above)

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # or DeepSpeed warns, in every process, that it found nothing else
