#!/bin/sh
# Install the project, which lies in /opt/clear, in /opt/venv of an image: the step that slurm/Containerfile and
# slurm/clearly.def share. Run by the builder of an image, as root, on Debian.
set -eu

# g++ compiles the kernels here, and Triton's launchers on a node. By the last two NCCL finds InfiniBand.
apt-get update
apt-get install --yes --no-install-recommends g++ make libibverbs1 ibverbs-providers
rm -rf /var/lib/apt/lists/*

cd /opt/clear
find augment pretrain -name '_native*.so' -delete  # compiled on the machine that builds, for its own Python
PIP_NO_CACHE_DIR=1 make install VENV=/opt/venv

# The kernels are optional for an installation, which says nothing where a compiler failed. Not for an image.
/opt/venv/bin/python -c 'from pretrain.model.kernels.native import available; assert available()'
