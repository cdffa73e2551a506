// tests/plan/llama_405b.h -- the largest job that others have published in detail: Llama 3.
#pragma once

#include "trireme/plan/job.h"
#include "trireme/plan/published.h"

namespace trireme::plan {

inline Job llama_405b() {
  Job job;
  job.shape = shape_of({.family = ModelFamily::kLlama,
                        .num_layers = 126,
                        .hidden_size = 16384,
                        .num_heads = 128,
                        .num_kv_heads = 8,
                        .ffn_size = 53248,
                        .vocab_size = 128256});
  job.seq_len = 8192;
  job.batch = 2048;
  return job;
}

}  // namespace trireme::plan
