"""CLEAR, and a leak of everything that a soak counts."""

import os
import tempfile
import threading
import time
from multiprocessing import shared_memory

import numpy as np

from pretrain.objectives.clear import Clear

KEPT: list = []
RATE = 8
"""MB a second, however fast the machine is."""


class Leaky(Clear):
    """Keep memory, and at each step a descriptor, a thread, an entry of shared memory, a temporary file."""

    last = time.monotonic()

    def relate(self, views, context):
        now = time.monotonic()
        KEPT.append(np.ones(int(RATE * min(now - self.last, 5) * (1 << 17))))
        self.last = now
        KEPT.append(os.open(os.devnull, os.O_RDONLY))
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        KEPT.append(shared_memory.SharedMemory(create=True, size=1024))
        KEPT.append(tempfile.NamedTemporaryFile(delete=False))  # noqa: SIM115  (that is the leak)
        return super().relate(views, context)
