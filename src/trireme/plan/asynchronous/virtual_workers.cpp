#include "trireme/plan/asynchronous/virtual_workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "trireme/base/error.h"

namespace trireme::plan {
namespace {

constexpr std::array kPolicies{
    Named<AllocationPolicy>{"node-partition", AllocationPolicy::kNodePartition},
    Named<AllocationPolicy>{"equal-distribution", AllocationPolicy::kEqualDistribution},
    Named<AllocationPolicy>{"hybrid", AllocationPolicy::kHybrid},
};

/// Devices of each kind, fastest kind first.
std::vector<std::vector<int>> by_kind(const std::vector<UnequalDevice>& devices) {
  std::map<std::string, std::vector<int>> kinds;
  for (std::size_t i = 0; i < devices.size(); ++i) kinds[devices[i].kind].push_back(static_cast<int>(i));
  std::vector<std::vector<int>> all;
  for (auto& [kind, members] : kinds) all.push_back(std::move(members));
  std::ranges::stable_sort(all, std::greater<>{}, [&](const std::vector<int>& members) {
    return devices[static_cast<std::size_t>(members.front())].speed;
  });
  return all;
}

/// The cuts for one order of devices: the least slowest stage, by stages and layers taken so far.
std::optional<UnequalCut> cut_in_order(const std::vector<UnequalDevice>& worker, const std::vector<int>& order,
                                       std::span<const UnequalLayer> layers, double bytes_per_second, int in_flight) {
  const std::size_t stages = order.size(), count = layers.size();
  constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Best {
    double slowest = kNever;
    std::size_t begin = 0;
  };
  std::vector<std::vector<Best>> best(stages + 1, std::vector<Best>(count + 1));
  best[0][0].slowest = 0;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const UnequalDevice& device = worker[static_cast<std::size_t>(order[stage])];
    const int held = std::max(1, in_flight - static_cast<int>(stage));
    for (std::size_t begin = stage; begin < count; ++begin) {
      if (best[stage][begin].slowest == kNever) continue;
      double cost = 0, bytes = 0;
      for (std::size_t end = begin + 1; end <= count; ++end) {
        const UnequalLayer& layer = layers[end - 1];
        cost += layer.cost;
        bytes += layer.weight_bytes * (1 + held) + layer.output_bytes * held;
        if (device.memory > 0 && bytes > device.memory) break;
        const double received = begin > 0 ? layers[begin - 1].output_bytes / bytes_per_second : 0;
        const double slowest = std::max(best[stage][begin].slowest, cost / device.speed + received);
        if (slowest < best[stage + 1][end].slowest) best[stage + 1][end] = {slowest, begin};
      }
    }
  }
  if (best[stages][count].slowest == kNever) return std::nullopt;
  UnequalCut cut{.order = order, .begins = std::vector<int>(stages), .slowest = best[stages][count].slowest};
  for (std::size_t stage = stages, end = count; stage-- > 0;) {
    end = best[stage + 1][end].begin;
    cut.begins[stage] = static_cast<int>(end);
  }
  return cut;
}

}  // namespace

std::span<const Named<AllocationPolicy>> enum_names(std::type_identity<AllocationPolicy>) { return kPolicies; }

std::vector<std::vector<int>> allocate(AllocationPolicy policy, const std::vector<UnequalDevice>& devices, int stages) {
  const auto each = static_cast<std::size_t>(std::max(1, stages));
  if (devices.empty() || devices.size() % each != 0)
    throw ConfigError(fmt::format("{} devices are no virtual workers of {} each", devices.size(), each),
                      "choose a number of stages that divides the devices");
  const std::vector<std::vector<int>> kinds = by_kind(devices);
  const std::size_t workers = devices.size() / each;
  std::vector<std::vector<int>> allocated(workers);
  if (policy == AllocationPolicy::kNodePartition) {
    std::size_t worker = 0;
    for (const std::vector<int>& kind : kinds) {
      if (kind.size() % each != 0)
        throw ConfigError(fmt::format("{} devices of kind {} are no virtual workers of {} each", kind.size(),
                                      devices[static_cast<std::size_t>(kind.front())].kind, each),
                          "take equal-distribution or hybrid");
      for (std::size_t i = 0; i < kind.size(); ++i) allocated[worker + i / each].push_back(kind[i]);
      worker += kind.size() / each;
    }
    return allocated;
  }
  if (policy == AllocationPolicy::kEqualDistribution) {
    // Kind after kind dealt out in turn: every virtual worker gets as many of each, where they go round.
    std::size_t next = 0;
    for (const std::vector<int>& kind : kinds) {
      if (kind.size() % workers != 0)
        throw ConfigError(fmt::format("{} devices of kind {} do not go round {} virtual workers", kind.size(),
                                      devices[static_cast<std::size_t>(kind.front())].kind, workers),
                          "take hybrid");
      for (const int device : kind) allocated[next++ % workers].push_back(device);
    }
    return allocated;
  }
  // Hybrid: each device, fastest first, to the slowest virtual worker that has room.
  std::vector<double> speeds(workers, 0.0);
  for (const std::vector<int>& kind : kinds) {
    for (const int device : kind) {
      std::size_t slowest = workers;
      for (std::size_t worker = 0; worker < workers; ++worker) {
        if (allocated[worker].size() == each) continue;
        if (slowest == workers || speeds[worker] < speeds[slowest]) slowest = worker;
      }
      allocated[slowest].push_back(device);
      speeds[slowest] += devices[static_cast<std::size_t>(device)].speed;
    }
  }
  return allocated;
}

std::optional<UnequalCut> cut_for(const std::vector<UnequalDevice>& worker, std::span<const UnequalLayer> layers,
                                  double bytes_per_second, int in_flight) {
  if (worker.empty() || worker.size() > layers.size())
    throw ConfigError(fmt::format("{} layers cannot be cut for {} devices", layers.size(), worker.size()),
                      "give every device at least one layer");
  constexpr std::size_t kMostOrders = 8;  // of devices whose orders are all tried
  std::vector<int> order(worker.size());
  std::iota(order.begin(), order.end(), 0);
  if (worker.size() > kMostOrders) return cut_in_order(worker, order, layers, bytes_per_second, in_flight);
  // Devices that are alike need no second order.
  const auto like = [&](int a, int b) {
    const UnequalDevice &left = worker[static_cast<std::size_t>(a)], &right = worker[static_cast<std::size_t>(b)];
    return std::tie(left.speed, left.memory) < std::tie(right.speed, right.memory);
  };
  std::ranges::stable_sort(order, like);
  std::optional<UnequalCut> best;
  do {
    const auto cut = cut_in_order(worker, order, layers, bytes_per_second, in_flight);
    if (cut && (!best || cut->slowest < best->slowest)) best = cut;
  } while (std::next_permutation(order.begin(), order.end(), like));
  return best;
}

std::string to_split(const UnequalCut& cut, int blocks) {
  std::string text;
  for (std::size_t stage = 1; stage < cut.begins.size(); ++stage) {
    const int begin = cut.begins[stage];
    text += fmt::format("{}{}", stage > 1 ? "," : "", begin < blocks ? fmt::format("layers.{}", begin) : "norm");
  }
  return text;
}

int most_in_flight(const std::vector<UnequalDevice>& worker, std::span<const UnequalLayer> layers,
                   double bytes_per_second, int most) {
  for (int in_flight = most; in_flight > 0; --in_flight) {
    if (cut_for(worker, layers, bytes_per_second, in_flight)) return in_flight;
  }
  return 0;
}

}  // namespace trireme::plan
