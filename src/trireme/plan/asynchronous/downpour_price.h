// plan/asynchronous/downpour_price.h -- what Downpour SGD costs beside computing: pushes, pulls, servers' links,
// memory.
//
// A rank computes a part of each step, pulls the weights every n_fetch parts and pushes every n_push. Pushes hide
// behind the next part where some may be on their way (tau above 0), pulls do not. A server's link carries what all
// replicas push to it and pull, and its chain's copies. What is slower, a part or the busiest server, is the pace.
// Depends on: spec.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/spec/recipe.h"

namespace trireme::plan {

struct DownpourTask {
  int replicas = 1;
  double compute_s = 0;         ///< of a part
  double bytes_per_second = 0;  ///< of a rank's link
};

struct DownpourPrice {
  double pull_bytes = 0, push_bytes = 0;  ///< of a rank, a part; before lossless compression
  double server_bytes = 0;                ///< of the busiest server's link, a step
  double part_s = 0, server_s = 0;
  double worker_memory = 0, server_memory = 0;  ///< of a rank, beside the model; of a server
  double step_s() const { return part_s > server_s ? part_s : server_s; }
};

/// For train.mode = "downpour".
DownpourPrice price_downpour(const spec::Recipe& recipe, double parameters, const DownpourTask& task);
/// "a step takes 1.2 s, bound by computing: ...".
std::string to_text(const DownpourPrice& price, const DownpourTask& task);

/// train.mode = "sandblaster": an evaluation of the batch's loss, of which an iteration has one or a few.
struct SandblasterPrice {
  double read_bytes = 0;    ///< of a rank: the weights, once
  double sent_bytes = 0;    ///< of a rank: the gradient of each of its portions
  double evaluation_s = 0;  ///< computing, then what it sends and reads
  double shard_memory = 0;  ///< of a rank: its part of the vectors
};
/// `portions`: of the batch; `task.compute_s`: of a rank's part of it; `slots`: vectors of L-BFGS.
SandblasterPrice price_sandblaster(double parameters, std::int64_t portions, int slots, const DownpourTask& task);
std::string to_text(const SandblasterPrice& price, const DownpourTask& task);

}  // namespace trireme::plan
