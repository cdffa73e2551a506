// tests/plan/llama_405b.h -- the largest job that others have published in detail: Llama 3.
#pragma once

#include "trireme/plan/job.h"
#include "trireme/plan/published.h"

namespace trireme::plan {

inline Job llama_405b() {
  Job job;
  job.shape = shape_of({.family = ModelFamily::kLlama,
                        .layers = 126,
                        .hidden = 16384,
                        .heads = 128,
                        .kv_heads = 8,
                        .ffn = 53248,
                        .vocab = 128256});
  job.length = 8192;
  job.batch = 2048;
  return job;
}

}  // namespace trireme::plan
