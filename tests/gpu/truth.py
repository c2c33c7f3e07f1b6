#!/usr/bin/env python3
"""truth.py PROGRAM [NAME..]: logits on the GPU against the Hugging Face library's, at real widths.

Random models (tests/support/hf_models.py) of the four architectures, in F16 and BF16, and one of each
quantised type (float64 on exactly dequantised weights), all with KV of f16: the sum of (a - b)^2 over the
sum of a^2 must be 1e-6 or less, with one stage and, the same bits, with two on one GPU. NAME: only these
(llama, qwen2-BF16, Q4_K, ..). Needs a GPU, torch, transformers, and for quantised types the package gguf.
"""
import multiprocessing
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hf_models import ARCHITECTURES, BLOCKS, distance, make, numpy, torch  # noqa: E402

LIMIT = 1e-6
N_TOKENS = 320  # more than one cell of attention; more than gemma3's window here
PROCESSES = 6


def size(n_layers, n_embd, n_ff, n_heads, n_kv_heads, n_head, tied=False, window=0):
    return dict(n_layers=n_layers, n_embd=n_embd, n_ff=n_ff, n_heads=n_heads, n_kv_heads=n_kv_heads,
                n_head=n_head, n_ctx=32768, n_vocab=16384, tied=tied, window=window)


# The widths of Llama 3 8B, Qwen2.5 7B, Qwen3 4B, Gemma 3 4B; of Llama 3.2 1B.
SIZES = {"llama": size(3, 4096, 14336, 32, 8, 128), "qwen2": size(3, 3584, 18944, 28, 4, 128),
         "qwen3": size(3, 2560, 9728, 32, 8, 128, tied=True),
         "gemma3": size(6, 2560, 10240, 8, 4, 256, tied=True, window=128)}
NARROW = size(2, 2048, 8192, 32, 8, 64)


def logits(program, path, tokens, stages):
    command = [program, "logits", "-m", path, "--devices", ",".join("0" * stages), "--kv-type", "f16",
               "-o", "-", "--tokens", ",".join(map(str, tokens))]
    if stages > 1:
        command += ["--stages", str(stages)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode().strip())
    return numpy.frombuffer(done.stdout, "<f4").reshape(len(tokens), -1)


def check(program, folder, name, arch, shape, kind, seed):
    path = str(Path(folder) / f"{name}.gguf")
    tokens = [(i * 2654435761 >> 7) % shape["n_vocab"] for i in range(seed, seed + N_TOKENS)]
    began = time.monotonic()
    truth = make(arch, shape, kind, seed, path, tokens, "cuda")
    made = time.monotonic() - began
    one, two = (logits(program, path, tokens, n) for n in (1, 2))
    Path(path).unlink()
    far = distance(one.astype("f8"), truth)
    differing = int((one.view("u4") != two.view("u4")).sum())
    good = far <= LIMIT and differing == 0
    return good, (f"{name}: {far:.2e} from the truth, {differing} values differ with two stages "
                  f"({made:.1f} + {time.monotonic() - began - made:.1f} s)")


def main(program, chosen):
    if not torch.cuda.is_available():
        print("1..0 # SKIP no CUDA device")
        return 0
    wanted = [(f"{a}-{k}", a, SIZES[a], k) for a in ARCHITECTURES for k in ("F16", "BF16")]
    wanted += [(kind, "llama", NARROW, kind) for kind in BLOCKS]
    wanted = [w for w in wanted if not chosen or w[0] in chosen or w[1] in chosen and w[3] not in BLOCKS]
    n_good = 0
    print(f"1..{len(wanted)}", flush=True)
    own_cuda = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(PROCESSES, own_cuda) as pool:
        running = [pool.submit(check, program, folder, *w, seed) for seed, w in enumerate(wanted, 1)]
        for i, one in enumerate(running, 1):
            try:
                good, text = one.result()
            except (ImportError, OSError, RuntimeError, ValueError) as error:
                good, text = False, f"{wanted[i - 1][0]}: {error}"
            n_good += good
            print(f"{'ok' if good else 'not ok'} {i} - {text}", flush=True)
    print(f"{n_good} of {len(wanted)} within {LIMIT:.0e} of the Hugging Face library")
    return int(n_good < len(wanted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
