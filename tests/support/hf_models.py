"""hf_models.py - models of the Hugging Face library with random weights, as GGUF files, and the logits
that the library itself computes for them in float64 (its norms, rotations and softmax: in float32).

Nothing is downloaded: a configuration is made here, every weight drawn from a seeded generator and
rounded to the type that the file stores, so that the library and the file hold the same numbers.
Needs torch and transformers (5.x); for quantised types numpy and gguf, whose decoders say what the
stored bits mean.
"""
import sys
from pathlib import Path

import numpy
import torch
from transformers import AutoModelForCausalLM
from transformers import Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "launch/demo"))
import gguf_out  # noqa: E402

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10,
         "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30}
# values and bytes of a block, where in it f16 scales stand, where f16 minima, and how many times the
# scale a minimum must be for values around zero
BLOCKS = {"Q4_0": (32, 18, 0, None, 0), "Q4_1": (32, 20, 0, 2, -7.5), "Q5_0": (32, 22, 0, None, 0),
          "Q5_1": (32, 24, 0, 2, -15.5), "Q8_0": (32, 34, 0, None, 0),
          "Q2_K": (256, 84, 80, 82, 1.5), "Q3_K": (256, 110, 108, None, 0),
          "Q4_K": (256, 144, 0, 2, 7.5), "Q5_K": (256, 176, 0, 2, 15.5),
          "Q6_K": (256, 210, 208, None, 0), "IQ4_NL": (32, 18, 0, None, 0),
          "IQ4_XS": (256, 136, 0, None, 0)}
BASE, LOCAL_BASE = 500000.0, 10000.0
WINDOW_PERIOD = 6


def rope_of(arch, size):
    """What the library is told of rotations, and the same as pairs of the file."""
    yarn = {"rope_type": "yarn", "rope_theta": BASE, "factor": 4.0,
            "original_max_position_embeddings": size["n_ctx"] // 4}
    llama3 = {"rope_type": "llama3", "rope_theta": BASE, "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": size["n_ctx"] // 8}
    plain = {"rope_type": "default", "rope_theta": BASE}
    base = ("rope.freq_base", "f32", BASE)
    if arch == "llama":
        return llama3, [base]
    if arch == "qwen2":
        return yarn, [base, ("rope.scaling.type", "str", "yarn"), ("rope.scaling.factor", "f32", 4.0),
                      ("rope.scaling.original_context_length", "u32", size["n_ctx"] // 4)]
    if arch == "gemma3":
        full = {"rope_type": "linear", "rope_theta": BASE, "factor": 8.0}
        local = {"rope_type": "default", "rope_theta": LOCAL_BASE}
        return ({"full_attention": full, "sliding_attention": local},
                [base, ("rope.scaling.type", "str", "linear"), ("rope.scaling.factor", "f32", 8.0),
                 ("rope.freq_base_swa", "f32", LOCAL_BASE),
                 ("attention.sliding_window", "u32", size["window"])])
    return plain, [base]


def configuration(arch, size, rope):
    common = dict(vocab_size=size["n_vocab"], hidden_size=size["n_embd"],
                  intermediate_size=size["n_ff"], num_hidden_layers=size["n_layers"],
                  num_attention_heads=size["n_heads"], num_key_value_heads=size["n_kv_heads"],
                  max_position_embeddings=size["n_ctx"], rms_norm_eps=1e-6, rope_parameters=rope,
                  tie_word_embeddings=size["tied"], pad_token_id=None, bos_token_id=None,
                  eos_token_id=None)
    if arch == "llama":
        return LlamaConfig(head_dim=size["n_head"], **common)
    if arch == "qwen2":
        return Qwen2Config(**common)
    if arch == "qwen3":
        return Qwen3Config(head_dim=size["n_head"], **common)
    common["pad_token_id"] = 0
    return Gemma3TextConfig(head_dim=size["n_head"], query_pre_attn_scalar=size["n_head"],
                            sliding_window=size["window"], **common)


def layer_names(arch):
    """The library's names of a layer's parts, and the file's."""
    gemma = arch == "gemma3"
    return {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
            "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
            "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
            "post_attention_layernorm": "post_attention_norm" if gemma else "ffn_norm",
            "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}


def file_name(arch, name):
    part, kind = name.rsplit(".", 1)
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if part in outer:
        return f"{outer[part]}.{kind}"
    _, _, il, inner = part.split(".", 3)
    return f"blk.{il}.{layer_names(arch)[inner]}.{kind}"


def draw_blocks(kind, n_rows, n_columns, std, generator):
    """Random blocks of a quantised type with scales of their own: the file's bytes and the values."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize
    n_values, n_bytes, at, min_at, ratio = BLOCKS[kind]
    n = n_rows * n_columns // n_values
    raw = torch.randint(0, 256, (n, n_bytes), dtype=torch.uint8, generator=generator).numpy()
    wide = torch.rand((n, 2), generator=generator).numpy() * 0.5 + 0.75
    if min_at is None:  # quants are not centred: signs keep the values around zero
        wide[torch.rand(n, generator=generator).numpy() < 0.5, 0] *= -1

    def scale(by):
        raw[:, at:at + 2] = (by * wide[:, :1]).astype(numpy.float16).view(numpy.uint8)
        if min_at is not None:
            raw[:, min_at:min_at + 2] = (by * ratio * wide[:, 1:]).astype(numpy.float16).view(numpy.uint8)

    def values(blocks):
        return dequantize(blocks, GGMLQuantizationType(TYPES[kind])).astype(numpy.float64)

    scale(0.01)
    scale(0.01 * std / values(raw[:4096]).std())
    return raw.tobytes(), torch.from_numpy(values(raw).reshape(n_rows, n_columns))


def draw(kind, shape, std, mean, generator, device):
    """A tensor as the file holds it: its bytes, and its values in float64."""
    if kind in BLOCKS:
        raw, values = draw_blocks(kind, *shape, std, torch.Generator().manual_seed(
            int(torch.randint(0, 1 << 62, (1,), generator=generator, device=generator.device))))
        return raw, values.to(device)
    torch_type = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    x = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float32)
    x = (x * std + mean).to(torch_type)
    return x.cpu().contiguous().view(torch.uint8).numpy().tobytes(), x.to(device, torch.float64)


def unrotated(values, n_heads):
    """Rows of a llama file's q or k, whose pairs lie side by side, in the library's order (halves)."""
    pairs = values.reshape(n_heads, -1, 2, values.shape[-1])
    return pairs.transpose(1, 2).reshape(values.shape)


def fill(arch, size, kind, model, generator, device):
    """Draw every parameter: the tensors of the file, and the library's own set to the same. kind: of
    all matrices, or a dictionary of types by the file's names.

    Embeddings have values around 1, to which each block adds a part, as in trained models. Where the
    blocks are all there is, each doubles the errors of those before it."""
    tensors = []
    for name, parameter in model.named_parameters():
        at = file_name(arch, name)
        matrix = parameter.dim() == 2
        std = parameter.shape[-1] ** -0.5 if matrix else 0.1
        if name == "model.embed_tokens.weight" and arch != "gemma3":
            std = 1.0  # gemma3's rows are multiplied by sqrt(n_embd)
        mean = 1.0 if "norm" in name else 0.0
        stored = "F32" if not matrix else kind[at] if isinstance(kind, dict) else kind
        raw, values = draw(stored, tuple(parameter.shape), std, mean, generator, device)
        tensors.append((at, TYPES[stored], tuple(parameter.shape), raw))
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            values = unrotated(values, size["n_heads" if "q_proj" in name else "n_kv_heads"])
        if arch == "gemma3" and "norm" in name:
            values = values - 1.0  # the library multiplies by 1 + weight
        parameter.data.copy_(values)
    if arch == "llama":
        rotary = model.model.rotary_emb
        plain = BASE ** (-torch.arange(0, size["n_head"], 2, dtype=torch.float64) / size["n_head"])
        factor = (plain / rotary.inv_freq.cpu().double()).float()
        tensors.append(("rope_freqs.weight", 0, (size["n_head"] // 2,), factor.numpy().tobytes()))
    return tensors


def make(arch, size, kind, seed, path, tokens, device="cpu"):
    """Write the model's file to path; the library's logits after each token, f64 [n_tokens, n_vocab]."""
    rope, rope_pairs = rope_of(arch, size)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(configuration(arch, size, rope), dtype=torch.float64,
                                                 attn_implementation="eager").eval()
    with torch.no_grad():
        tensors = fill(arch, size, kind, model, generator, device)
        ids = torch.tensor([tokens], device=device)
        logits = model(input_ids=ids, use_cache=False).logits[0].double().cpu().numpy()
    u32 = {"block_count": size["n_layers"], "context_length": size["n_ctx"],
           "embedding_length": size["n_embd"], "feed_forward_length": size["n_ff"],
           "attention.head_count": size["n_heads"], "attention.head_count_kv": size["n_kv_heads"],
           "attention.key_length": size["n_head"], "attention.value_length": size["n_head"],
           "rope.dimension_count": size["n_head"]}
    pairs = [("general.architecture", "str", arch), ("general.name", "str", f"random-{arch}"),
             ("tokenizer.ggml.model", "str", "none")]
    pairs += [(f"{arch}.{key}", "u32", value) for key, value in u32.items()]
    pairs += [(f"{arch}.attention.layer_norm_rms_epsilon", "f32", 1e-6)]
    pairs += [(f"{arch}.{key}", word, value) for key, word, value in rope_pairs]
    gguf_out.write(path, pairs, tensors)
    return logits


def distance(have, truth):
    """Sum of (a - b)^2 over the sum of a^2, a the truth."""
    return float(((have - truth) ** 2).sum() / (truth**2).sum())
