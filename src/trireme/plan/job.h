// plan/job.h -- what is to be trained, and one way to spread it over devices.
//
// A Job fixes the mathematics: model, length, batch, numbers. A Layout says how the work is cut; it never changes the
// result. find_problems() says which of them contradict each other; what merely does not fit in memory is no
// contradiction.
// Depends on: spec, cost, schedule.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/cost/hardware.h"
#include "trireme/spec/model_shape.h"

namespace trireme::plan {

enum class AttentionKind : std::uint8_t {
  kFlash,    ///< fused: scores never reach memory, tiles outside the mask are not computed
  kUnfused,  ///< products and softmax one after the other, as before 2022
};
enum class Recompute : std::uint8_t {
  kNone,
  kSelective,  ///< attention's scores only (Korthikanti et al. 2022); fused attention does that anyway
  kFull,       ///< whole layers, from their inputs
};
std::span<const Named<AttentionKind>> enum_names(std::type_identity<AttentionKind>);
std::span<const Named<Recompute>> enum_names(std::type_identity<Recompute>);

struct Job {
  spec::ModelShape shape;
  std::int64_t length = 2048;  ///< tokens of a sequence
  std::int64_t batch = 1;      ///< sequences of a step
  cost::Arithmetic arithmetic = cost::Arithmetic::kBf16;
  AttentionKind attention = AttentionKind::kFlash;

  double tokens() const { return static_cast<double>(length) * static_cast<double>(batch); }
};

/// FLOPs of a step without recomputation as papers report them: every product three times, attention in full, not
/// halved for the mask. For a GPT this is 72 B s l h^2 (1 + s/(6h) + V/(12 h l)).
double model_flops(const Job& job);
/// Encoders count too.
int layers_of(const spec::ModelShape& shape);
/// Parameters of one layer, of the token embedding, of the head beside it.
struct Weights {
  double layer = 0, embedding = 0, head = 0;
};
Weights count_weights(const spec::ModelShape& shape);

struct Layout {
  int tp = 1;  ///< ranks that split each matrix
  int pp = 1;  ///< consecutive groups of layers
  int dp = 1;  ///< copies of the model
  int cp = 1;  ///< ranks that split each sequence
  int virtual_stages = 1;
  std::int64_t microbatch = 1;  ///< sequences that a rank takes at once
  int zero = 0;                 ///< stage: what is sharded over dp
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kNone;
  std::string schedule = "1f1b";

  int gpus() const { return tp * pp * dp * cp; }
  bool operator==(const Layout&) const = default;
};

/// Microbatches of a step on each copy of the model.
std::int64_t micros_of(const Job& job, const Layout& layout);
/// "tp 8, pp 12, dp 4, ...": for people.
std::string to_text(const Layout& layout);

/// Everything in which the layout contradicts itself, the job or the number of devices.
std::vector<config::Problem> find_problems(const Job& job, const Layout& layout, int gpus);

/// Layers of each stage, over all its chunks. Where they do not divide evenly, those in the middle have one more: the
/// first and the last also hold the embedding and the head.
std::vector<int> stage_layers(int layers, int stages, int virtual_stages);

}  // namespace trireme::plan
