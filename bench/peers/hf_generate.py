#!/usr/bin/env python3
"""The peer of bench/serving_torch: transformers' generate, greedy, on a Llama of the same shape with random weights in bf16.

Started by the benchmark, which sends "about" or "run PROMPT TOKENS" and gets one line of JSON for each.
"""
import argparse
import json
import os
import sys
import time

SIZES = {  # layers, width, heads, heads of keys, MLP, vocabulary
    "llama-tiny": (2, 256, 4, 2, 512, 512),
    "llama-160m": (12, 768, 12, 4, 2048, 32000),
    "llama-1b": (16, 2048, 32, 8, 8192, 128256),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SIZES, default="llama-tiny")
    parser.add_argument("--type", default="bf16", choices=["bf16"])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    layers, width, heads, kv_heads, inner, vocab = SIZES[options.model]
    config = transformers.LlamaConfig(num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
                                      num_key_value_heads=kv_heads, intermediate_size=inner, vocab_size=vocab,
                                      max_position_embeddings=8192, tie_word_embeddings=True)
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    model = transformers.LlamaForCausalLM(config).eval()

    def seconds_of(prompt, tokens):
        ids = torch.randint(0, vocab, (1, prompt))
        begin = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                                 do_sample=False, pad_token_id=0)
        assert out.shape[1] == prompt + tokens
        return time.perf_counter() - begin

    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        if words[0] == "about":
            answer = {"peer": "transformers", "version": transformers.__version__, "torch": torch.__version__,
                      "instructions": torch.backends.cpu.get_cpu_capability()}
        else:
            prompt, tokens = int(words[1]), int(words[2])
            prefill = seconds_of(prompt, 1)
            began = time.process_time()
            whole = seconds_of(prompt, tokens)
            answer = {"prefill_s": prefill, "decode_s": max(whole - prefill, 1e-9), "processor_s": time.process_time() - began}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


main()
