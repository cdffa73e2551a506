// plan/asynchronous/async_run.h -- training without barriers as discrete events: who computes, waits, pushes and pulls
// when, and how stale each gradient is.
//
// Every mode is a small simulation of its own over the same machines and draws; what it tells is a stream of gradients,
// each with the time when it is in the weights and the updates that its own weights lacked. LossModel makes time to
// loss of it. Every time is a function of the seed, the worker and its step.
// Depends on: base.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/base/text.h"

namespace trireme::plan {

/// What a gradient is worth: the model by which asynchronous and synchronous training are compared in time to loss.
///
/// A synchronous update of B minibatches makes progress B / (B + N), where N is the critical batch in minibatches (the
/// gradient noise scale, McCandlish et al. 2018): each of them is worth 1 / (B + N). An update of one minibatch whose
/// weights lacked s others is taken to be worth as much as one of the s + 1 in a synchronous batch: 1 / (s + 1 + N). So
/// staleness costs what a larger batch costs, neither less nor more; losses fall as exp(-progress / progress_per_e).
/// This leaves out that staleness can make a rate unstable: lr x staleness is to be kept as it was.
struct LossModel {
  double critical_batch = 64;  ///< N, minibatches
  double first_loss = 10, last_loss = 2;
  double progress_per_e = 40;  ///< until the loss has come within 1/e of its end

  /// Of one minibatch whose weights lacked `staleness` others.
  double worth(double staleness) const { return 1 / (staleness + 1 + critical_batch); }
  double loss(double progress) const {
    return last_loss + (first_loss - last_loss) * std::exp(-progress / progress_per_e);
  }
  /// Infinite below the last loss.
  double progress_until(double loss) const {
    return loss <= last_loss ? INFINITY : -progress_per_e * std::log((loss - last_loss) / (first_loss - last_loss));
  }
};

enum class AsyncMode : std::uint8_t {
  kSynchronous,  ///< all-reduce after every minibatch of all
  kSequential,   ///< parameter server, delay 0
  kBounded,      ///< parameter server, a worker at most `delay` steps ahead of the slowest
  kEventual,     ///< parameter server, nobody waits
  kDownpour,     ///< pushes every `push_every` minibatches, pulls every `pull_every`
  kHetPipe,      ///< virtual workers of `stages` workers, waves of `minibatches`, clock distance `delay`
  kAmpNet,       ///< graphs of `graph_nodes` workers, `keys` instances in flight in each
  kFlexRr,       ///< synchronous, workers of a group of three take slices of the slowest's work
  kProteus,      ///< synchronous, on spot machines of which some are evicted and come back
  kSandblaster,  ///< batches in portions that whoever is free takes, with backup tasks; the optimizer's steps (L-BFGS)
                 ///< are counted as gradients
};
std::span<const Named<AsyncMode>> enum_names(std::type_identity<AsyncMode>);

/// The machines and how they differ.
struct AsyncCluster {
  int workers = 1000;
  double minibatch_seconds = 1;                ///< on a usual worker
  double slow_share = 0, slow_factor = 1;      ///< workers that take so many times as long, always
  double jitter = 0.1;                         ///< standard deviation of a minibatch's logarithmic time
  double hiccup_share = 0, hiccup_factor = 1;  ///< minibatches that take so many times as long, by chance
  double exchange_seconds = 0.1;               ///< of a push and pull, or an all-reduce
  std::uint64_t seed = 0;
};

struct AsyncOptions {
  AsyncMode mode = AsyncMode::kSynchronous;
  int delay = 4;
  int push_every = 1, pull_every = 1;
  int stages = 4, minibatches = 4;
  int graph_nodes = 16;             ///< workers of a graph of AMPNet; graphs share their parameters
  int keys = 0;                     ///< instances in flight in each; 0: as many as nodes
  double evictions_per_hour = 0.1;  ///< of a spot machine
  double away_seconds = 300;        ///< until another takes its place
  int portions = 50;                ///< of a minibatch, for Sandblaster
  LossModel loss;
  double target_loss = 4;
  double most_seconds = 1e7;
};

struct LossPoint {
  double seconds = 0, loss = 0;
};

struct AsyncResult {
  AsyncMode mode = AsyncMode::kSynchronous;
  double seconds = 0;      ///< until the target loss; infinite where most_seconds came first
  double minibatches = 0;  ///< until then
  double throughput = 0;   ///< minibatches a second
  double mean_staleness = 0;
  int max_staleness = 0;  ///< in steps of a worker where the mode has a bound on them; else in gradients
  int bound = -1;         ///< on max_staleness; -1: none
  double waiting = 0;     ///< share of the workers' time
  std::size_t events = 0;
  std::vector<LossPoint> curve;
};

AsyncResult simulate_async(const AsyncCluster& cluster, const AsyncOptions& options);

}  // namespace trireme::plan
