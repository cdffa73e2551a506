#include "trireme/checkpoint/gather.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/checkpoint/texts.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/coverage.h"

namespace trireme::checkpoint {
namespace {

layout::Placement whole_placement(const std::string& name, const layout::Shape& shape) {
  layout::Box box{std::vector<layout::Index>(shape.size(), 0), shape};
  return {.name = name, .shape = shape, .pieces = {{.box = std::move(box)}}};
}

/// What runs() wants to know, and no more: axes stay at home.
nlohmann::json to_json(const layout::Placement& placement) {
  nlohmann::json pieces = nlohmann::json::array();
  for (const layout::Piece& piece : placement.pieces) {
    pieces.push_back({piece.box.begin, piece.box.end, piece.padding});
  }
  nlohmann::json json{{"shape", placement.shape}, {"pieces", std::move(pieces)}};
  if (placement.partition) json["partition"] = {placement.partition->begin, placement.partition->end};
  return json;
}

layout::Placement from_json(const std::string& name, const nlohmann::json& json) {
  layout::Placement placement{.name = name, .shape = json.at("shape").get<layout::Shape>()};
  for (const nlohmann::json& piece : json.at("pieces")) {
    placement.pieces.push_back({.box = {piece.at(0).get<layout::Shape>(), piece.at(1).get<layout::Shape>()},
                                .padding = piece.at(2).get<layout::Index>()});
  }
  if (json.contains("partition")) {
    placement.partition = {.begin = json.at("partition").at(0).get<layout::Index>(),
                           .end = json.at("partition").at(1).get<layout::Index>()};
  }
  return placement;
}

/// A tensor on all ranks: where its elements are.
struct Source {
  at::ScalarType type = at::kFloat;
  std::vector<layout::Placement> placements;  // by rank; no pieces: nothing there
};

/// Ranks whose parts make the tensor whole, the first ones that do.
std::vector<int> needed(const Source& source) {
  std::vector<int> ranks;
  const layout::Coverage coverage = layout::cover(source.placements);
  for (const auto& segment : coverage.segments) {
    TRIREME_CHECK(!segment.holders.empty(), "no rank holds element {} of {}", segment.begin,
                  source.placements.front().name);
    bool has = false;
    for (const auto& holder : segment.holders) {
      for (const int rank : coverage.ranks_of[static_cast<std::size_t>(holder.layout)]) {
        has = has || std::ranges::find(ranks, rank) != ranks.end();
      }
    }
    if (has) continue;
    int first = std::numeric_limits<int>::max();
    for (const auto& holder : segment.holders) {
      first = std::min(first, coverage.ranks_of[static_cast<std::size_t>(holder.layout)].front());
    }
    ranks.push_back(first);
  }
  std::ranges::sort(ranks);
  return ranks;
}

void lay_down(const at::Tensor& part, const layout::Placement& placement, at::Tensor& whole) {
  const auto width = static_cast<layout::Index>(whole.element_size());
  const auto* from = static_cast<const std::byte*>(part.const_data_ptr());
  auto* to = static_cast<std::byte*>(whole.data_ptr());
  for (const layout::ContiguousRun& run : layout::runs(placement)) {
    std::memcpy(to + run.global * width, from + run.local * width, static_cast<std::size_t>(run.count * width));
  }
}

}  // namespace

nn::State gather_whole(const nn::State& state, comm::Group& group) {
  nlohmann::json mine = nlohmann::json::object();
  for (const nn::StateTensor& entry : state.tensors()) {
    mine[entry.name] = {{"type", static_cast<int>(entry.tensor.scalar_type())}, {"at", to_json(entry.placement)}};
  }
  std::map<std::string, Source> sources;
  const auto texts = all_texts(mine.dump(), group);
  const auto ranks = static_cast<std::size_t>(group.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const nlohmann::json held = nlohmann::json::parse(texts[rank]);
    for (const auto& [name, about] : held.items()) {
      Source& source = sources[name];
      source.type = static_cast<at::ScalarType>(about.at("type").get<int>());
      source.placements.resize(ranks);
      source.placements[rank] = from_json(name, about.at("at"));
    }
  }
  nn::State whole;
  for (auto& [name, source] : sources) {  // the same order on every rank
    layout::Shape shape;
    for (const layout::Placement& placement : source.placements) {
      if (!placement.pieces.empty()) shape = placement.shape;
    }
    for (layout::Placement& placement : source.placements) {
      placement.name = name;
      placement.shape = shape;
    }
    at::Tensor tensor;
    if (group.rank() == 0) {
      const nn::StateTensor* own = state.find(name);
      const bool all = own && layout::held_elements(own->placement) == layout::elements(shape) &&
                       own->tensor.numel() == layout::elements(shape);
      tensor = all ? own->tensor.cpu() : at::empty(shape, source.type);
      whole.add(name, tensor, whole_placement(name, shape));
      if (all) continue;
    } else if (layout::held_elements(source.placements.front()) == layout::elements(shape) &&
               layout::local_elements(source.placements.front()) == layout::elements(shape)) {
      continue;
    }
    for (const int rank : needed(source)) {
      const layout::Placement& placement = source.placements[static_cast<std::size_t>(rank)];
      if (group.rank() == rank && rank != 0) {
        const at::Tensor here = state.at(name).tensor.cpu();
        group.send(device::to_const_buffer(here), 0).wait();
      } else if (group.rank() == 0) {
        at::Tensor part =
            rank == 0 ? state.at(name).tensor.cpu() : at::empty({layout::local_elements(placement)}, source.type);
        if (rank != 0) group.recv(device::to_buffer(part), rank).wait();
        lay_down(part, placement, tensor);
      }
    }
  }
  if (group.rank() == 0) {
    for (const nn::StateValue& value : state.values()) whole.add_value(value.name, value.get, value.set);
  }
  return whole;
}

}  // namespace trireme::checkpoint
