#include "trireme/comm/measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "trireme/comm/arithmetic/arithmetic.h"

namespace trireme::comm {
namespace {

constexpr int kBatches = 5;
constexpr int kMostCalls = 2000;

/// Buffers of one row, and the call on them.
class Bench {
 public:
  Bench(Group& group, Collective op, std::size_t bytes, const MeasureOptions& options)
      : group_(group), op_(op), options_(options), element_(size_of(options.type)) {
    const auto p = static_cast<std::size_t>(group.size());
    const bool cut = op == Collective::kReduceScatter || op == Collective::kAllGather || op == Collective::kAllToAll ||
                     op == Collective::kGather || op == Collective::kScatter;
    count_ = cut ? std::max<std::size_t>(1, bytes / element_ / p) * p : bytes / element_;
    block_ = cut ? count_ / p : count_;
    if (op == Collective::kBarrier) count_ = block_ = 0;
    // Zero bits are zero in every type: sums stay finite however often they are made.
    in_.assign(count_ * element_ + 64, std::byte{0});
    out_.assign(count_ * element_ + 64, std::byte{0});
  }
  std::size_t bytes() const { return count_ * element_; }

  void call(const CallOptions& call) {
    const auto in = [&](std::size_t n) { return ConstBuffer{in_.data(), n, options_.type}; };
    const auto out = [&](std::size_t n) {
      return Buffer{options_.in_place && op_ == Collective::kAllReduce ? in_.data() : out_.data(), n, options_.type};
    };
    switch (op_) {
      case Collective::kAllReduce:
        return group_.all_reduce(in(count_), out(count_), options_.reduce, call).wait();
      case Collective::kReduceScatter:
        return group_.reduce_scatter(in(count_), out(block_), options_.reduce, call).wait();
      case Collective::kAllGather:
        return group_.all_gather(in(block_), out(count_), call).wait();
      case Collective::kAllToAll:
        return group_.all_to_all(in(count_), out(count_), call).wait();
      case Collective::kBroadcast:
        return group_.broadcast(out(count_), 0, call).wait();
      case Collective::kReduce:
        return group_.reduce(in(count_), out(count_), options_.reduce, 0, call).wait();
      case Collective::kGather:
        return group_.gather(in(block_), out(count_), 0, call).wait();
      case Collective::kScatter:
        return group_.scatter(in(count_), out(block_), 0, call).wait();
      case Collective::kBarrier:
        return group_.barrier(call).wait();
    }
  }

 private:
  Group& group_;
  Collective op_;
  const MeasureOptions& options_;
  std::size_t element_, count_ = 0, block_ = 0;
  std::vector<std::byte> in_, out_;
};

/// Seconds a call on the slowest rank.
double time_batch(Group& group, int calls, const std::function<void()>& once) {
  group.barrier().wait();
  const std::int64_t start = now_ns();
  for (int i = 0; i < calls; ++i) once();
  double seconds = static_cast<double>(now_ns() - start) / 1e9 / calls;
  group.all_reduce(Buffer{&seconds, 1, DType::kF64}, Reduce::kMax).wait();
  return seconds;
}

}  // namespace

std::vector<Measurement> measure(Rank& rank, const MeasureOptions& options, const OnRow& on_row) {
  Group& group = rank.world();
  const auto& costs = rank.options().costs.of(rank.transport().name());
  const std::vector<int> nodes = rank.transport().node_of();
  const cost::Topology topology{.ranks = group.size(), .nodes = 1 + *std::max_element(nodes.begin(), nodes.end())};
  struct Row {
    Collective op;
    std::size_t bytes;
    Algorithm algorithm;
  };
  std::vector<Row> plan;
  for (const Collective op : options.ops) {
    std::vector<Algorithm> offered = group.algorithms(op);
    offered.push_back(Algorithm::kAuto);
    const std::vector<std::size_t> sizes = op == Collective::kBarrier ? std::vector<std::size_t>{0} : options.bytes;
    for (const std::size_t bytes : sizes) {
      for (const Algorithm algorithm : options.algorithms) {
        if (std::find(offered.begin(), offered.end(), algorithm) != offered.end())
          plan.push_back({op, bytes, algorithm});
      }
    }
  }
  std::vector<Measurement> rows;
  for (const auto& [op, bytes, algorithm] : plan) {
    Bench bench(group, op, bytes, options);
    const Algorithm chosen = group.choose(op, bench.bytes());
    const Algorithm priced = algorithm == Algorithm::kAuto ? chosen : algorithm;
    const auto once = [&] { bench.call({.algorithm = priced}); };
    // The first call builds routines, maps pages and wakes threads: it counts for nothing.
    once();
    const double estimate = time_batch(group, 2, once);
    const int calls =
        std::clamp(static_cast<int>(options.budget_s / kBatches / std::max(estimate, 1e-7)), 1, kMostCalls);
    std::vector<double> seconds;
    for (int i = 0; i < kBatches; ++i) seconds.push_back(time_batch(group, calls, once));
    std::sort(seconds.begin(), seconds.end());
    rows.push_back({.op = op,
                    .algorithm = algorithm,
                    .chosen = priced == chosen,
                    .bytes = bench.bytes(),
                    .seconds = seconds[kBatches / 2],
                    .fastest_seconds = seconds[0],
                    .predicted_seconds = costs.predict(op, priced, topology, static_cast<double>(bench.bytes())),
                    .calls = calls * kBatches});
    if (on_row) on_row(rows.back(), rows.size(), plan.size());
  }
  return rows;
}

cost::LinkCost measure_link(Rank& rank) {
  Group& group = rank.world();
  cost::LinkCost link;
  // A message there and back is two; short ones give alpha, long ones beta.
  const auto message_seconds = [&](std::size_t bytes, int times) {
    std::vector<std::byte> data(bytes + 1);
    const auto once = [&] {
      if (group.rank() > 1) return;
      const bool first = group.rank() == 0;
      const Buffer buffer{data.data(), bytes, DType::kU8};
      if (first) group.send(buffer, 1).wait();
      group.recv(buffer, first ? 1 : 0).wait();
      if (!first) group.send(buffer, 0).wait();
    };
    once();
    std::vector<double> seconds;
    for (int i = 0; i < kBatches; ++i) seconds.push_back(time_batch(group, times, once) / 2);
    std::sort(seconds.begin(), seconds.end());
    return seconds[kBatches / 2];
  };
  if (group.size() > 1) {
    constexpr std::size_t kLong = 8 << 20;
    link.alpha = message_seconds(64, 300);
    link.beta = std::max(0.0, message_seconds(kLong, 3) - link.alpha) / static_cast<double>(kLong);
  }
  constexpr std::size_t kCombined = 8 << 20;
  std::vector<float> a(kCombined / 4, 1.0f), b(kCombined / 4, 2.0f);
  const auto combine = [&] { arithmetic(DType::kF32, Reduce::kSum).combine(a.data(), a.data(), b.data(), a.size()); };
  combine();
  link.gamma = time_batch(group, 5, combine) / static_cast<double>(kCombined);
  return link;
}

void fit(cost::TransportCost& costs, const cost::Topology& topology, const std::vector<Measurement>& rows) {
  struct Sums {
    double aa = 0, ab = 0, bb = 0, at = 0, bt = 0;
  };
  std::map<std::pair<Algorithm, Collective>, Sums> sums;
  for (const Measurement& row : rows) {
    if (row.algorithm == Algorithm::kAuto || topology.ranks < 2) continue;
    // The model is linear in alpha and beta: three evaluations give its coefficients for this row.
    const std::pair key{row.algorithm, row.op};
    const auto bytes = static_cast<double>(row.bytes);
    cost::TransportCost probe = costs;
    const auto at = [&](double alpha, double beta) {
      probe.measured[key] = {.alpha = alpha, .beta = beta};
      return probe.predict(row.op, row.algorithm, topology, bytes);
    };
    const double fixed = at(0, 0), a = at(1, 0) - fixed, b = at(0, 1) - fixed, t = row.seconds - fixed;
    if (!std::isfinite(a) || !std::isfinite(b)) continue;
    // Weighted by 1/seconds^2: a microsecond missed at 1 KB is as bad as a millisecond at 1 MB.
    const double weight = 1 / (row.seconds * row.seconds);
    Sums& s = sums[key];
    s.aa += weight * a * a;
    s.ab += weight * a * b;
    s.bb += weight * b * b;
    s.at += weight * a * t;
    s.bt += weight * b * t;
  }
  for (const auto& [key, s] : sums) {
    const double determinant = s.aa * s.bb - s.ab * s.ab;
    double alpha = s.aa > 0 ? s.at / s.aa : 0, beta = 0;
    if (determinant > 1e-9 * s.aa * s.bb) {
      alpha = (s.at * s.bb - s.bt * s.ab) / determinant;
      beta = (s.bt * s.aa - s.at * s.ab) / determinant;
      // Neither can be negative: on the edge, the other takes it all.
      if (alpha < 0) {
        alpha = 0;
        beta = s.bt / s.bb;
      } else if (beta < 0) {
        beta = 0;
        alpha = s.at / s.aa;
      }
    }
    costs.measured[key] = {.alpha = std::max(0.0, alpha), .beta = std::max(0.0, beta)};
  }
}

}  // namespace trireme::comm
