// plan/published.h -- runs that others have measured, as data with sources: recipes/published/*.toml.
//
// Depends on: job, search.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/plan/job.h"
#include "trireme/plan/search.h"

namespace trireme::plan {

enum class ModelFamily : std::uint8_t {
  kGpt,    ///< GPT-2's features, with dropout
  kLlama,  ///< gated MLP, RMSNorm, no biases
};
std::span<const Named<ModelFamily>> enum_names(std::type_identity<ModelFamily>);

/// A model by its sizes, as tables of papers give it. What is left out: ffn = 4 x hidden for gpt, kv_heads = heads.
struct ModelSizes {
  ModelFamily family = ModelFamily::kGpt;
  std::optional<std::int64_t> num_layers, hidden_size, num_heads, num_kv_heads, ffn_size, vocab_size;
};
/// Throws config::ProblemsError when sizes are missing or do not go together.
spec::ModelShape shape_of(const ModelSizes& sizes);

enum class Confidence : std::uint8_t { kHigh, kMedium };
std::span<const Named<Confidence>> enum_names(std::type_identity<Confidence>);

/// How a source counts FLOPs.
enum class FlopsKind : std::uint8_t {
  kModel,     ///< model_flops()
  kHardware,  ///< hardware_flops(): with recomputation
};
std::span<const Named<FlopsKind>> enum_names(std::type_identity<FlopsKind>);

struct PublishedRun {
  std::string id, source, evidence;
  Confidence confidence = Confidence::kHigh;
  std::string cluster;
  ModelFamily family = ModelFamily::kGpt;
  std::optional<std::int64_t> num_layers, hidden_size, num_heads, num_kv_heads, ffn_size, vocab_size;
  std::int64_t seq_len = 2048;
  int gpus = 1;
  std::optional<int> tp, pp, dp, cp, virtual_stages, zero;
  std::optional<std::int64_t> micro_batch_size, global_batch_size;
  std::optional<spec::RecomputeKind> recompute;
  std::optional<bool> sequence_parallel;
  cost::Arithmetic precision = cost::Arithmetic::kBf16;
  AttentionKind attention = AttentionKind::kFlash;
  // What was measured.
  std::optional<double> step_seconds, tflops;
  FlopsKind flops = FlopsKind::kModel;
  std::optional<double> forward_ms, backward_ms;                         // [[layer_times]]
  std::optional<double> tensor_parallel_gib, selective_gib, states_gib;  // [[activations]]
};

struct PublishedFile {
  std::vector<PublishedRun> runs, layer_times, activations, out_of_memory;
};

void describe(config::Section<PublishedRun>& section);
void describe(config::Section<PublishedFile>& section);

/// One file of a source: "megatron-sc21".
struct PublishedSource {
  std::string name;
  PublishedFile file;
};
/// Everything in recipes/published.
std::vector<PublishedSource> load_published();

/// With Megatron's layers, which nearly all of them used.
Job job_of(const PublishedRun& run);
/// What was printed, and what the software of the time could do: 1F1B and interleaved, equal stages, no offload.
Choices choices_of(const PublishedRun& run);
/// Whether the run counts for the planner's error: all of layers, layout, batch and a time or a rate, of high
/// confidence.
bool counts(const PublishedRun& run);
/// The step time that was printed, or that follows from the printed rate.
double measured_seconds(const PublishedRun& run);

}  // namespace trireme::plan
