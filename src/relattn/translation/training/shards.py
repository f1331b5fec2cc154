"""A model in shards, one a process (FSDP), and whole again: in checkpoints, and for whatever is no training.

A parameter in shards is a DTensor, and all that is not one is whole already. So a run on one process, one whose ranks
hold a copy each, and one whose ranks hold shards save and restore by the same functions, and a checkpoint of any of
them is a checkpoint of all.
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
    """Cut a model's parameters, each along its first dimension: those of a layer come together while it is computed."""
    processes = mesh["data_parallel"]
    for layer in (*model.encoder, *model.decoder):
        fully_shard(layer, mesh=processes)
    fully_shard(model, mesh=processes)
    return model


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may lie in shards, as one. Every process calls it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_state(state: Any, *, keep: bool) -> Any:
    """A state dictionary whose tensors may lie in shards, with whole ones. Every process calls it.

    What was in shards is gathered tensor by tensor, into the processor's memory where `keep` says so, else let go.
    """

    def gather(tensor: Tensor) -> Tensor:
        gathered = whole(tensor)
        if gathered is tensor:
            return tensor
        return gathered.cpu() if keep else torch.empty(0)

    return apply_to_collection(state, Tensor, gather)


def cut(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's share of a whole tensor, as `like` lies in shards; the tensor itself where that does not."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def load(model: Transformer, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Put a checkpoint's weights and its optimiser's state, both whole, into a model that may lie in shards."""
    own = model.state_dict()
    model.load_state_dict({name: cut(x, own[name]) if name in own else x for name, x in state["model"].items()})
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        number: {name: cut(x, parameters[number]) if x.dim() else x for name, x in of_parameter.items()}
        for number, of_parameter in state["optimizer"]["state"].items()
    }
    optimizer.load_state_dict({**state["optimizer"], "state": moments})


def whole_model(model: Transformer) -> Transformer:
    """The model, or a whole copy of one that lies in shards, for all but training. Every process calls it."""
    if not isinstance(model.embedding, DTensor):
        return model
    source = model.embedding if model.src_embedding is None else model.src_embedding
    copy = Transformer(model.config, len(source), model.vocab_size).to(model.embedding.device)
    copy.load_state_dict({name: whole(tensor) for name, tensor in model.state_dict().items()})
    return copy
