#include "trireme/nn/state.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/layout/hash.h"
#include "trireme/nn/param.h"

namespace trireme::nn {
namespace {

/// FNV-1a: of names, which are few and short.
std::uint64_t text_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

void State::check_new(const std::string& name) const {
  TRIREME_CHECK(!tensor_at_.contains(name) && !value_at_.contains(name), "two parts of the state are named {}", name);
}

void State::add(std::string name, at::Tensor tensor, layout::Placement placement, CopiesRule copies) {
  check_new(name);
  TRIREME_CHECK(tensor.defined() && tensor.is_contiguous(), "state {} is no contiguous tensor", name);
  TRIREME_CHECK(tensor.numel() == layout::local_elements(placement), "state {} has {} elements for {}", name,
                tensor.numel(), layout::to_text(placement));
  placement.name = name;
  tensor_at_.emplace(name, tensors_.size());
  tensors_.push_back({std::move(name), std::move(tensor), std::move(placement), copies});
}

void State::add_value(std::string name, std::function<nlohmann::ordered_json()> get,
                      std::function<void(const nlohmann::ordered_json& value)> set) {
  check_new(name);
  value_at_.emplace(name, values_.size());
  values_.push_back({std::move(name), std::move(get), std::move(set)});
}

void State::place_again(std::string_view name, layout::Placement placement) {
  const auto found = tensor_at_.find(std::string(name));
  TRIREME_CHECK(found != tensor_at_.end(), "the state has no tensor {}", name);
  StateTensor& tensor = tensors_[found->second];
  TRIREME_CHECK(placement.shape == tensor.placement.shape && tensor.tensor.numel() == layout::local_elements(placement),
                "state {} cannot be placed as {}", name, layout::to_text(placement));
  placement.name = tensor.name;
  tensor.placement = std::move(placement);
}

const StateTensor* State::find(std::string_view name) const {
  const auto found = tensor_at_.find(std::string(name));
  return found == tensor_at_.end() ? nullptr : &tensors_[found->second];
}

const StateValue* State::find_value(std::string_view name) const {
  const auto found = value_at_.find(std::string(name));
  return found == value_at_.end() ? nullptr : &values_[found->second];
}

void State::refuse(std::string_view name, const char* what) const {
  std::vector<std::string> names;
  for (const StateTensor& tensor : tensors_) names.push_back(tensor.name);
  for (const StateValue& value : values_) names.push_back(value.name);
  throw ConfigError(fmt::format("the state has no {} {}{}", what, name, did_you_mean(name, names)));
}

const StateTensor& State::at(std::string_view name) const {
  if (const StateTensor* found = find(name)) return *found;
  refuse(name, "tensor");
}

const StateValue& State::value(std::string_view name) const {
  if (const StateValue* found = find_value(name)) return *found;
  refuse(name, "value");
}

std::int64_t State::bytes() const {
  std::int64_t total = 0;
  for (const StateTensor& tensor : tensors_) total += static_cast<std::int64_t>(tensor.tensor.nbytes());
  return total;
}

void add_params(State& state, Params& params) {
  for (Param& param : params) state.add("param/" + param.name, param.master, param.placement);
}

std::vector<HashShare> hash_shares(const State& state, const layout::Mesh& mesh, int rank) {
  std::vector<HashShare> shares;
  for (const StateTensor& entry : state.tensors()) {
    const at::Tensor host = entry.tensor.cpu();  // the same tensor where it is there already
    const auto runs = layout::first_copy_runs(mesh, rank, entry.placement);
    shares.push_back(
        {entry.name, layout::tensor_hash(runs, {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()},
                                         static_cast<std::size_t>(host.element_size()))});
  }
  for (const StateValue& entry : state.values()) {
    shares.push_back({entry.name, rank == 0 ? text_hash(entry.get().dump()) : 0});
  }
  return shares;
}

std::vector<HashShare> value_hashes(const State& state) {
  std::vector<HashShare> hashes;
  for (const StateValue& entry : state.values()) hashes.push_back({entry.name, text_hash(entry.get().dump())});
  return hashes;
}

std::uint64_t total_hash(std::span<const HashShare> hashes) {
  std::uint64_t sum = 0;
  for (const HashShare& hash : hashes) sum += layout::mix(static_cast<layout::Index>(text_hash(hash.name)), hash.share);
  return sum;
}

}  // namespace trireme::nn
