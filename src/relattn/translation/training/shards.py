"""A model in shards, one per process (FSDP), and whole again for checkpoints and validation.

A parameter in shards is a DTensor; every other tensor is whole. So runs of one process, of several with copies, and of
several with shards save and restore with the same functions, and can continue from each other's checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from relattn.translation.model.transformer import Transformer


def shard(model: Transformer, mesh: DeviceMesh) -> Transformer:
    """Split the parameters of a model along their first dimension. Those of a layer are gathered while it runs."""
    processes = mesh["data_parallel"]
    for layer in (*model.encoder, *model.decoder):
        fully_shard(layer, mesh=processes)
    fully_shard(model, mesh=processes)
    return model


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that may be in shards as a whole tensor. All processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_state(state: Any, *, keep: bool) -> Any:
    """Return a state dictionary with whole tensors. All processes must call this.

    Args:
        state: State dictionary whose tensors may be in shards.
        keep: Keep gathered tensors, in main memory. Otherwise they are freed, and empty tensors are returned.
    """

    def gather(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, DTensor):
            return tensor
        gathered = whole(tensor)
        return gathered.cpu() if keep else torch.empty(0)

    return apply_to_collection(state, Tensor, gather)


def load(model: Transformer, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the whole weights and optimizer state of a checkpoint into a model that may be in shards."""
    own = model.state_dict()
    model.load_state_dict({name: _split(x, own[name]) if name in own else x for name, x in state["model"].items()})
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        number: {name: _split(x, parameters[number]) if x.dim() else x for name, x in values.items()}
        for number, values in state["optimizer"]["state"].items()
    }
    optimizer.load_state_dict({**state["optimizer"], "state": moments})


def _split(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's shard of a whole tensor, or the tensor if `like` is not in shards."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def whole_model(model: Transformer) -> Transformer:
    """Return the model, or a whole copy if it is in shards. All processes must call this."""
    if not isinstance(model.embedding, DTensor):
        return model
    source = model.embedding if model.src_embedding is None else model.src_embedding
    copy = Transformer(model.config, len(source), model.vocab_size).to(model.embedding.device)
    copy.load_state_dict({name: whole(tensor) for name, tensor in model.state_dict().items()})
    return copy
