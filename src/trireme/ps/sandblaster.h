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
#include <deque>
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

/// Slots that L-BFGS uses; weights are in the first, the pairs of the last steps begin at kPairSlot.
inline constexpr int kWeightSlot = 0, kPairSlot = 5;
constexpr int lbfgs_slots(int history) { return kPairSlot + 2 * history; }
/// Of them, those that say nothing when an iteration has ended.
constexpr bool is_scratch_slot(int slot) { return slot > 1 && slot < kPairSlot; }

/// The two-loop recursion from the weights in kWeightSlot on, one iteration at a time. What it knows beside the slots
/// is a value, so that it can go on elsewhere.
class Lbfgs {
 public:
  struct Pair {
    int s = 0, y = 0;  ///< slots
    double rho = 0;
    bool operator==(const Pair&) const = default;
  };
  struct Progress {
    bool begun = false;           ///< the gradient of the weights is in its slot
    std::deque<Pair> pairs = {};  ///< oldest first
    int used = 0;                 ///< pairs so far
    double loss = 0, gradient_norm = 0;
    int evaluations = 0;
    bool operator==(const Progress&) const = default;
  };

  explicit Lbfgs(const LbfgsOptions& options) : options_(options) {}
  /// Evaluates the loss where the weights are, and forgets pairs of another one.
  void begin(VectorSpace& space);
  /// False, and nothing has changed: no step lowers the loss any more, or the gradient is as small as is asked for.
  bool iterate(VectorSpace& space);
  Progress progress = {};

 private:
  const LbfgsOptions options_;
};

LbfgsReport minimize_lbfgs(VectorSpace& space, const LbfgsOptions& options);

/// Slots in one process: the reference, and what each shard holds of them.
class LocalVectors final : public VectorSpace {
 public:
  LocalVectors(std::uint64_t keys, int slots, int portions, PortionLoss loss);
  /// In memory of somebody else's.
  explicit LocalVectors(std::vector<std::span<double>> slots) : slots_(std::move(slots)) {}
  double dot(int a, int b) override { return dot_parts(a, b).value(); }
  void scale(int a, double factor) override;
  void axpy(double factor, int a, int b) override;
  void copy(int a, int b) override;
  double evaluate(int weights, int gradient) override;

  TwoSum dot_parts(int a, int b) const;
  std::span<double> slot(int slot) { return slots_.at(static_cast<std::size_t>(slot)); }

 private:
  std::vector<std::vector<double>> own_;
  std::vector<std::span<double>> slots_;
  int portions_ = 0;
  PortionLoss loss_;
};

/// Which keys each server has, ascending.
using Shards = std::vector<std::vector<Segment>>;
/// The ring's ranges.
Shards ring_shards(std::uint64_t keys, int servers);
/// Neighbouring stretches of equal length.
Shards even_shards(std::uint64_t keys, int servers);

struct SandblasterOptions {
  int servers = 2, replicas = 2;
  int portions = 0;  ///< 0: kPortionsPerReplica a replica
  bool backup = true;
  LbfgsOptions lbfgs = {};
};

// Addresses: 0 the coordinator, then servers, then replicas. Each loop ends when the coordinator says so.
void run_shard(comm::Mailbox& mailbox, LocalVectors& shard);
/// `keys` of the whole vector.
void run_replica(comm::Mailbox& mailbox, const Shards& shards, std::uint64_t keys, const PortionLoss& loss);

/// What the shards have in a slot, read by a replica that is in no loop.
void read_slot(comm::Mailbox& mailbox, const Shards& shards, int slot, std::span<double> values);

/// The slots of all shards, by commands; gradients by portions.
class SandblasterCoordinator final : public VectorSpace {
 public:
  /// `mailbox` is borrowed.
  SandblasterCoordinator(comm::Mailbox& mailbox, Shards shards, int replicas, int portions, bool backup);
  double dot(int a, int b) override;
  void scale(int a, double factor) override;
  void axpy(double factor, int a, int b) override;
  void copy(int a, int b) override;
  double evaluate(int weights, int gradient) override;

  void write(int slot, std::span<const double> values);
  void read(int slot, std::span<double> values);
  /// Ends the replicas' loops, when each has done what it is at; and those of shards.
  void release_replicas();
  void release_shards();
  std::int64_t backups() const { return backups_; }
  const std::vector<std::int64_t>& portions_of() const { return portions_of_; }  ///< by replica: that counted

 private:
  struct Answer;
  int servers() const { return static_cast<int>(shards_.size()); }
  std::vector<Answer> command(std::span<const std::byte> command);
  std::vector<Answer> answers();

  comm::Mailbox& mailbox_;
  const Shards shards_;
  const int replicas_, portions_;
  const bool backup_;
  std::vector<std::int64_t> portions_of_;
  std::int64_t backups_ = 0;
  std::map<int, bool> busy_;
  std::uint64_t step_ = 0;
};

struct SandblasterResult {
  LbfgsReport report;
  std::vector<double> weights;
  std::int64_t backups = 0;
  std::vector<std::int64_t> portions_of;  ///< by replica: that it computed
};

constexpr int sandblaster_mailboxes(const SandblasterOptions& options) {
  return 1 + options.servers + options.replicas;
}
/// One mailbox's part; the result is filled in by the coordinator's call. `loss` is called by replicas.
void run_sandblaster(comm::Mailbox& mailbox, const SandblasterOptions& options, std::span<const double> start,
                     const PortionLoss& loss, SandblasterResult& result);

}  // namespace trireme::ps
