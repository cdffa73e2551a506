// bench/gpu_offload.h -- a training step whose optimizer is on the host: fp32 masters of a model that would not fit.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/gpu_sides.h"
#include "trireme/base/text.h"
#include "trireme/comm/rank.h"
#include "trireme/data/open_samples.h"
#include "trireme/device/cuda.h"
#include "trireme/train/engine/trainer.h"

namespace trireme::bench {

inline spec::Recipe offload_recipe(const Size& s) {
  const spec::ModelShape shape = shape_of(s);
  spec::Recipe recipe;
  recipe.run.device = spec::DeviceKind::kCuda;
  recipe.model.family = shape.family;
  recipe.model.num_layers = s.num_layers, recipe.model.hidden_size = s.hidden_size, recipe.model.ffn_size = s.ffn_size;
  recipe.model.num_heads = s.num_heads, recipe.model.num_kv_heads = s.num_kv_heads,
  recipe.model.head_dim = shape.head_dim;
  recipe.model.vocab_size = s.vocab_size, recipe.model.max_seq_len = s.seq_len, recipe.model.tied = s.tied;
  recipe.data.seq_len = s.seq_len;
  recipe.data.synthetic.kind = spec::SyntheticKind::kCopy;
  recipe.data.synthetic.vocab_size = s.vocab_size - 6;  // and its special tokens
  recipe.batch.global_batch_tokens = s.batch * s.seq_len;
  recipe.optim.learning_rate = 1e-4;
  recipe.optim.weight_decay = 0.1;
  recipe.optim.beta2 = 0.95;
  recipe.optim.grad_clip_norm = 1;
  recipe.optim.state_dtype = spec::StateDtype::kBf16;  // masters stay fp32; the host has to hold all of it
  recipe.precision.compute = spec::Precision::kBf16;
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  recipe.layout.reduce = spec::ReduceKind::kBf16;  // half the way, and half the host's memory for it
  recipe.train.steps = 1'000'000;
  return recipe;
}

/// Seconds a step of each way, beside what the host and the link were planned to hold.
inline nlohmann::json measure_offload(const Size& s, int rounds, int steps) {
  nlohmann::json out;
  fmt::print("{}: {}x{}, fp32 masters and bf16 moments on the host\n", s.name, s.batch, s.seq_len);
  const auto measure = [&](const char* name, const spec::Recipe& recipe) {
    comm::run_ranks(1, [&](comm::Rank& rank) {
      const auto samples = data::open_samples(recipe, data::Split::kTrain);
      train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
      device::cuda_runtime().reset_peak_memory_stats(0);
      double loss = 0;
      for (int step = 0; step < 3; ++step) trainer.step();
      Times times;
      for (int round = 0; round < rounds; ++round) {
        const auto begin = Clock::now();
        for (int step = 0; step < steps; ++step) loss = trainer.step().loss;  // waits for it
        times.seconds.push_back(seconds_since(begin) / steps);
      }
      const double gib = 1 << 30, peak = static_cast<double>(device::cuda_runtime().max_memory_allocated(0)) / gib;
      // Each by itself as soon as it is known: the next may take minutes.
      TextTable table(
          {{"optimizer on the host"}, {"ms a step"}, {"tokens/s"}, {"peak GiB"}, {"planned"}, {"host GiB"}, {"loss"}});
      table.add({name, fmt::format("{:.1f}", times.median() * 1e3),
                 fmt::format("{:.0f}", static_cast<double>(s.batch * s.seq_len) / times.median()),
                 fmt::format("{:.1f}", peak), fmt::format("{:.1f}", trainer.planned().peak() / gib),
                 fmt::format("{:.1f}", trainer.planned().host() / gib), fmt::format("{:.4f}", loss)});
      fmt::print("{}\n", table.text());
      std::fflush(stdout);
      out[name] = {{"seconds", times.seconds}, {"peak_gib", peak}};
    });
  };
  spec::Recipe recipe = offload_recipe(s);
  measure("update, then the next step", recipe);
  recipe.layout.delayed_update = true;
  recipe.layout.offload_warmup = 0;
  measure("update beside the next step", recipe);
  return out;
}

}  // namespace trireme::bench
