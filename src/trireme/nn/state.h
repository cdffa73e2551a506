// nn/state.h -- everything that a run must remember, by name: tensors with their placements, and small values as JSON.
//
//   State state;                                   for (const HashShare& share : hash_shares(state, mesh, rank)) ...
//   add_params(state, params);                     state.at("optim/m/wte").tensor
//   optimizer->add_state(state);                   state.value("optim/steps").set(json)
//
// Parts register themselves once; checkpoints, hashes and comparisons know only this list. A tensor here shares memory
// with its owner: it is read and written in place, so an owner must not put another tensor in its place. No file
// format.
// Depends on: base, layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/layout/placement.h"

namespace trireme::nn {

class Params;

/// What becomes of a tensor whose first dimension counts copies of the model (layout::stack_copies) when a checkpoint
/// of N copies is read by M.
enum class CopiesRule : std::uint8_t {
  kSame,        ///< it counts no copies: the shape must agree
  kSum,         ///< each gets the sum over the N divided by M: what compression has left out
  kOwnOrZero,   ///< each gets its own; those beyond N zeros: moments of copies that update by themselves
  kOwnOrFirst,  ///< each gets its own; those beyond N the first: their weights
  kRestart,     ///< of another shape it stays as it is here: a warm start
};

struct StateTensor {
  std::string name;
  at::Tensor tensor;            ///< contiguous: this rank's memory, padding included
  layout::Placement placement;  ///< its name is this one's
  CopiesRule copies = CopiesRule::kSame;
};

/// A number or a few, the same on every rank.
struct StateValue {
  std::string name;
  std::function<nlohmann::ordered_json()> get;
  std::function<void(const nlohmann::ordered_json& value)> set;
};

class State {
 public:
  /// Names are unique over tensors and values, and the tensor holds what the placement says: an InternalError
  /// otherwise.
  void add(std::string name, at::Tensor tensor, layout::Placement placement, CopiesRule copies = CopiesRule::kSame);
  void add_value(std::string name, std::function<nlohmann::ordered_json()> get,
                 std::function<void(const nlohmann::ordered_json& value)> set);

  /// The tensor's memory has other elements of the same global tensor from here on, as many. Whoever has told other
  /// ranks of placements goes by placement_changes().
  void place_again(std::string_view name, layout::Placement placement);
  /// How often somebody said so: the same number on all ranks.
  void count_placement_change() { ++placement_changes_; }
  std::int64_t placement_changes() const { return placement_changes_; }

  /// In the order in which they were added.
  std::span<const StateTensor> tensors() const { return tensors_; }
  std::span<const StateValue> values() const { return values_; }
  /// Null when there is none.
  const StateTensor* find(std::string_view name) const;
  const StateValue* find_value(std::string_view name) const;
  /// A ConfigError naming a close one when there is none.
  const StateTensor& at(std::string_view name) const;
  const StateValue& value(std::string_view name) const;

  /// Of this rank's tensors.
  std::int64_t bytes() const;

 private:
  void check_new(const std::string& name) const;
  [[noreturn]] void refuse(std::string_view name, const char* what) const;

  std::vector<StateTensor> tensors_;
  std::vector<StateValue> values_;
  std::unordered_map<std::string, std::size_t> tensor_at_, value_at_;
  std::int64_t placement_changes_ = 0;
};

/// Every parameter's master as "param/NAME".
void add_params(State& state, Params& params);

/// A rank's share of the hash of one tensor or value. Shares of all ranks with this name, added modulo 2^64, are the
/// hash: the same under every layout.
struct HashShare {
  std::string name;
  std::uint64_t share = 0;
  bool operator==(const HashShare&) const = default;
};
/// Each element is counted by the rank that has its first copy, values by rank 0. Tensors first, in their order.
std::vector<HashShare> hash_shares(const State& state, const layout::Mesh& mesh, int rank);
/// The hashes of the values alone, in their order.
std::vector<HashShare> value_hashes(const State& state);
/// One number for all of them, names included, in whatever order they come. Of hashes, not of shares.
std::uint64_t total_hash(std::span<const HashShare> hashes);

}  // namespace trireme::nn
