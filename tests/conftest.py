"""One thread for the tests themselves: some fork, and a forked child waits for ever on its parent's pool of threads."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
