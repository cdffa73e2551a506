#include "trireme/ps/lasso.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/ps/consistency.h"
#include "trireme/ps/node.h"

namespace trireme::ps {
namespace {

constexpr double kKktMargin = 0.1;  // of lambda: a feature so close to its bound still counts as one that may move

/// 1 / (1 + exp(x)), without overflow.
double falling_sigmoid(double x) {
  if (x > 0) {
    const double e = std::exp(-x);
    return e / (1 + e);
  }
  return 1 / (1 + std::exp(x));
}

/// A worker's rows by feature.
struct LassoColumns {
  struct Entry {
    std::uint32_t row;
    double value;
  };
  std::vector<std::size_t> begins;  // of each feature's entries
  std::vector<Entry> entries;
  std::vector<double> labels;

  LassoColumns(const formats::SparseSamples& samples, std::size_t first, std::size_t last)
      : begins(samples.feature_count + 1),
        labels(samples.labels.begin() + static_cast<std::ptrdiff_t>(first),
               samples.labels.begin() + static_cast<std::ptrdiff_t>(last)) {
    for (std::size_t i = samples.rows[first]; i < samples.rows[last]; ++i) ++begins[samples.features[i] + 1];
    for (std::size_t f = 0; f + 1 < begins.size(); ++f) begins[f + 1] += begins[f];
    entries.resize(begins.back());
    std::vector<std::size_t> next(begins.begin(), begins.end() - 1);
    for (std::size_t row = first; row < last; ++row) {
      for (std::size_t i = samples.rows[row]; i < samples.rows[row + 1]; ++i)
        entries[next[samples.features[i]]++] = {static_cast<std::uint32_t>(row - first), samples.values[i]};
    }
  }
  std::span<const Entry> column(std::uint64_t feature) const {
    return std::span(entries).subspan(begins[feature], begins[feature + 1] - begins[feature]);
  }
};

class LassoWorker {
 public:
  LassoWorker(comm::Mailbox& mailbox, const formats::SparseSamples& samples, const LassoOptions& options, int worker)
      : options_(options),
        keys_(samples.feature_count),
        columns_(samples,
                 samples.count() * static_cast<std::size_t>(worker) / static_cast<std::size_t>(options.workers),
                 samples.count() * static_cast<std::size_t>(worker + 1) / static_cast<std::size_t>(options.workers)),
        client_(mailbox, {.address = mailbox.address(), .keys = keys_, .filters = options.filters}),
        delay_(options.tau, static_cast<std::uint64_t>(std::max(1, options.blocks))),  // a block is under way once
        weights_(keys_),
        gradient_(keys_),
        bounds_(keys_),
        margins_(columns_.labels.size()) {
    for (int b = 0; b < options_.blocks; ++b) {
      const auto blocks = static_cast<std::uint64_t>(options_.blocks), block = static_cast<std::uint64_t>(b);
      const Segment keys{keys_ * block / blocks, keys_ * (block + 1) / blocks};
      if (keys.size() == 0) continue;
      blocks_.push_back(keys);
      active_.push_back({keys});
    }
    bound_curvature();
  }

  void run(LassoResult& result) {
    for (result.checks = 1; result.checks <= options_.checks; ++result.checks) {
      for (int pass = 0; result.checks > 1 && pass < options_.passes; ++pass) {
        for (std::size_t block = 0; block < blocks_.size(); ++block) begin_block(block, /*update=*/true);
      }
      finish_all();
      for (std::size_t block = 0; block < blocks_.size(); ++block) begin_block(block, /*update=*/false);
      finish_all();
      result.violation = kkt_violation(weights_, gradient_, options_.lambda);
      if (result.converged = result.violation <= options_.tolerance; result.converged) break;
      for (std::size_t block = 0; block < blocks_.size(); ++block) choose_active(block);
    }
    result.checks = std::min(result.checks, options_.checks);
    result.weights = weights_;
    result.most_stale = delay_.most_stale();
    result.pushed_keys = pushed_keys_;
    result.all_keys = all_keys_;
    result.sent_bytes = client_.worker().counters().sent_bytes;
    result.raw_bytes = client_.worker().counters().raw_bytes;
    client_.leave();
  }

 private:
  struct Open {
    std::size_t block;
    std::vector<Segment> keys;
    Worker::TaskId weights, gradient;
  };

  /// L_j = 1/4 sum_i |x_ij| sum_l |x_il| over the block's l bounds the block's Hessian by a diagonal; blocks that are
  /// under way meanwhile add their part of each row.
  void bound_curvature() {
    std::vector<std::vector<double>> sums(blocks_.size(), std::vector<double>(margins_.size()));
    std::vector<double> all(margins_.size());
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      for (std::uint64_t key = blocks_[block].begin; key < blocks_[block].end; ++key) {
        for (const auto& [row, value] : columns_.column(key)) {
          sums[block][row] += std::abs(value);
          all[row] += std::abs(value);
        }
      }
    }
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      for (std::uint64_t key = blocks_[block].begin; key < blocks_[block].end; ++key) {
        for (const auto& [row, value] : columns_.column(key))
          bounds_[key] += 0.25 * std::abs(value) * (options_.tau == 0 ? sums[block][row] : all[row]);
        if (options_.tau > 0) bounds_[key] *= 2;
      }
    }
  }

  void choose_active(std::size_t block) {
    if (!options_.kkt_filter) return;
    const Segment keys = blocks_[block];
    const auto of = [&](const std::vector<double>& all) { return std::span(all).subspan(keys.begin, keys.size()); };
    active_[block] = kkt_active(keys.begin, of(weights_), of(gradient_), options_.lambda, kKktMargin * options_.lambda);
  }

  void begin_block(std::size_t block, bool update) {
    const std::vector<Segment> keys = update ? active_[block] : std::vector<Segment>{blocks_[block]};
    if (update) {
      all_keys_ += static_cast<std::int64_t>(blocks_[block].size());
      pushed_keys_ += static_cast<std::int64_t>(count_keys(keys));
    }
    if (keys.empty()) return;
    while (!delay_.may_begin()) finish(open_.begin()->first);
    const std::uint64_t clock = delay_.begin();
    std::vector<double> values, bounds;
    for (const Segment& segment : keys) {
      for (std::uint64_t key = segment.begin; key < segment.end; ++key) {
        double sum = 0;
        for (const auto& [row, value] : columns_.column(key)) {
          const double label = columns_.labels[row];
          sum -= label * value * falling_sigmoid(label * margins_[row]);
        }
        values.push_back(sum);
        bounds.push_back(update ? bounds_[key] : 0);
      }
    }
    values.insert(values.end(), bounds.begin(), bounds.end());
    const auto pushed = client_.push({keys, to_bytes(std::span<const double>(values))});
    open_[clock] = {block, keys, client_.pull({keys, 0}, {pushed}), client_.pull({keys, 1}, {pushed})};
  }

  void finish(std::uint64_t clock) {
    const Open open = open_.at(clock);
    open_.erase(clock);
    const std::vector<double> pulled = from_bytes<double>(client_.take(open.weights));
    const std::vector<double> gradients = from_bytes<double>(client_.take(open.gradient));
    std::size_t at = 0;
    for (const Segment& segment : open.keys) {
      for (std::uint64_t key = segment.begin; key < segment.end; ++key, ++at) {
        gradient_[key] = gradients[at];
        if (const double change = pulled[at] - weights_[key]; change != 0) {
          weights_[key] = pulled[at];
          for (const auto& [row, value] : columns_.column(key)) margins_[row] += value * change;
        }
      }
    }
    delay_.done(clock);
  }
  void finish_all() {
    while (!open_.empty()) finish(open_.begin()->first);
    // Sums of many small changes drift: from the weights anew.
    std::ranges::fill(margins_, 0.0);
    for (std::uint64_t key = 0; key < keys_; ++key) {
      if (weights_[key] == 0) continue;
      for (const auto& [row, value] : columns_.column(key)) margins_[row] += value * weights_[key];
    }
  }

  const LassoOptions& options_;
  const std::uint64_t keys_;
  const LassoColumns columns_;
  Client client_;
  BoundedDelay delay_;
  std::vector<Segment> blocks_;
  std::vector<std::vector<Segment>> active_;  // of each block
  std::vector<double> weights_, gradient_, bounds_, margins_;
  std::map<std::uint64_t, Open> open_;
  std::int64_t pushed_keys_ = 0, all_keys_ = 0;
};

}  // namespace

std::int64_t LassoResult::nonzeros() const {
  return static_cast<std::int64_t>(weights.size()) - std::ranges::count(weights, 0.0);
}

double lasso_objective(const formats::SparseSamples& samples, const std::vector<double>& weights, double lambda) {
  double sum = 0;
  for (std::size_t row = 0; row < samples.count(); ++row) {
    double margin = 0;
    for (std::size_t i = samples.rows[row]; i < samples.rows[row + 1]; ++i)
      margin += samples.values[i] * weights[samples.features[i]];
    const double x = -samples.labels[row] * margin;
    sum += x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
  }
  for (const double weight : weights) sum += lambda * std::abs(weight);
  return sum;
}

std::vector<double> lasso_gradient(const formats::SparseSamples& samples, const std::vector<double>& weights) {
  std::vector<double> gradient(samples.feature_count);
  for (std::size_t row = 0; row < samples.count(); ++row) {
    double margin = 0;
    for (std::size_t i = samples.rows[row]; i < samples.rows[row + 1]; ++i)
      margin += samples.values[i] * weights[samples.features[i]];
    const double slope = -samples.labels[row] * falling_sigmoid(samples.labels[row] * margin);
    for (std::size_t i = samples.rows[row]; i < samples.rows[row + 1]; ++i)
      gradient[samples.features[i]] += slope * samples.values[i];
  }
  return gradient;
}

double kkt_violation(const std::vector<double>& weights, const std::vector<double>& gradient, double lambda) {
  double worst = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double off = weights[i] > 0   ? std::abs(gradient[i] + lambda)
                       : weights[i] < 0 ? std::abs(gradient[i] - lambda)
                                        : std::max(0.0, std::abs(gradient[i]) - lambda);
    worst = std::max(worst, off);
  }
  return worst;
}

LassoResult solve_lasso_serially(const formats::SparseSamples& samples, double lambda, double tolerance) {
  const LassoColumns columns(samples, 0, samples.count());
  LassoResult result;
  result.weights.resize(samples.feature_count);
  std::vector<double> margins(samples.count());
  constexpr int kMostPasses = 200'000;
  for (result.checks = 1; result.checks <= kMostPasses; ++result.checks) {
    for (std::uint64_t key = 0; key < samples.feature_count; ++key) {
      double gradient = 0, bound = 0;
      for (const auto& [row, value] : columns.column(key)) {
        const double label = columns.labels[row];
        gradient -= label * value * falling_sigmoid(label * margins[row]);
        bound += 0.25 * value * value;
      }
      if (bound == 0) continue;
      const double next = soft_threshold(result.weights[key] - gradient / bound, lambda / bound);
      const double change = next - result.weights[key];
      if (change == 0) continue;
      result.weights[key] = next;
      for (const auto& [row, value] : columns.column(key)) margins[row] += value * change;
    }
    if (result.checks % 10 != 0) continue;
    result.violation = kkt_violation(result.weights, lasso_gradient(samples, result.weights), lambda);
    if (result.converged = result.violation <= tolerance; result.converged) break;
  }
  result.objective = lasso_objective(samples, result.weights, lambda);
  return result;
}

void check_lasso(const formats::SparseSamples& samples, const LassoOptions& options) {
  if (options.lambda <= 0) throw ConfigError(fmt::format("lambda is {}, and must be above 0", options.lambda), "try 1");
  if (options.servers < 1 || options.workers < 1 || options.blocks < 1)
    throw ConfigError("servers, workers and blocks must be at least 1");
  if (samples.count() < static_cast<std::size_t>(options.workers))
    throw ConfigError(fmt::format("{} samples for {} workers", samples.count(), options.workers),
                      "start fewer workers");
  if (options.copies > options.servers)
    throw ConfigError(fmt::format("{} copies need as many servers, and there are {}", options.copies, options.servers),
                      fmt::format("start {} servers", options.copies));
  if (!options.filters.keeps_all() || options.filters.encoding == Encoding::kFixed16)
    throw ConfigError("filters that round or hold values back would change the solution of the L1 problem",
                      "use key caching, zstd and the KKT filter");
}

void run_lasso(comm::Mailbox& mailbox, const formats::SparseSamples& samples, const LassoOptions& options,
               LassoResult& result) {
  const int me = mailbox.address();
  if (me == 0) {
    ManagerOptions nodes{.address = 0, .copies = options.copies};
    for (int i = 0; i < options.servers; ++i) nodes.servers.push_back(1 + i);
    for (int i = 0; i < options.workers; ++i) nodes.workers.push_back(1 + options.servers + i);
    Manager manager(nodes);
    return manage(mailbox, manager);
  }
  if (me <= options.servers) {
    Server server({.address = me, .keys = samples.feature_count, .aggregate = true},
                  make_proximal_rule(options.lambda));
    serve(mailbox, server, 0);
    return;
  }
  const int number = me - 1 - options.servers;
  LassoResult mine;
  LassoWorker(mailbox, samples, options, number).run(mine);
  if (number != 0) return;
  mine.objective = lasso_objective(samples, mine.weights, options.lambda);
  result = std::move(mine);
}

}  // namespace trireme::ps
