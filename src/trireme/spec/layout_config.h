// spec/layout_config.h -- parallelism: the sections [layout] and [pipeline].
//
//   [layout]                  [pipeline]
//   tp = 8                    schedule = "interleaved"
//   pp = 4                    virtual_stages = 2
//   zero = 1
//
// Micro-batches and activation recomputation stand in [train]. A layout never changes what is computed, only where.
// Depends on: base (config).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"

namespace trireme::spec {

/// Context-parallel attention: how ranks that shard a sequence see all of its keys and values.
enum class ContextKind : std::uint8_t {
  kRing,     ///< ring attention (Liu et al. 2023)
  kUlysses,  ///< all-to-all between heads and tokens (Jacobs et al. 2023)
  kGather,   ///< all-gather of keys and values (Llama 3)
};
std::span<const Named<ContextKind>> enum_names(std::type_identity<ContextKind>);

/// Data type in which gradients are sent in reductions.
enum class ReduceKind : std::uint8_t { kFp32, kBf16 };
std::span<const Named<ReduceKind>> enum_names(std::type_identity<ReduceKind>);

/// What lives in the memory of the host instead of the device's (Ren et al. 2021, ZeRO-Offload).
enum class OffloadKind : std::uint8_t {
  kNone,
  kOptimizer,  ///< master weights, optimizer state, reduced gradients, and the update
};
std::span<const Named<OffloadKind>> enum_names(std::type_identity<OffloadKind>);

/// [layout]
struct LayoutConfig {
  std::optional<int> dp;  ///< unset: what the other axes leave of the ranks
  int tp = 1, pp = 1, cp = 1;
  int ep = 1;  ///< of dp x cp, ranks that the experts of a layer are sharded over
  int zero = 0;
  std::optional<int> zero_group;  ///< unset: all replicas
  bool sequence_parallel = false;
  ContextKind cp_kind = ContextKind::kGather;
  int cp_ulysses = 1;                     ///< of cp, ranks that use ulysses inside a ring or gather
  std::string order = "pp dp cp tp";      ///< of the mesh axes: neighbouring ranks differ in the last
  double bucket_mb = 25;                  ///< of a gradient bucket, 10^6 bytes; 0: one bucket
  std::optional<double> first_bucket_mb;  ///< of the one that backward completes first; unset: bucket_mb
  int reduce_groups = 1;                  ///< groups of the same ranks that buckets are reduced over in turn
  bool find_unused = false;               ///< parameters may have no gradient in a step
  ReduceKind reduce = ReduceKind::kFp32;
  bool tp_overlap = false;               ///< with sequence_parallel: chunked collectives overlap with GEMMs
  bool sp_save_gathered = false;         ///< with sequence_parallel: save gathered inputs for backward
  std::vector<double> dp_batch_weights;  ///< share of the global batch by data-parallel rank; empty: equal
  OffloadKind offload = OffloadKind::kNone;
  bool delayed_update = false;       ///< the update overlaps with the next step, which computes without it
  std::int64_t offload_warmup = 40;  ///< steps before the first delayed update
  bool operator==(const LayoutConfig&) const = default;

  /// Ranks of one replica of the model.
  std::int64_t ranks_per_copy() const { return std::int64_t{tp} * pp * cp; }
};

/// [pipeline]
struct PipelineConfig {
  std::string schedule = "1f1b";  ///< a name of schedule/builders.h; checked where schedules are built
  int virtual_stages = 1;
  /// Steps between pipeline flushes, where alone weights can be saved and evaluated. Unset: 1, and for asynchronous
  /// schedules as many as lie between evaluations and checkpoints.
  std::optional<int> drain_every;
  /// How layers are assigned: "count", "size", "time", "pipedream", or the entries at which chunks begin.
  std::string split = "count";
  /// Ranks of each stage, where stages run on several; empty: one each, or what split = "pipedream" finds.
  std::vector<int> stage_ranks;
  bool overlap_experts = true;  ///< DualPipe's pairs go on in turn while rows of experts travel
  bool scatter_gather = false;  ///< each tp rank sends its part of a boundary tensor; the receivers gather them
  bool operator==(const PipelineConfig&) const = default;

  /// Whether stages may be on several ranks.
  bool replicates_stages() const { return !stage_ranks.empty() || split == "pipedream"; }
};

void describe(config::Section<LayoutConfig>& section);
void describe(config::Section<PipelineConfig>& section);
/// `ranks`: how many there are, where that is known. What a layout does not go together with is in rules.h.
std::vector<config::Problem> find_problems(const LayoutConfig& layout, std::optional<int> ranks);

}  // namespace trireme::spec
