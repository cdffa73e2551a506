#include "trireme/plan/asynchronous/downpour_price.h"

#include <fmt/format.h>

#include "trireme/base/units.h"
#include "trireme/spec/server_updates.h"

namespace trireme::plan {
DownpourPrice price_downpour(const spec::Recipe& recipe, double parameters, const DownpourTask& task) {
  const spec::DownpourConfig& downpour = recipe.downpour;
  const double each = recipe.precision.compute == spec::Precision::kFp64 ? 8 : 4, bytes = each * parameters;
  const double planes = spec::server_planes(recipe.optim);
  const double carried = (downpour.encoding == spec::PushEncoding::kFixed16 ? 2 / each : 1) * (1 - downpour.skip);
  DownpourPrice price;
  price.pull_bytes = bytes / downpour.n_fetch;
  price.push_bytes = bytes * carried / downpour.n_push;
  // Copies that come together are one; at worst each push is passed on by itself.
  const double copied = (downpour.copies - 1) * planes * bytes / downpour.n_push;
  price.server_bytes =
      task.replicas * (price.pull_bytes + price.push_bytes + copied) / static_cast<double>(downpour.servers);
  const double waited = price.pull_bytes + (downpour.tau == 0 ? price.push_bytes : 0);
  if (task.bytes_per_second > 0) {
    price.part_s = waited / task.bytes_per_second;
    price.server_s = price.server_bytes / task.bytes_per_second;
  }
  price.part_s += task.compute_s;
  // Weights and what has accrued are kept in doubles, and one message of each is on its way.
  price.worker_memory = parameters * (2 * sizeof(double) + 2 * each);
  price.server_memory = planes * bytes * downpour.copies / static_cast<double>(downpour.servers);
  return price;
}

std::string to_text(const DownpourPrice& price, const DownpourTask& task) {
  const bool served = price.server_s > price.part_s;
  return fmt::format(
      "a step takes {}, bound by {}: a part {} of computing, a pull of {} and a push of {}; the busiest server carries "
      "{} a step ({}). Beside the model a rank holds {}, a server {}",
      short_seconds(price.step_s()), served ? "servers" : "replicas", short_seconds(task.compute_s),
      short_bytes(price.pull_bytes), short_bytes(price.push_bytes), short_bytes(price.server_bytes),
      short_seconds(price.server_s), short_bytes(price.worker_memory), short_bytes(price.server_memory));
}

SandblasterPrice price_sandblaster(double parameters, std::int64_t portions, int slots, const DownpourTask& task) {
  const double bytes = sizeof(double) * parameters;
  SandblasterPrice price;
  price.read_bytes = bytes;
  price.sent_bytes = bytes * static_cast<double>(portions) / task.replicas;
  price.evaluation_s = task.compute_s;
  if (task.bytes_per_second > 0) price.evaluation_s += (price.read_bytes + price.sent_bytes) / task.bytes_per_second;
  price.shard_memory = slots * bytes / task.replicas;
  return price;
}

std::string to_text(const SandblasterPrice& price, const DownpourTask& task) {
  return fmt::format(
      "an evaluation of the batch takes {}: {} of computing, then a rank reads {} of weights and sends {} of "
      "gradients; "
      "an iteration has one, or several where a step is too long. A rank's shard of the vectors takes {}",
      short_seconds(price.evaluation_s), short_seconds(task.compute_s), short_bytes(price.read_bytes),
      short_bytes(price.sent_bytes), short_bytes(price.shard_memory));
}

}  // namespace trireme::plan
