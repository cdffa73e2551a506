// cli/serving_options.h -- options that `generate` and `serve` share: ranks, speculation, streamed weights, the KV
// cache.
//
// Depends on: command.h, serve/commands.h.
#pragma once

#include <string>

#include "trireme/cli/command.h"
#include "trireme/serve/commands.h"

namespace trireme::cli {

struct ServingOptions {
  int tp = 1;
  serve::RankLayout layout = {};
  std::size_t speculate = 0;
  std::string draft = "ngram";
  bool rejection = false;
  double weight_arena_mb = 0;
  serve::WeightBits lm_head = serve::WeightBits::kSame;
  serve::KvCacheDtype kv_cache = serve::KvCacheDtype::kAuto;
  serve::ExpertsOverTp experts = serve::ExpertsOverTp::kDefault;

  int ranks() const { return tp * layout.pp * layout.dp; }
  serve::SpeculationRequest speculation() const;
  std::int64_t weight_arena_bytes() const { return static_cast<std::int64_t>(weight_arena_mb * 1e6); }
};

/// `replicas`: also those that give each rank requests of its own.
void add_serving_options(Command& command, ServingOptions& options, bool replicas);

}  // namespace trireme::cli
