# SPDX-License-Identifier: Apache-2.0
"""The yardstick of open1b_step: the published 1.61B configuration in PyTorch bf16.

torch.compile for every block, flex attention with the same windows, fused AdamW, micro-batches of
4 x 4096 random tokens, 4 accumulated. Prints a JSON object; tokens a second by the median step.
Usage: python3 benchmarks/torch_open1b.py [STEPS]
"""

import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.set_float32_matmul_precision("high")
torch.manual_seed(42)
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2048, 24, 16, 4, 128
FEED_FORWARD, VOCABULARY, LENGTH, BATCH, WINDOW, ACCUMULATED = 5632, 128256, 4096, 4, 512, 4
device = "cuda"


def rms(x, gain=None, eps=1e-5):
    wide = x.float()
    y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if gain is not None:
        y = y * gain.float()
    return y.to(x.dtype)


inverse = 1.0 / (500000 ** (torch.arange(0, HEAD_DIM, 2, device=device).float() / HEAD_DIM))
angles = torch.outer(torch.arange(LENGTH, device=device).float(), inverse)
COS = torch.cat([angles.cos()] * 2, -1)
SIN = torch.cat([angles.sin()] * 2, -1)


def rope(x):
    wide = x.float()
    a, b = wide.chunk(2, -1)
    return (wide * COS + torch.cat([-b, a], -1) * SIN).to(x.dtype)


full_mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, LENGTH, LENGTH, device=device)
window_mask = create_block_mask(
    lambda b, h, q, k: (q >= k) & (q - k < WINDOW), None, None, LENGTH, LENGTH, device=device
)


class Block(nn.Module):
    def __init__(self, full):
        super().__init__()
        self.full = full
        self.attention_gain = nn.Parameter(torch.ones(HIDDEN))
        self.feed_forward_gain = nn.Parameter(torch.ones(HIDDEN))
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.gate_up = nn.Linear(HIDDEN, 2 * FEED_FORWARD, bias=False)
        self.down = nn.Linear(FEED_FORWARD, HIDDEN, bias=False)

    def forward(self, x):
        widths = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
        q, k, v = self.qkv(rms(x, self.attention_gain)).split(widths, -1)
        q = rope(rms(q.view(BATCH, LENGTH, HEADS, HEAD_DIM)).transpose(1, 2))
        k = rope(rms(k.view(BATCH, LENGTH, KV_HEADS, HEAD_DIM)).transpose(1, 2))
        v = v.view(BATCH, LENGTH, KV_HEADS, HEAD_DIM).transpose(1, 2)
        mask = full_mask if self.full else window_mask
        attended = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(BATCH, LENGTH, HEADS * HEAD_DIM))
        gate, up = self.gate_up(rms(x, self.feed_forward_gain)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.embedding_gain = nn.Parameter(torch.ones(HIDDEN))
        self.final_gain = nn.Parameter(torch.ones(HIDDEN))
        self.blocks = nn.ModuleList(
            Block((i + 1) % 5 == 0 or i == LAYERS - 1) for i in range(LAYERS)
        )
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)


model = Model().to(device).to(torch.bfloat16)
for parameter in model.parameters():
    if parameter.dim() == 2:
        nn.init.trunc_normal_(parameter, 0, 0.02, -0.04, 0.04)
for block in model.blocks:
    block.compile()


@torch.compile
def loss_of(hidden, weight, labels):
    logits = F.linear(hidden, weight).float()
    lse = torch.logsumexp(logits, -1)
    label = logits.gather(-1, labels[:, None]).squeeze(-1)
    return (lse - label).sum() + 1e-4 * (lse * lse).sum()


optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, betas=(0.9, 0.95))


def micro_batch(ids):
    hidden = rms(model.embedding(ids[:, :-1]), model.embedding_gain)
    for block in model.blocks:
        hidden = block(hidden)
    hidden = rms(hidden, model.final_gain).view(-1, HIDDEN)
    labels = ids[:, 1:].reshape(-1)
    chunk = hidden.shape[0] // 4
    loss = 0
    for c in range(4):
        part = slice(c * chunk, (c + 1) * chunk)
        loss = loss + loss_of(hidden[part], model.head.weight, labels[part])
    (loss / (BATCH * LENGTH)).backward()
    return loss.detach() / (BATCH * LENGTH)


def step():
    for _ in range(ACCUMULATED):
        loss = micro_batch(torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=device))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


seconds = []
for _ in range(2 + (int(sys.argv[1]) if len(sys.argv) > 1 else 5)):
    begin = time.time()
    loss = step()
    torch.cuda.synchronize()
    seconds.append(time.time() - begin)
warm = sorted(seconds[2:])
median = warm[len(warm) // 2]
print(
    json.dumps(
        {
            "program": "torch_open1b",
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "seconds": seconds,
            "median_seconds": median,
            "tokens_per_second": BATCH * LENGTH * ACCUMULATED / median,
            "peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9,
            "last_loss": float(loss),
        },
        indent=2,
    )
)
