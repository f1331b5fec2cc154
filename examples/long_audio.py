"""Train an encoder with relative positions on 20 seconds of sound and run it on 5 minutes (docs/guides/audio.md)."""

import resource
import time

import torch
from relattn import RelativeSelfAttention
from torch import Tensor, nn

STEPS = 600
RATE = 8000  # samples per second
HOP = 160  # samples per frame
BINS = 32  # of a spectrum
TONES = 8
BACK = 12  # frames
SECONDS = (20, 60, 300)


def sounds(batch: int, frames: int) -> tuple[Tensor, Tensor]:
    """Return log-spectra (batch, frames, BINS), and whether each frame has the tone of BACK frames earlier."""
    tones = torch.randint(TONES, (batch, frames))
    is_echo = torch.rand(batch, frames) < 0.4  # about half of the frames become repetitions
    for i in range(BACK, frames):
        tones[:, i] = torch.where(is_echo[:, i], tones[:, i - BACK], tones[:, i])
    frequencies = 400 + 350 * tones[..., None]
    noise = 0.3 * torch.randn(batch, frames, HOP)
    wave = torch.sin(2 * torch.pi * frequencies * torch.arange(HOP) / RATE) + noise
    spectra = torch.fft.rfft(wave * torch.hann_window(HOP)).abs()[..., : 2 * BINS].unflatten(-1, (BINS, 2)).mean(-1)
    answers = torch.zeros(batch, frames, dtype=torch.bool)
    answers[:, BACK:] = tones[:, BACK:] == tones[:, :-BACK]
    return (spectra + 1e-3).log(), answers


class Layer(nn.Module):
    """Layer of a Transformer with Shaw's relative positions."""

    def __init__(self, dim: int, heads: int, clip: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = RelativeSelfAttention(dim, heads, clip)
        self.maps_norm = nn.LayerNorm(dim)
        self.maps = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), lengths)
        return x + self.maps(self.maps_norm(x))


class Encoder(nn.Module):
    """Classifier of frames."""

    def __init__(self, dim: int = 64, heads: int = 4, layers: int = 2, clip: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(BINS, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, clip) for _ in range(layers))
        self.last = nn.Linear(dim, 1)

    def forward(self, spectra: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = self.first(spectra)
        for layer in self.layers:
            x = layer(x, lengths)
        return self.last(x)[..., 0]


def train(model: Encoder) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    for step in range(1, STEPS + 1):
        spectra, answers = sounds(2, SECONDS[0] * RATE // HOP)
        loss = nn.functional.binary_cross_entropy_with_logits(model(spectra), answers.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}  loss {loss.item():.3f}")


def main() -> None:
    torch.manual_seed(1)
    model = Encoder()
    train(model)
    for seconds in SECONDS:
        frames = seconds * RATE // HOP
        spectra, answers = sounds(1, frames)
        began = time.perf_counter()
        with torch.inference_mode():
            accuracy = ((model(spectra) > 0) == answers).float().mean()
        took = time.perf_counter() - began
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{seconds:3} s, {frames:,} frames: {100 * accuracy:.1f} % right, {took:.2f} s, at most {memory:,.0f} MiB"
        )


if __name__ == "__main__":
    main()
