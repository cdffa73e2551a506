// train/servers/downpour.h -- Downpour SGD (Dean et al. 2012): replicas of a recipe's model around parameter servers.
//
// A replica repeats: fetch the weights (every n_fetch steps), compute the gradient of its part of a batch, take a local
// step, push what has accrued (every n_push steps). Servers apply pushes as they come, with Adagrad or SGD. Nobody
// waits for anybody. A part is one rank's rows of a synchronous step with as many ranks; parts are taken one after the
// other by whoever is free, so a fast replica takes more of them, and the data of a run is the same whoever does.
// Dropout follows from sample numbers and learning rates from the part's step: neither knows the time.
//
// The journal says which version of each server's weights a replica fetched and which one its push became. Replaying it
// on one thread, step by step in any order that has what it needs, is the serial twin: weights must be equal.
// Depends on: comm, data, ps, spec, train/engine.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/mailbox_threads.h"
#include "trireme/comm/mailbox_timed.h"
#include "trireme/ps/filters.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

struct DownpourOptions {
  int replicas = 2, servers = 1, copies = 1;
  int n_fetch = 1, n_push = 1;
  std::uint64_t tau = 0;  ///< pushes of a replica that may be on their way; ps::kEventual: as many as there is room for
  std::int64_t warm_start = 0;  ///< steps that one replica takes alone, before the others begin
  bool synchronous = false;     ///< pushes of a step are summed over replicas: data parallelism, for comparison
  std::optional<std::uint64_t>
      seed;                      ///< messages in an order drawn from this, one thread at a time; unset: as they come
  std::map<int, double> slowed;  ///< replica -> how many times its computation takes
  bool verify = false;           ///< replay the journal on one thread and compare
  comm::ThreadMail links = {};   ///< without a seed
  /// In virtual time: what a run takes follows from this alone, and is the same on every machine.
  struct Timed {
    comm::TimedMail links = {};
    std::vector<double> row_s = {};  ///< by replica: the time that a row of its parts takes
  };
  std::optional<Timed> timed = {};
  ps::Filters filters = {};  ///< of pushes
};

struct DownpourReport {
  struct Point {
    std::int64_t step = 0;
    double loss = 0, seconds = 0;  ///< mean of the step's parts; when the last of them was pushed
  };
  /// A part as it was computed, with the weights that its replica had then.
  struct Part {
    std::int64_t step = 0;
    double loss = 0, rows = 0, seconds = 0;  ///< since the beginning
  };
  std::vector<Point> points;                ///< by step
  std::vector<Part> parts;                  ///< of all replicas, in the order in which they ended
  std::vector<std::int64_t> parts_of;       ///< by replica
  double seconds = 0;                       ///< of training
  double staleness = 0;                     ///< mean: pushes of all that came between a fetch and its push
  std::uint64_t most_stale = 0;             ///< own pushes on their way when a step began
  double final_loss = 0;                    ///< on held-out samples where the recipe has some, else of the first batch
  double queue_length = 0, queue_wait = 0;  ///< of replica 0's tasks: L and W of Little's law
  std::int64_t sent_bytes = 0, raw_bytes = 0;  ///< by replica 0; without filters
  std::optional<double> twin_difference;       ///< relative, of all weights
};

/// ConfigError where the recipe asks for what servers cannot do.
void check_downpour(const spec::Recipe& recipe, const DownpourOptions& options);
/// In this process; replicas are threads. `trireme train` runs the same replicas as ranks: downpour_driver.cpp.
DownpourReport run_downpour(const spec::Recipe& recipe, const DownpourOptions& options);

}  // namespace trireme::train
