"""An objective that breaks at given steps, in the micro-batches of rank 1 (or the only rank) alone.

objective.options: kind of fault -> its steps, counted from 1. "loss" and "gradient": that one alone is not
finite. "whole": the loss that every rank computes of the whole batch, on that rank alone; its gradient is
finite. "spike": a gradient that is far too large. "vectors": what leaves a layer is not finite.
"constants": of the program, by their full names, with the values that they have in the run.
"""

from importlib import import_module

import torch
import torch.distributed as dist

from pretrain.objectives import Objective

NAN = float("nan")


class Broken(Objective):
    sequence_roles = ("anchor",)
    sequence_term = "small"

    def __init__(self, config, encoder):
        super().__init__()
        self.planted, self.now = config.objective.options, 0
        for place, value in self.planted.get("constants", {}).items():
            module, _, name = place.rpartition(".")
            setattr(import_module(module), name, value)
        encoder.lm.base_model.encoder.layer[1].register_forward_hook(self.broken_vectors)
        self.norm = torch.nn.BatchNorm1d(encoder.hidden_size, affine=False)

    def weights(self, step):
        self.now = step + 1
        return {"near": 1.0, "small": 1.0}

    def broken_vectors(self, layer, inputs, output):
        return (output[0] * NAN, *output[1:]) if self.breaks("vectors") else None

    def breaks(self, kind):
        return self.now in self.planted.get(kind, ()) and dist.get_rank() == dist.get_world_size() - 1

    def relate(self, views, context):
        near = (self.norm(views["anchor"]) - views["positive"]).square().mean()
        return {"near": near + near.detach() * NAN if self.breaks("whole") else near}

    def sequence_loss(self, encoder, role, row, condition):
        loss = encoder.embed(row.ids, row.lengths, keys=row.keys).float().square().mean(-1).sum()
        if self.breaks("loss"):
            loss = loss + loss.detach() * NAN
        if self.breaks("gradient"):
            loss = loss + (loss * 0).sqrt()  # 0, with a gradient of inf * 0
        if self.breaks("spike"):
            loss = loss + 1e6 * (loss - loss.detach())
        return loss
