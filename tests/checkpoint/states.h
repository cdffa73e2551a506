// tests/checkpoint/states.h -- states whose numbers are a function of name and global index, under any layout.
#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/layout/placing.h"
#include "trireme/nn/state.h"

namespace trireme::checkpoint {

/// A tensor and what a layout does with it.
struct Wanted {
  std::string name;
  layout::Shape shape;
  at::ScalarType type = at::kFloat;
  std::function<void(layout::Placing&)> place = [](layout::Placing&) {};
};

inline double value_at(std::size_t name_hash, layout::Index global) {
  return static_cast<double>((name_hash % 1000) * 100000 + static_cast<std::size_t>(global) % 99991);
}

/// What the rank's memory must hold, in the tensor's type, as doubles.
inline at::Tensor expected(const nn::StateTensor& entry, double padding) {
  at::Tensor values = at::full({entry.tensor.numel()}, padding, at::kDouble);
  auto* data = values.data_ptr<double>();
  const std::size_t name = std::hash<std::string>{}(entry.name);
  for (const layout::ContiguousRun& run : layout::runs(entry.placement)) {
    for (layout::Index i = 0; i < run.count; ++i) data[run.local + i] = value_at(name, run.global + i);
  }
  return values.to(entry.tensor.scalar_type()).to(at::kDouble);
}

inline void fill(const nn::StateTensor& entry) { entry.tensor.view({-1}).copy_(expected(entry, -7)); }

/// How many elements are not what they must be; padding must be `padding`.
inline std::int64_t wrong(const nn::StateTensor& entry, double padding) {
  return entry.tensor.view({-1}).to(at::kDouble).ne(expected(entry, padding)).sum().item<std::int64_t>();
}

/// Tensors that this rank holds nothing of are left out, as in a pipeline.
inline void add_all(nn::State& state, const std::vector<Wanted>& tensors, const layout::Mesh& mesh, int rank,
                    bool filled) {
  for (const Wanted& wanted : tensors) {
    layout::Placing placing(mesh, rank, wanted.name, wanted.shape);
    wanted.place(placing);
    const layout::Placement& placement = placing.placement();
    if (placement.pieces.empty()) continue;
    state.add(wanted.name, at::full({layout::local_elements(placement)}, -9, wanted.type), placement);
    if (filled) fill(state.tensors().back());
  }
}

/// A layout drawn at random for tensors of these shapes: splits by tp, padding, fused blocks, stages, ZeRO.
struct Drawn {
  layout::Mesh mesh;
  std::vector<Wanted> tensors;
};

inline Drawn draw(std::uint64_t seed) {
  const Random random(seed, "layout");
  std::uint64_t at = 0;
  const auto pick = [&](std::uint64_t count) { return random.below(count, at++); };
  const int pp = 1 + static_cast<int>(pick(2)), dp = 1 + static_cast<int>(pick(3)), tp = 1 + static_cast<int>(pick(3));
  Drawn drawn{.mesh = layout::Mesh({{"pp", pp}, {"dp", dp}, {"tp", tp}}), .tensors = {}};
  const std::vector<std::pair<std::string, layout::Shape>> shapes{
      {"param/embedding", {53, 12}}, {"param/up", {36, 24}},   {"param/down", {24, 36}},  {"param/qkv", {48, 12}},
      {"param/norm", {24}},          {"optim/m/up", {36, 24}}, {"param/conv", {6, 5, 7}}, {"scalar", {}}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const auto& [name, shape] = shapes[i];
    const auto how = pick(5);
    const bool zero = pick(2) == 1;
    const int stage = static_cast<int>(pick(static_cast<std::uint64_t>(pp)));
    const bool everywhere = pick(3) == 0;
    const auto multiple = static_cast<layout::Index>(1 + pick(5));
    drawn.tensors.push_back({.name = name,
                             .shape = shape,
                             .type = name == "param/norm" ? at::kDouble : at::kFloat,
                             .place = [=, sizes = shape](layout::Placing& placing) {
                               if (!everywhere) placing.only_at("pp", stage);
                               if (sizes.size() == 2 && how == 0) placing.split(0, "tp");
                               if (sizes.size() >= 2 && how == 1) placing.split(1, "tp");
                               if (sizes.size() >= 1 && how == 2) {
                                 placing.split_padded("tp", (sizes[0] + tp - 1) / tp * tp + 2 * tp);
                               }
                               if (name == "param/qkv" && how == 3) {
                                 const layout::Block blocks[] = {{24}, {12}, {12}};
                                 placing.split_blocks(0, "tp", blocks);
                               }
                               if (zero) placing.partition({"dp"}, multiple);
                             }});
  }
  return drawn;
}

}  // namespace trireme::checkpoint
