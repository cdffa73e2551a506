// ps/update_rule.h -- what a server does with pushed values: a function that runs where the weights are.
//
// A server has planes of numbers over its keys: the weights, and what its rule keeps beside them. A rule goes through
// keys one by one, so it does not matter how keys are cut into ranges, pushes and servers.
// Depends on: segments.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trireme/ps/segments.h"

namespace trireme::ps {

enum class ValueType : std::uint8_t { kF32, kF64 };
constexpr std::size_t value_bytes(ValueType type) { return type == ValueType::kF32 ? 4 : 8; }

struct Planes {
  ValueType type = ValueType::kF64;
  std::vector<std::byte*> data;  ///< of all keys, each; 0: the weights

  template <typename T>
  T* at(std::size_t plane, std::uint64_t key) const {
    return reinterpret_cast<T*>(data[plane]) + key;
  }
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// Beside the weights.
  virtual int state_planes() const { return 0; }
  /// Values a key in a push.
  virtual int push_planes() const { return 1; }
  /// `pushed[p]` is the first of the keys' values of push plane p.
  virtual void apply(const Planes& planes, const Segment& keys, std::span<const std::byte* const> pushed,
                     double rate) const = 0;
};

/// w <- w - rate g
std::unique_ptr<UpdateRule> make_sgd_rule();
/// s <- s + g^2, w <- w - rate g / (sqrt(s) + epsilon): a rate for each parameter, on the server (Dean et al. 2012).
std::unique_ptr<UpdateRule> make_adagrad_rule(double epsilon);
/// w <- w + g
std::unique_ptr<UpdateRule> make_sum_rule();
/// w <- soft(w - u / L, lambda / L) with pushed u and L; u is kept. Keys with L = 0 stay.
std::unique_ptr<UpdateRule> make_proximal_rule(double lambda);

/// The number nearest to x with |x| less by the threshold, or 0.
double soft_threshold(double x, double threshold);

}  // namespace trireme::ps
