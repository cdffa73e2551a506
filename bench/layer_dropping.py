#!/usr/bin/env python3
"""layer_dropping.py PROGRAM [--device cuda|cpu] [--hidden 768] [--layers 24] [--tokens 16384] [--steps 60]: what progressive layer
dropping saves, beside the share of layers that it drops, and where the rest of that share goes.

Two runs of a Llama whose steps differ in nothing but train.layer_keep = 0.5 (theta falls at once). A line through the times of steps
over how many layers each of them kept separates what a kept layer takes from what every step takes: embedding, head, update of all
layers, host. Which layers a step keeps is a function of seed, step and layer (src/trireme/nn/layer_drop.h), computed here once more."""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

RECIPE = """
[run]
name = "dropping"
seed = 1
device = "{device}"
[model]
family = "llama"
vocab_size = 256
max_seq_len = {seq_len}
hidden_size = {hidden}
num_layers = {layers}
num_heads = {heads}
[data]
seq_len = {seq_len}
synthetic.kind = "markov"
synthetic.vocab_size = 256
[batch]
global_batch_tokens = {tokens}
[optim]
learning_rate = 1e-4
[train]
steps = {steps}
micro_batch_size = {micro}
hash_every = 0
{threads}{keep}
[checkpoint]
every = 1000000
[precision]
compute = "{compute}"
"""


def philox(counter, key):
    """Philox4x32-10, as src/trireme/base/random.h has it."""
    key = list(key)
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [right >> 32 ^ counter[1] ^ key[0], right & 0xFFFFFFFF, left >> 32 ^ counter[3] ^ key[1], left & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def uniform(seed, stream, index):
    """Random(seed, stream).uniform(index)."""
    state = philox([seed & 0xFFFFFFFF, seed >> 32, len(stream), 0], [0x74726972, 0x656D6531])
    for begin in range(0, len(stream), 8):
        part = stream[begin : begin + 8].encode().ljust(8, b"\0")
        key = [int.from_bytes(part[:4], "little"), int.from_bytes(part[4:], "little")]
        state = [old ^ new for old, new in zip(state, philox(state, key))]
    words = philox([index // 2 & 0xFFFFFFFF, index // 2 >> 32, state[2], 2 << 24], state[:2])
    low, high = words[2 * (index % 2)], words[2 * (index % 2) + 1]
    return high * 2.0**-32 + (low >> 11) * 2.0**-53


def kept_layers(layers, step):
    """Of step number `step`, the first being 0, once theta is 0.5."""
    return sum(uniform(1, "layer drop/decoder", step * (layers + 1) + layer) < 1 - layer / layers * 0.5 for layer in range(1, layers + 1))


def steps_of(options, keep, folder):
    recipe = folder / f"{'some' if keep else 'all'}.toml"
    recipe.write_text(RECIPE.format(device=options.device, hidden=options.hidden, layers=options.layers, heads=max(1, options.hidden // 64),
                                    seq_len=options.seq_len, tokens=options.tokens, micro=options.tokens // options.seq_len, steps=options.steps,
                                    threads=f"threads = {options.threads}\n" if options.threads else "",
                                    keep="layer_keep = 0.5\nlayer_keep_gamma = 1000\n" if keep else "",
                                    compute="bf16" if options.device == "cuda" else "fp32"))
    subprocess.run([options.program, "--quiet", "train", str(recipe), "--out", str(folder / recipe.stem)], check=True, stdout=subprocess.DEVNULL)
    steps = [json.loads(line) for line in open(folder / recipe.stem / "metrics.jsonl")]
    return [(1e3 * step["seconds"], kept_layers(options.layers, step["step"] - 1) if keep else options.layers) for step in steps[options.warm:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm", type=int, default=10, help="first steps that are not counted")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        every, some = steps_of(options, False, folder), steps_of(options, True, folder)
    whole = statistics.median(time for time, _ in every)
    times, kept = [time for time, _ in some], [count for _, count in some]
    # The middle of the steps that kept as many layers: a step that something else held up does not tilt the line.
    counts = sorted(set(kept))
    middles = [statistics.median(time for time, k in zip(times, kept) if k == count) for count in counts]
    weights = [kept.count(count) for count in counts]
    mean = sum(w * c for w, c in zip(weights, counts)) / len(kept)
    time = sum(w * m for w, m in zip(weights, middles)) / len(kept)
    slope = sum(w * (c - mean) * (m - time) for w, c, m in zip(weights, counts, middles)) / sum(w * (c - mean) ** 2 for w, c in zip(weights, counts))
    fixed = time - slope * mean
    dropped, less = 100 * (1 - mean / options.layers), 100 * (1 - time / whole)
    plain = (whole - fixed) / options.layers
    share = 100 * plain * options.layers / whole
    print(f"{options.layers} layers of {options.hidden}, {options.tokens} tokens a step, {options.device}: {whole:.2f} ms; with layers dropped {time:.2f} ms")
    print(f"  dropped {dropped:.1f} % of layers, time falls by {less:.1f} %: {dropped - less:.1f} points less (goal 3)")
    print(f"  passes through layers are {share:.1f} % of a step, {dropped * share / 100:.1f} points can be saved; a step's rest {fixed:.2f} ms, a layer {plain:.3f} ms, "
          f"kept by chance {slope:.3f} ms ({100 * (slope / plain - 1):+.1f} %)")


if __name__ == "__main__":
    main()
