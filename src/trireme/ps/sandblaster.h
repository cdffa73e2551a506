// ps/sandblaster.h -- Sandblaster L-BFGS (Dean et al. 2012): an optimizer that only gives commands to shards.
//
// The coordinator holds no vector. Weights, gradients and the history are shards on servers, by slot number, and it
// asks for dot products, scaling, sums and copies of slots; the two-loop recursion (Nocedal 1980) is written against
// that alone. Gradients of a batch come from replicas, portion by portion (portions.h): each reads the weights from the
// shards and sends its gradient to them, and shards add portions in their order, each once, so the sum has the same
// bits whoever computed what. Dot products are made in twice the working precision (Ogita, Rump, Oishi 2005), so how
// vectors are cut does not matter either.
// Depends on: comm (mailbox), portions.h, segments.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "trireme/comm/mailbox.h"
#include "trireme/ps/portions.h"
#include "trireme/ps/segments.h"

namespace trireme::ps {

/// A sum in twice the working precision.
struct TwoSum {
  double high = 0, low = 0;
  void add(double value);
  void add(const TwoSum& other);
  void add_product(double a, double b);
  double value() const { return high + low; }
};

/// A part of a sum of losses: adds its gradient at the weights, returns its loss.
using PortionLoss = std::function<double(int portion, std::span<const double> weights, std::span<double> gradient)>;

/// Vectors by slot, wherever they are: the commands.
class VectorSpace {
 public:
  virtual ~VectorSpace() = default;
  virtual double dot(int a, int b) = 0;
  virtual void scale(int a, double factor) = 0;
  /// b <- b + factor a
  virtual void axpy(double factor, int a, int b) = 0;
  /// b <- a
  virtual void copy(int a, int b) = 0;
  /// The loss at slot `weights`; its gradient into slot `gradient`.
  virtual double evaluate(int weights, int gradient) = 0;
};

struct LbfgsOptions {
  int history = 10;
  int iterations = 100;
  double tolerance = 1e-8;  ///< of the gradient's norm
};

struct LbfgsReport {
  double loss = 0, gradient_norm = 0;
  int iterations = 0, evaluations = 0;
  bool converged = false;
  std::vector<double> losses;  ///< after each iteration
};

/// Slots that minimize_lbfgs() uses; weights are in the first.
inline constexpr int kWeightSlot = 0;
constexpr int lbfgs_slots(int history) { return 6 + 2 * history; }
/// From the weights in kWeightSlot on.
LbfgsReport minimize_lbfgs(VectorSpace& space, const LbfgsOptions& options);

/// All slots in one process: the reference, and what each shard holds of them.
class LocalVectors final : public VectorSpace {
 public:
  LocalVectors(std::uint64_t keys, int slots, int portions, PortionLoss loss);
  double dot(int a, int b) override { return dot_parts(a, b).value(); }
  void scale(int a, double factor) override;
  void axpy(double factor, int a, int b) override;
  void copy(int a, int b) override;
  double evaluate(int weights, int gradient) override;

  TwoSum dot_parts(int a, int b) const;
  std::vector<double>& slot(int slot) { return slots_.at(static_cast<std::size_t>(slot)); }

 private:
  std::vector<std::vector<double>> slots_;
  int portions_;
  PortionLoss loss_;
};

struct SandblasterOptions {
  int servers = 2, replicas = 2;
  int portions = 0;  ///< 0: kPortionsPerReplica a replica
  bool backup = true;
  LbfgsOptions lbfgs = {};
};

struct SandblasterResult {
  LbfgsReport report;
  std::vector<double> weights;
  std::int64_t backups = 0;
  std::vector<std::int64_t> portions_of;  ///< by replica: that it computed
};

/// Addresses: 0 the coordinator, then servers, then replicas.
constexpr int sandblaster_mailboxes(const SandblasterOptions& options) {
  return 1 + options.servers + options.replicas;
}
/// One mailbox's part; the result is filled in by the coordinator's call. `loss` is called by replicas.
void run_sandblaster(comm::Mailbox& mailbox, const SandblasterOptions& options, std::span<const double> start,
                     const PortionLoss& loss, SandblasterResult& result);

}  // namespace trireme::ps
