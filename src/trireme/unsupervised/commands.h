// unsupervised/commands.h -- what the program may ask of this room. No tensor type crosses this line.
//
// Depends on: std.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::unsupervised {

/// Examples by rows; values in [0, 1] for belief networks.
struct Examples {
  std::vector<float> values;
  std::int64_t rows = 0, columns = 0;
};

struct DbnRequest {
  Examples examples;
  std::vector<std::int64_t> hidden;  ///< units of each layer
  int epochs = 20;                   ///< of each layer
  double rate = 0.1, momentum = 0.5;
  std::int64_t batch = 100;
  std::uint64_t seed = 0;
  std::int64_t patch = 0,
               stride = 1;  ///< of the first layer: groups that each see patch x patch pixels; 0: all see all
  bool cuda = false;
  /// Told after each epoch: the layer, the mean squared error while learning, and without draws.
  std::function<void(int layer, int epoch, double error, double reconstruction)> each = nullptr;
};
struct DbnResult {
  std::vector<double> before, after;  ///< reconstruction error of each layer
  std::int64_t parameters = 0;
  double seconds = 0;
};

struct SparseCodeRequest {
  Examples examples;
  std::int64_t bases = 128;
  double beta = 0.1;
  int rounds = 10;  ///< of activations, then bases
  std::int64_t iterations = 500;
  double tolerance = 1e-4;
  std::uint64_t seed = 0;
  bool cuda = false, fp64 = false;
  /// Told after each round: the objective behind activations and behind bases, the share of activations that are not 0.
  std::function<void(int round, double activations, double bases, double active)> each = nullptr;
};
struct SparseCodeResult {
  double objective = 0, residual = 0, active = 0, seconds = 0;
  std::int64_t iterations = 0;  ///< in all
};

struct Commands {
  std::uint32_t version;
  DbnResult (*dbn)(const DbnRequest& request);
  SparseCodeResult (*sparse_code)(const SparseCodeRequest& request);
};
inline constexpr std::uint32_t kVersion = 1;

extern "C" const Commands* trireme_unsupervised();
inline constexpr const char* kEntry = "trireme_unsupervised";

}  // namespace trireme::unsupervised
