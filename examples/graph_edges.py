"""Classify the nodes of random graphs: the types of edges are labels of relation_attention (docs/guides/graph.md)."""

from collections.abc import Callable

import torch
from relattn import relation_attention
from torch import Tensor, nn

STEPS = 400
KINDS = 6  # of nodes
TYPES = 3  # of edges
NOT_JOINED = -1
NODES = 20  # maximum per graph


def graphs(batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return kinds (batch, nodes), edge labels (batch, nodes, nodes), sizes (batch,) and answers (batch, nodes).

    The answer for a node is whether an edge of the first type connects it with a node of the first kind.
    """
    sizes = torch.randint(NODES // 2, NODES + 1, (batch,))
    kinds = torch.randint(KINDS, (batch, NODES))
    upper_types = torch.randint(TYPES, (batch, NODES, NODES)).triu(1)
    upper_joined = (torch.rand(batch, NODES, NODES) < 0.2).triu(1)
    is_node = torch.arange(NODES) < sizes[:, None]
    joined = (upper_joined | upper_joined.mT) & is_node[:, :, None] & is_node[:, None]
    relations = torch.where(joined, upper_types + upper_types.mT, NOT_JOINED)
    answers = ((relations == 0) & (kinds == 0)[:, None]).any(-1)
    return kinds, relations, sizes, answers


class Layer(nn.Module):
    """Layer of a Transformer with a vector per edge label in keys and values."""

    def __init__(self, dim: int, heads: int, labels: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.inward = nn.Linear(dim, 3 * dim)
        self.outward = nn.Linear(dim, dim)
        self.maps = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.rel_key = nn.Parameter(0.1 * torch.randn(labels, dim // heads))
        self.rel_value = nn.Parameter(0.1 * torch.randn(labels, dim // heads))

    def forward(self, x: Tensor, relations: Tensor, sizes: Tensor) -> Tensor:
        projected = self.inward(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # (batch, heads, nodes, head_dim)
        out = relation_attention(query, key, value, relations[:, None], self.rel_key, self.rel_value, lengths=sizes)
        x = x + self.outward(out.transpose(1, 2).flatten(2))
        return x + self.maps(x)


class Model(nn.Module):
    """Classifier of nodes."""

    def __init__(self, labels: int, dim: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.kinds = nn.Embedding(KINDS, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, labels) for _ in range(layers))
        self.last = nn.Linear(dim, 1)

    def forward(self, kinds: Tensor, relations: Tensor, sizes: Tensor) -> Tensor:
        x = self.kinds(kinds)
        for layer in self.layers:
            x = layer(x, relations, sizes)
        return self.last(x)[..., 0]


def train(labels_of: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """Train a model on labels changed by `labels_of`. Return its accuracy and the share of nodes with "yes"."""
    torch.manual_seed(1)
    model = Model(TYPES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    for _ in range(STEPS):
        kinds, relations, sizes, answers = graphs(32)
        is_node = torch.arange(NODES) < sizes[:, None]
        scores = model(kinds, labels_of(relations), sizes)
        loss = nn.functional.binary_cross_entropy_with_logits(scores[is_node], answers[is_node].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    torch.manual_seed(2)
    kinds, relations, sizes, answers = graphs(500)
    is_node = torch.arange(NODES) < sizes[:, None]
    with torch.inference_mode():
        predictions = model(kinds, labels_of(relations), sizes) > 0
    accuracy = (predictions == answers)[is_node].float().mean()
    return accuracy.item(), answers[is_node].float().mean().item()


def main() -> None:
    accuracy, share = train(lambda relations: relations)
    print(f"with the types of edges:  {100 * accuracy:.1f} % right")
    accuracy, _ = train(lambda relations: relations.clamp(max=0))
    print(f"with edges of one type:   {100 * accuracy:.1f} %")
    accuracy, _ = train(lambda relations: torch.full_like(relations, NOT_JOINED))
    print(f"without edges:            {100 * accuracy:.1f} %")
    print(f"always no:                {100 * (1 - share):.1f} %")


if __name__ == "__main__":
    main()
