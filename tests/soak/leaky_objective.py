"""CLEAR, and a leak of everything that a soak counts, at every step."""

import os
import tempfile
import threading
import time
from multiprocessing import shared_memory

import numpy as np

from pretrain.objectives.clear import Clear

KEPT: list = []


class Leaky(Clear):
    """Keep 2 MB, a descriptor, a thread, an entry of shared memory and a temporary file of each step."""

    def relate(self, views, context):
        KEPT.append(np.ones(2 << 17))
        KEPT.append(os.open(os.devnull, os.O_RDONLY))
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        KEPT.append(shared_memory.SharedMemory(create=True, size=1024))
        KEPT.append(tempfile.NamedTemporaryFile(delete=False))  # noqa: SIM115  (that is the leak)
        return super().relate(views, context)
