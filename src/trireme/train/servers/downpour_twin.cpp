#include "trireme/train/servers/downpour_twin.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/ps/ring.h"

namespace trireme::train {
namespace {

class DownpourTwin {
 public:
  DownpourTwin(Replica& replica, const std::vector<std::vector<JournalEntry>>& journals,
               const DownpourTwinOptions& options)
      : replica_(replica), journals_(journals), filters_(options.filters), first_worker_(1 + options.servers) {
    ps::View view{.epoch = 1, .workers = {}, .copies = options.copies};
    for (int i = 0; i < options.servers; ++i) view.servers.push_back(1 + i);
    for (const ps::PlacedRange& range : ps::place(view, replica.keys()))
      shards_[range.chain.front()].segments.push_back(range.keys);
    for (auto& [server, shard] : shards_) {
      // Version 1 is the first weights, which replica 0 assigned.
      shard.versions = {{}, gather(options.first_weights, shard.segments)};
      shard.first.resize(shard.versions[1].size());
      shard.second.resize(shard.versions[1].size());
      shard.pushes.resize(shard.versions[1].size());
    }
  }

  DownpourTwinResult run() {
    std::vector<Runner> runners(journals_.size());
    for (std::size_t i = 0; i < runners.size() && !filters_.keeps_all(); ++i)
      runners[i].filter.emplace(filters_, first_worker_ + static_cast<int>(i), ps::ValueType::kF64, replica_.keys());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < runners.size(); ++i) {
        Runner& runner = runners[i];
        if (runner.next < journals_[i].size() && can_fetch(journals_[i][runner.next])) {
          compute(journals_[i][runner.next++], runner);
          moved = true;
        }
        for (OpenTwinPush& open : runner.open) moved |= push(open);
        std::erase_if(runner.open, [](const OpenTwinPush& open) { return open.servers.empty(); });
      }
    }
    for (std::size_t i = 0; i < runners.size(); ++i) {
      TRIREME_CHECK(runners[i].next == journals_[i].size() && runners[i].open.empty(),
                    "the journal of replica {} stops at part {} of {}, with {} pushes open", i, runners[i].next,
                    journals_[i].size(), runners[i].open.size());
    }
    result_.weights.resize(replica_.keys());
    for (const auto& [server, shard] : shards_) scatter(shard.versions.back(), shard.segments, result_.weights);
    return std::move(result_);
  }

 private:
  struct Shard {
    std::vector<ps::Segment> segments;
    std::vector<std::vector<double>> versions;
    std::vector<double> first, second;  // moments of the optimizer; Adagrad's sums are the second
    std::vector<int> pushes;
  };
  /// A replica does not wait for its pushes, and servers may have them in different orders beside those of others: one
  /// that a server has not reached must not keep the replica from its next part.
  struct OpenTwinPush {
    double learning_rate = 0;
    std::map<int, std::uint64_t> servers;  // that do not have it yet, and the version that it becomes there
    std::vector<double> gradient;
    std::vector<double> there;  // 1 for keys that travel, 0 for those that filters hold back
  };
  struct Runner {
    std::size_t next = 0;
    std::vector<OpenTwinPush> open;
    std::vector<double> weights, accrued;
    std::optional<ps::ResidualFilter> filter;
    std::uint64_t pushes = 0;
  };
  static std::vector<double> gather(const std::vector<double>& all, const std::vector<ps::Segment>& segments) {
    std::vector<double> part;
    for (const ps::Segment& segment : segments)
      part.insert(part.end(), all.begin() + static_cast<std::ptrdiff_t>(segment.begin),
                  all.begin() + static_cast<std::ptrdiff_t>(segment.end));
    return part;
  }
  static void scatter(const std::vector<double>& part, const std::vector<ps::Segment>& segments,
                      std::vector<double>& all) {
    auto from = part.begin();
    for (const ps::Segment& segment : segments) {
      std::copy_n(from, segment.size(), all.begin() + static_cast<std::ptrdiff_t>(segment.begin));
      from += static_cast<std::ptrdiff_t>(segment.size());
    }
  }
  bool can_fetch(const JournalEntry& entry) const {
    return std::ranges::all_of(
        entry.fetched, [&](const auto& version) { return version.second < shards_.at(version.first).versions.size(); });
  }
  void compute(const JournalEntry& entry, Runner& runner) {
    runner.weights.resize(replica_.keys());
    runner.accrued.resize(replica_.keys());
    for (const auto& [server, version] : entry.fetched)
      scatter(shards_.at(server).versions[version], shards_.at(server).segments, runner.weights);
    replica_.set_weights(runner.weights);
    const Replica::Gradient gradient = replica_.compute(entry.at, entry.part);
    DownpourTwinResult::Step& step = result_.steps[entry.at.step];
    for (const nn::LossTerm& term : gradient.losses) nn::add_term(step.losses, term);
    step.counts.targets += gradient.counts.targets;
    step.counts.samples += gradient.counts.samples;
    step.norms += gradient.norm;
    ++step.parts;
    for (std::size_t i = 0; i < runner.weights.size(); ++i) {
      runner.accrued[i] += gradient.values[i];
      runner.weights[i] -= entry.learning_rate * gradient.values[i];
    }
    if (entry.pushes) runner.open.push_back(take_accrued(runner, entry.learning_rate, entry.pushed, false));
    if (entry.flushes) runner.open.push_back(take_accrued(runner, entry.learning_rate, entry.flushed, true));
  }
  /// What travels of what has accrued.
  OpenTwinPush take_accrued(Runner& runner, double learning_rate, const std::map<int, std::uint64_t>& versions,
                            bool everything) {
    ++runner.pushes;
    OpenTwinPush push{learning_rate, versions, std::vector<double>(replica_.keys()),
                      std::vector<double>(replica_.keys(), 1.0)};
    std::swap(push.gradient, runner.accrued);
    if (!runner.filter) return push;
    const ps::Segment all{0, replica_.keys()};
    const auto values = ps::to_bytes(std::span<const double>(push.gradient));
    const ps::ResidualFilter::Sent sent = everything ? runner.filter->flush(std::span(&all, 1), values)
                                                     : runner.filter->apply(runner.pushes, std::span(&all, 1), values);
    std::ranges::fill(push.gradient, 0.0);
    std::ranges::fill(push.there, 0.0);
    scatter(ps::from_bytes<double>(sent.values), sent.segments, push.gradient);
    for (const ps::Segment& segment : sent.segments)
      std::fill(push.there.begin() + static_cast<std::ptrdiff_t>(segment.begin),
                push.there.begin() + static_cast<std::ptrdiff_t>(segment.end), 1.0);
    return push;
  }
  /// As a message to one server carries it.
  std::vector<double> as_carried(std::vector<double> values) const {
    if (filters_.encoding != ps::Encoding::kFixed16) return values;
    ps::Message message;
    ps::encode_values(message, ps::to_bytes(std::span<const double>(values)), ps::ValueType::kF64, filters_.encoding);
    return ps::from_bytes<double>(ps::decode_values(message, ps::ValueType::kF64));
  }
  /// To every server whose next version it is; whether there was one.
  bool push(OpenTwinPush& open) {
    return std::erase_if(open.servers, [&](const auto& due) {
             const auto& [server, version] = due;
             Shard& shard = shards_.at(server);
             if (shard.versions.size() != version) return false;
             std::vector<double> weights = shard.versions.back();
             const std::vector<double> gradient = as_carried(gather(open.gradient, shard.segments)),
                                       there = gather(open.there, shard.segments);
             const std::vector<KeyGroup> groups = groups_of(shard);
             for (std::size_t i = 0; i < weights.size(); ++i) {
               if (there[i] != 0) update(shard, i, groups[i], gradient[i], open.learning_rate, weights[i]);
             }
             shard.versions.push_back(std::move(weights));
             return true;
           }) > 0;
  }

  /// Of each of its keys.
  std::vector<KeyGroup> groups_of(const Shard& shard) const {
    std::vector<KeyGroup> groups;
    auto group = replica_.groups().begin();
    for (const ps::Segment& segment : shard.segments) {  // in their order
      for (std::uint64_t key = segment.begin; key < segment.end; ++key) {
        if (key < group->keys.begin) group = replica_.groups().begin();
        while (key >= group->keys.end) ++group;
        groups.push_back(*group);
      }
    }
    return groups;
  }
  /// The optimizer's formula on one number.
  void update(Shard& shard, std::size_t i, const KeyGroup& group, double gradient, double rate, double& weight) const {
    const spec::OptimConfig& optim = replica_.state().recipe.optim;
    const double step = rate * group.rate, decay = group.weight_decay, epsilon = spec::epsilon_of(optim);
    double &first = shard.first[i], &second = shard.second[i];
    const int pushes = ++shard.pushes[i];
    switch (optim.kind) {
      case spec::OptimizerKind::kSgd: {
        gradient += decay * weight;
        first = optim.momentum * first + gradient;
        weight -= step * (optim.momentum == 0 ? gradient : optim.nesterov ? gradient + optim.momentum * first : first);
        return;
      }
      case spec::OptimizerKind::kAdagrad:
        gradient += decay * weight;
        second += gradient * gradient;
        weight -= step * gradient / (std::sqrt(second) + epsilon);
        return;
      case spec::OptimizerKind::kAdam:
      case spec::OptimizerKind::kAdamw: {
        const bool decoupled = optim.kind == spec::OptimizerKind::kAdamw;
        if (!decoupled) gradient += decay * weight;
        first = optim.beta1 * first + (1 - optim.beta1) * gradient;
        second = optim.beta2 * second + (1 - optim.beta2) * gradient * gradient;
        const double m = first / (1 - std::pow(optim.beta1, pushes)), v = second / (1 - std::pow(optim.beta2, pushes));
        if (decoupled) weight -= step * decay * weight;
        weight -= step * m / (std::sqrt(v) + epsilon);
        return;
      }
      case spec::OptimizerKind::kLion: {
        const double direction = optim.beta1 * first + (1 - optim.beta1) * gradient;
        first = optim.beta2 * first + (1 - optim.beta2) * gradient;
        weight -= step * decay * weight;
        weight -= step * (direction > 0 ? 1.0 : direction < 0 ? -1.0 : 0.0);
        return;
      }
      default:
        TRIREME_CHECK(false, "servers do not update as optimizer {} does", static_cast<int>(optim.kind));
    }
  }

  Replica& replica_;
  const std::vector<std::vector<JournalEntry>>& journals_;
  const ps::Filters filters_;
  const int first_worker_;  // its address
  std::map<int, Shard> shards_;
  DownpourTwinResult result_;
};

}  // namespace

DownpourTwinResult replay_downpour(Replica& replica, const std::vector<std::vector<JournalEntry>>& journals,
                                   const DownpourTwinOptions& options) {
  return DownpourTwin(replica, journals, options).run();
}

}  // namespace trireme::train
