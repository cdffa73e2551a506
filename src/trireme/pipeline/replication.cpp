#include "trireme/pipeline/replication.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::pipeline {

double stage_seconds(std::span<const EntryProfile> entries, int workers, double bytes_per_second) {
  double compute = 0, weights = 0;
  for (const EntryProfile& entry : entries) {
    compute += entry.seconds;
    weights += entry.weight_bytes;
  }
  return std::max(compute, 2.0 * (workers - 1) * weights / bytes_per_second) / workers;
}

ReplicationPlan plan_replication(std::span<const EntryProfile> entries, int workers, double bytes_per_second) {
  if (entries.empty() || workers < 1 || !(bytes_per_second > 0)) {
    throw ConfigError(fmt::format("{} entries cannot be planned for {} workers with links of {} bytes a second",
                                  entries.size(), workers, bytes_per_second));
  }
  // best[j][m]: the first j entries on m workers.
  struct Best {
    double seconds = std::numeric_limits<double>::infinity();
    int stages = 0;
    std::size_t begin = 0;  // of the last stage
    int workers = 0;        // of the last stage
  };
  const auto columns = static_cast<std::size_t>(workers) + 1;
  std::vector<std::vector<Best>> best(entries.size() + 1, std::vector<Best>(columns));
  best[0][0].seconds = 0;
  for (std::size_t j = 1; j <= entries.size(); ++j) {
    for (int m = 1; m <= workers; ++m) {
      Best& here = best[j][static_cast<std::size_t>(m)];
      for (std::size_t i = 0; i < j; ++i) {
        for (int last = 1; last <= m; ++last) {
          const Best& before = best[i][static_cast<std::size_t>(m - last)];
          // Activations go forward and their gradients back over the link between the stages.
          const double link = i == 0 ? 0 : 2 * entries[i - 1].activation_bytes / bytes_per_second;
          const double seconds =
              std::max({before.seconds, link, stage_seconds(entries.subspan(i, j - i), last, bytes_per_second)});
          if (seconds < here.seconds || (seconds == here.seconds && before.stages + 1 < here.stages)) {
            here = {seconds, before.stages + 1, i, last};
          }
        }
      }
    }
  }
  ReplicationPlan plan{.stages = {}, .seconds = best[entries.size()][static_cast<std::size_t>(workers)].seconds};
  std::size_t end = entries.size();
  for (int left = workers; end > 0;) {
    const Best& here = best[end][static_cast<std::size_t>(left)];
    plan.stages.push_back({{here.begin, end}, here.workers});
    end = here.begin;
    left -= here.workers;
  }
  std::ranges::reverse(plan.stages);
  return plan;
}

}  // namespace trireme::pipeline
