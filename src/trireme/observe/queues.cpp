#include "trireme/observe/queues.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/units.h"

namespace trireme::observe {

std::vector<NamedQueue> queues_of(std::span<const StepRecord> steps) {
  std::vector<NamedQueue> all;
  for (const StepRecord& step : steps) {
    for (const NamedQueue& queue : step.queues) {
      auto found = std::ranges::find(all, queue.name, &NamedQueue::name);
      if (found == all.end()) found = all.insert(all.end(), {.name = queue.name, .reading = {}});
      found->reading += queue.reading;
    }
  }
  return all;
}

std::optional<NamedQueue> bounding_queue(std::span<const NamedQueue> queues) {
  constexpr double kNothing = 0.01;
  const auto most =
      std::ranges::max_element(queues, {}, [](const NamedQueue& queue) { return queue.reading.blocked_share(); });
  if (most == queues.end() || most->reading.blocked_share() < kNothing) return std::nullopt;
  if (most->name == "works") {
    const auto receives = std::ranges::find(queues, "receives", &NamedQueue::name);
    if (receives != queues.end() && 2 * receives->reading.blocked >= most->reading.blocked) return *receives;
  }
  return *most;
}

std::string to_text(const NamedQueue& queue) {
  const QueueReading& reading = queue.reading;
  return fmt::format("{}: L {:.2f}, lambda {:.3g} /s, W {}, blocked {:.1f} % of the time", queue.name, reading.length(),
                     reading.rate(), short_seconds(reading.wait()), 100 * reading.blocked_share());
}

}  // namespace trireme::observe
