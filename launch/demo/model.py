"""The demo model in PyTorch: llama's architecture with tied embeddings, and its way to GGUF.

Rotary positions turn the pairs (2i, 2i+1) of a head, which is the order that GGUF files of this
architecture keep q and k in, so weights are written as they are.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

import gguf_out


@dataclasses.dataclass
class Shape:
    n_vocab: int = 1024
    n_ctx: int = 512
    n_layers: int = 8
    n_embd: int = 192
    n_ff: int = 512
    n_heads: int = 6
    n_kv_heads: int = 3
    eps: float = 1e-5
    rope_base: float = 10000.0

    @property
    def n_rot(self):
        return self.n_embd // self.n_heads


def rope_table(shape):
    """cos and sin of every position's angles: two [n_ctx, n_rot/2]."""
    pair = torch.arange(0, shape.n_rot, 2, dtype=torch.float64) / shape.n_rot
    angle = torch.arange(shape.n_ctx, dtype=torch.float64)[:, None] * shape.rope_base ** -pair
    return angle.cos().float(), angle.sin().float()


def rope(x, cos, sin):
    """x: [batch, heads, positions, n_rot]"""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).type_as(x)


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        n_kv = s.n_kv_heads * s.n_rot
        self.attn_norm = nn.RMSNorm(s.n_embd, s.eps)
        self.attn_q = nn.Linear(s.n_embd, s.n_embd, bias=False)
        self.attn_k = nn.Linear(s.n_embd, n_kv, bias=False)
        self.attn_v = nn.Linear(s.n_embd, n_kv, bias=False)
        self.attn_output = nn.Linear(s.n_embd, s.n_embd, bias=False)
        self.ffn_norm = nn.RMSNorm(s.n_embd, s.eps)
        self.ffn_gate = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.ffn_up = nn.Linear(s.n_embd, s.n_ff, bias=False)
        self.ffn_down = nn.Linear(s.n_ff, s.n_embd, bias=False)

    def forward(self, x, cos, sin):
        s, h = self.s, self.attn_norm(x)
        q, k, v = (p(h).unflatten(-1, (-1, s.n_rot)).transpose(1, 2)
                   for p in (self.attn_q, self.attn_k, self.attn_v))
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        k, v = (t.repeat_interleave(s.n_heads // s.n_kv_heads, 1) for t in (k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_output(a.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.output_norm = nn.RMSNorm(shape.n_embd, shape.eps)
        cos, sin = rope_table(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                # What is added to the stream starts smaller, the more layers add to it.
                ends = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * shape.n_layers) ** 0.5 if ends else 0.02)

    def forward(self, ids):
        """ids [batch, n] -> logits [batch, n, n_vocab]"""
        x, n = self.token_embd(ids), ids.shape[1]
        for layer in self.blk:
            x = layer(x, self.cos[:n], self.sin[:n])
        return F.linear(self.output_norm(x), self.token_embd.weight)


@torch.no_grad()
def export(model, tokenizer, path, name):
    """Writes the model as GGUF, matrices as Q8_0, norms as F32. The model keeps the rounded
    weights, so that what it says afterwards is what the file says."""
    s, tensors = model.shape, []
    for key, p in model.named_parameters():
        x = p.detach().cpu().float().numpy()
        if p.dim() == 2:
            raw, rounded = gguf_out.quantize_q8_0(x)
            p.copy_(torch.from_numpy(rounded))
            tensors.append((key, gguf_out.Q8_0, x.shape, raw))
        else:
            tensors.append((key, gguf_out.F32, x.shape, x.tobytes()))
    pairs = [
        ("general.architecture", "str", "llama"), ("general.name", "str", name),
        ("general.license", "str", "MIT"), ("general.alignment", "u32", gguf_out.ALIGNMENT),
        ("general.file_type", "u32", 7), ("general.quantization_version", "u32", 2),
        ("llama.vocab_size", "u32", s.n_vocab), ("llama.context_length", "u32", s.n_ctx),
        ("llama.block_count", "u32", s.n_layers), ("llama.embedding_length", "u32", s.n_embd),
        ("llama.feed_forward_length", "u32", s.n_ff),
        ("llama.attention.head_count", "u32", s.n_heads),
        ("llama.attention.head_count_kv", "u32", s.n_kv_heads),
        ("llama.attention.layer_norm_rms_epsilon", "f32", s.eps),
        ("llama.rope.dimension_count", "u32", s.n_rot),
        ("llama.rope.freq_base", "f32", s.rope_base),
        ("tokenizer.ggml.model", "str", "llama"), ("tokenizer.ggml.pre", "str", "default"),
        ("tokenizer.ggml.tokens", "[str]", tokenizer.tokens),
        ("tokenizer.ggml.scores", "[f32]", tokenizer.scores),
        ("tokenizer.ggml.token_type", "[i32]", tokenizer.types),
        ("tokenizer.ggml.unknown_token_id", "u32", 0), ("tokenizer.ggml.bos_token_id", "u32", 1),
        ("tokenizer.ggml.eos_token_id", "u32", 2), ("tokenizer.ggml.add_bos_token", "bool", True),
        ("tokenizer.ggml.add_eos_token", "bool", False),
        ("tokenizer.ggml.add_space_prefix", "bool", True),
    ]
    gguf_out.write(path, pairs, tensors)
