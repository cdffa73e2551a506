#include "trireme/checkpoint/gather.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::checkpoint {
namespace {

/// Every rank's text, on every rank.
std::vector<std::string> exchange(const std::string& mine, comm::Group& group) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size()));
  const auto size = static_cast<std::int64_t>(mine.size());
  group
      .all_gather(comm::ConstBuffer{&size, 1, comm::DType::kI64},
                  comm::Buffer{sizes.data(), sizes.size(), comm::DType::kI64})
      .wait();
  const std::vector<std::size_t> counts(sizes.begin(), sizes.end());
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  std::string all(total, '\0');
  group
      .all_gather_v(comm::ConstBuffer{mine.data(), mine.size(), comm::DType::kU8},
                    comm::Buffer{all.data(), all.size(), comm::DType::kU8}, counts)
      .wait();
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::size_t count : counts) {
    texts.push_back(all.substr(at, count));
    at += count;
  }
  return texts;
}

layout::Placement whole_placement(const std::string& name, const layout::Shape& shape) {
  layout::Box box{std::vector<layout::Index>(shape.size(), 0), shape};
  return {.name = name, .shape = shape, .pieces = {{.box = std::move(box)}}};
}

/// Where a tensor comes from.
struct Source {
  int rank = 0;
  layout::Shape shape;
  at::ScalarType type = at::kFloat;
};

}  // namespace

nn::State gather_whole(const nn::State& state, comm::Group& group) {
  nlohmann::json mine = nlohmann::json::object();
  for (const nn::StateTensor& entry : state.tensors()) {
    TRIREME_CHECK(layout::held_elements(entry.placement) == layout::elements(entry.placement.shape),
                  "{} is not held whole by rank {}", entry.name, group.rank());
    mine[entry.name] = {{"shape", entry.placement.shape}, {"type", static_cast<int>(entry.tensor.scalar_type())}};
  }
  std::map<std::string, Source> sources;  // the first rank that has it
  const auto texts = exchange(mine.dump(), group);
  for (int rank = 0; rank < group.size(); ++rank) {
    const nlohmann::json held = nlohmann::json::parse(texts[static_cast<std::size_t>(rank)]);
    for (const auto& [name, about] : held.items()) {
      sources.try_emplace(name, Source{rank, about.at("shape").get<layout::Shape>(),
                                       static_cast<at::ScalarType>(about.at("type").get<int>())});
    }
  }
  nn::State whole;
  for (const auto& [name, source] : sources) {  // the same order on every rank
    if (group.rank() == 0) {
      at::Tensor tensor;
      if (source.rank == 0) {
        tensor = state.at(name).tensor;
      } else {
        tensor = at::empty(source.shape, source.type);
        group.recv(device::to_buffer(tensor), source.rank).wait();
      }
      whole.add(name, tensor, whole_placement(name, source.shape));
    } else if (group.rank() == source.rank) {
      group.send(device::to_const_buffer(state.at(name).tensor), 0).wait();
    }
  }
  if (group.rank() == 0) {
    for (const nn::StateValue& value : state.values()) whole.add_value(value.name, value.get, value.set);
  }
  return whole;
}

}  // namespace trireme::checkpoint
