#!/usr/bin/env python3
"""logits.py PROGRAM MODEL: the logits of 64 tokens on the GPU against the CPU's, and against a recorded
float64 truth where one lies beside the model. Fails above 1e-6 (sum (a-b)^2 / sum b^2)."""
import subprocess
import sys
from pathlib import Path

import numpy

program, model = sys.argv[1], Path(sys.argv[2])
truth_file = model.with_suffix(".f64ref.f32")
text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
ids = model.parent / "token_ids.txt"
if ids.exists():
    listed = ids.read_text()
else:
    done = subprocess.run([program, "tokenize", "-m", str(model), "-p", text], stdout=subprocess.PIPE, check=True)
    listed = done.stdout.decode()
tokens = [int(t) for t in listed.replace(",", " ").split()]


def logits(device, kv):
    command = [program, "logits", "-m", str(model), "--devices", device, "--kv-type", kv, "-o", "-",
               "--tokens", ",".join(map(str, tokens))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(done.stderr.decode().strip())
    return numpy.frombuffer(done.stdout, "<f4").astype("f8")


def far(a, b):
    return float(((a - b) ** 2).sum() / (b**2).sum())


cpu, gpu = logits("cpu", "f32"), logits("0", "f32")
text = f"gpu to cpu {far(gpu, cpu):.1e}"
worst = far(gpu, cpu)
if truth_file.exists():
    truth = numpy.fromfile(truth_file, "<f4").astype("f8")
    if truth.size == cpu.size:
        text += f", to float64: cpu {far(cpu, truth):.1e}, gpu {far(gpu, truth):.1e}"
        text += f", gpu with f16 KV {far(logits('0', 'f16'), truth):.1e}"
print(text)
sys.exit(not worst <= 1e-6)
