"""GPT against the same structure in torch, with nanoGPT's names."""

import math
from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

from hotloop import models  # noqa: E402
from parity import zoo  # noqa: E402
from parity.twins import check_twins  # noqa: E402

SIZES = {"vocab_size": 65, "block_size": 24, "n_layer": 3, "n_head": 4, "n_embd": 32}


def make_gpt(
    vocab_size: int, block_size: int, n_layer: int, n_head: int, n_embd: int, bias: bool = True,
    approximate: str = "none",
) -> Any:  # fmt: skip
    """GPT-2 from its description (Radford et al. 2019)."""
    nn = torch.nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
            self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)

        def forward(self, x: Any) -> Any:
            n, t, c = x.shape
            heads = [
                part.view(n, t, n_head, c // n_head).transpose(1, 2)
                for part in self.c_attn(x).split(n_embd, 2)
            ]
            scores = heads[0] @ heads[1].transpose(2, 3) / math.sqrt(c // n_head)
            later = torch.ones(t, t, dtype=torch.bool).triu(1)
            y = scores.masked_fill(later, -math.inf).softmax(-1) @ heads[2]
            return self.c_proj(y.transpose(1, 2).reshape(n, t, c))

    class Feed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=bias)
            self.c_proj = nn.Linear(4 * n_embd, n_embd, bias=bias)

        def forward(self, x: Any) -> Any:
            return self.c_proj(nn.functional.gelu(self.c_fc(x), approximate=approximate))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.attn = nn.LayerNorm(n_embd, bias=bias), Attention()
            self.ln_2, self.mlp = nn.LayerNorm(n_embd, bias=bias), Feed()

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = nn.ModuleDict(
                {
                    "wte": nn.Embedding(vocab_size, n_embd),
                    "wpe": nn.Embedding(block_size, n_embd),
                    "h": nn.ModuleList([Block() for _ in range(n_layer)]),
                    "ln_f": nn.LayerNorm(n_embd, bias=bias),
                }
            )
            self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
            self.transformer["wte"].weight = self.lm_head.weight

        def forward(self, idx: Any) -> Any:
            parts = self.transformer
            x = parts["wte"](idx) + parts["wpe"](torch.arange(idx.shape[1]))
            for block in parts["h"]:
                x = block(x)
            return self.lm_head(parts["ln_f"](x))

    return Net()


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"approximate": "tanh"}])
def test_logits(options: dict[str, Any]) -> None:
    model, twin = models.gpt(**SIZES, **options), make_gpt(**SIZES, **options).eval()
    state = zoo.random_state(twin)
    state["lm_head.weight"] = state["transformer.wte.weight"]
    assert list(model.state_dict()) == list(state)
    twin.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    model.load_state_dict(state)
    ids = np.random.default_rng(1).integers(0, 65, (3, 24))
    with torch.no_grad():
        want = twin(torch.from_numpy(ids)).numpy()
    np.testing.assert_allclose(model(ids), want, rtol=0, atol=2e-5 * abs(want).max())


def test_gradients() -> None:
    """Of a tied table, too, which is read in two places."""
    model, twin = models.gpt(**SIZES), make_gpt(**SIZES)
    state = zoo.random_state(twin)
    state["lm_head.weight"] = state["transformer.wte.weight"]
    twin.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    model.load_state_dict(state)
    ids = np.random.default_rng(1).integers(0, 65, (2, 24))
    check_twins(model, model, twin, twin, [ids], training=True, rtol=1e-9)


def test_initial_values() -> None:
    """Of nanoGPT: standard deviation 0.02, less for what is added to the shortcut."""
    state = models.gpt(vocab_size=500, block_size=64, n_layer=8, n_head=4, n_embd=128).state_dict()
    for name, value in state.items():
        if name.endswith("bias"):
            assert not value.any()
        elif ".ln_" in name:
            assert (value == 1).all()
        else:
            std = 0.02 / 4 if "c_proj" in name else 0.02
            assert abs(value.std() / std - 1) < 0.03, name
