#!/usr/bin/env python3
"""Trains the demo model and writes it as GGUF: text, tokenizer, weights, all from one seed.

usage: train.py --out demo.gguf [--stories N] [--steps N] [--batch ROWS] [--seed S] [--compile]

Text: stories.py, story by story. Training rows have 512 tokens and begin with the start of a
story, as generation does: <s> story </s> <s> story </s> and so on to the end of the row; the story
that is cut there begins the next row. Needs numpy and PyTorch; a GPU is used when there is one.
"""

import argparse
import math
import multiprocessing
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

import stories
import tokenizer
from model import Model, Shape, export

CHUNK = 2000                                        # stories per piece of work
HELD_OUT = 2000                                     # stories that are only measured on
PROMPTS = ["Once upon a time", "One day,", "Once upon a time, there was a little dog named Max.",
           "Lily and her dad went to", "There was once a small bear who", "Tom was afraid of"]


def write_chunk(job):
    seed, first, n = job
    return [stories.story(seed, i) for i in range(first, first + n)]


def encode_chunk(job):
    pieces, seed, first, n = job
    t = tokenizer.Tokenizer(pieces)
    out = []
    for text in write_chunk((seed, first, n)):
        out += [tokenizer.BOS, *t.encode(text), tokenizer.EOS]
    return np.array(out, np.uint16)


def make_rows(ids, n_ctx):
    """Starts of the rows in the stream of stories: where a story starts, and none is left out."""
    starts = np.flatnonzero(ids == tokenizer.BOS)
    ends = np.append(starts[1:], len(ids))
    assert (ends - starts).max() <= n_ctx, "a story is longer than the context"
    rows, at = [], 0
    while at + n_ctx < len(ids):
        rows.append(at)
        at = starts[np.searchsorted(ends, at + n_ctx, side="right")]
    return np.array(rows)


def learning_rate(step, steps, peak, warmup=200):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.01 + 0.99 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2)


def loss_of(model, batch):
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model, batches, device):
    with torch.autocast(device, torch.bfloat16):
        return sum(loss_of(model, b).item() for b in batches) / len(batches)


@torch.no_grad()
def generate(model, ids, temperature, rng, n_max):
    """The ids of a continuation, up to </s>. Slow and plain: the whole text for every token."""
    ids = list(ids)
    n_prompt = len(ids)
    while len(ids) < n_max and ids[-1] != tokenizer.EOS:
        logits = model(torch.tensor([ids], device=model.cos.device))[0, -1].double().cpu()
        if temperature == 0:
            ids.append(int(logits.argmax()))
        else:
            p = torch.softmax(logits / temperature, 0)
            ids.append(int(torch.multinomial(p, 1, generator=rng)))
    return ids[n_prompt:]


def print_samples(model, tok, seed, n_max):
    rng = torch.Generator().manual_seed(seed)
    for temperature, prompts in ((0, PROMPTS), (0.8, PROMPTS[:1] * 10 + PROMPTS[1:])):
        for prompt in prompts:
            ids = generate(model, [tokenizer.BOS, *tok.encode(prompt)], temperature, rng, n_max)
            end = "" if ids[-1] == tokenizer.EOS else " [no end]"
            print(f"--- temperature {temperature}: {prompt}\n{prompt}{tok.decode_on(ids)}{end}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--stories", type=int, default=400000)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    shape, began = Shape(), time.time()

    def say(text):
        print(f"[{time.time() - began:6.1f} s] {text}", flush=True)

    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        chunks = [(args.seed, i, CHUNK) for i in range(0, args.stories, CHUNK)]
        texts = [t for c in pool.map(write_chunk, chunks[:15]) for t in c]
        tok = tokenizer.learn(texts, shape.n_vocab)
        say(f"tokenizer: {len(tok.tokens)} tokens, longest {sorted(tok.ids, key=len)[-5:]}")
        assert all(tok.decode(tok.encode(t)) == t for t in texts[:1000])
        pieces = tok.tokens[tokenizer.FIRST_BYTE + 256:]
        jobs = [(pieces, *c) for c in chunks] + [(pieces, args.seed + 1, 0, HELD_OUT)]
        *encoded, held = pool.map(encode_chunk, jobs, chunksize=1)
    ids = np.concatenate(encoded)
    rows = make_rows(ids, shape.n_ctx + 1)
    say(f"text: {args.stories} stories, {len(ids)} tokens, {len(rows)} rows")

    def batch_of(source, starts):
        at = starts[:, None] + np.arange(shape.n_ctx + 1)
        return torch.from_numpy(source[at].astype(np.int64)).to(device, non_blocking=True)

    held_rows = make_rows(held, shape.n_ctx + 1)[:256]
    held_batches = [batch_of(held, held_rows[i:i + 64]) for i in range(0, len(held_rows), 64)]

    model = Model(shape).to(device)
    say(f"model: {sum(p.numel() for p in model.parameters())} parameters on {device}")
    step_loss = torch.compile(loss_of) if args.compile else loss_of
    matrices = [p for p in model.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=0.1), dict(params=norms, weight_decay=0.0)],
        betas=(0.9, 0.98), fused=device == "cuda")
    order, shuffler = np.array([], np.int64), np.random.default_rng(args.seed)
    for step in range(args.steps):
        if len(order) < args.batch:
            order = np.concatenate([order, shuffler.permutation(rows)])
        batch, order = batch_of(ids, order[:args.batch]), order[args.batch:]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.rate)
        with torch.autocast(device, torch.bfloat16):
            loss = step_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 500 == 0 or step == args.steps - 1:
            held_loss = held_out_loss(model, held_batches, device)
            say(f"step {step}: loss {loss.item():.4f}, held out {held_loss:.4f}")

    export(model, tok, args.out, "memra demo stories")
    say(f"wrote {args.out}, {os.path.getsize(args.out)} bytes; held out with the file's weights: "
        f"{held_out_loss(model, held_batches, device):.4f}")
    print_samples(model.float(), tok, args.seed, shape.n_ctx)


if __name__ == "__main__":
    main()
