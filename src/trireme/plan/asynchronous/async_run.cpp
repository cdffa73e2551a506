#include "trireme/plan/asynchronous/async_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <queue>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::plan {
namespace {

constexpr std::array kAsyncModes{
    Named<AsyncMode>{"synchronous", AsyncMode::kSynchronous}, Named<AsyncMode>{"sequential", AsyncMode::kSequential},
    Named<AsyncMode>{"bounded", AsyncMode::kBounded},         Named<AsyncMode>{"eventual", AsyncMode::kEventual},
    Named<AsyncMode>{"downpour", AsyncMode::kDownpour},       Named<AsyncMode>{"hetpipe", AsyncMode::kHetPipe},
    Named<AsyncMode>{"ampnet", AsyncMode::kAmpNet},           Named<AsyncMode>{"flexrr", AsyncMode::kFlexRr},
    Named<AsyncMode>{"proteus", AsyncMode::kProteus},         Named<AsyncMode>{"sandblaster", AsyncMode::kSandblaster},
};

/// How long each worker takes for each of its minibatches.
class MinibatchTimes {
 public:
  explicit MinibatchTimes(const AsyncCluster& cluster) : cluster_(cluster), draws_(cluster.seed, "async/minibatch") {
    const auto slow = static_cast<int>(std::lround(cluster.slow_share * cluster.workers));
    speed_.assign(static_cast<std::size_t>(cluster.workers), 1.0);
    for (int i = 0; i < slow; ++i)  // spread evenly, so that every group and pipeline has its share
      speed_[static_cast<std::size_t>(std::int64_t{i} * cluster.workers / slow)] = cluster.slow_factor;
  }
  double of(int worker, std::int64_t step) const {
    const std::uint64_t index = static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(cluster_.workers) +
                                static_cast<std::uint64_t>(worker);
    double seconds = cluster_.minibatch_seconds * speed_[static_cast<std::size_t>(worker)];
    if (cluster_.jitter > 0) seconds *= std::exp(cluster_.jitter * draws_.normal(index));
    if (cluster_.hiccup_share > 0 && draws_.uniform(index) < cluster_.hiccup_share) seconds *= cluster_.hiccup_factor;
    return seconds;
  }

 private:
  const AsyncCluster& cluster_;
  Random draws_;
  std::vector<double> speed_;
};

/// Adds up what gradients are worth, until the target.
class ProgressAccount {
 public:
  ProgressAccount(const AsyncOptions& options, AsyncResult& result)
      : options_(options), result_(result), target_(options.loss.progress_until(options.target_loss)) {
    result_.curve.push_back({0, options.loss.first_loss});
  }
  /// `count` minibatches that lacked so many others each are in the weights.
  void add(double time, double count, double staleness) {
    if (done()) return;
    progress_ += count * options_.loss.worth(staleness);
    result_.minibatches += count;
    stale_ += count * staleness;
    last_ = time;
    constexpr double kCurvePoints = 200;
    if (progress_ >= next_point_) {
      result_.curve.push_back({time, options_.loss.loss(progress_)});
      next_point_ = progress_ + target_ / kCurvePoints;
    }
    if (progress_ >= target_) reached_ = true;
  }
  bool done() const { return reached_ || last_ > options_.most_seconds; }
  void finish() {
    result_.seconds = reached_ ? last_ : std::numeric_limits<double>::infinity();
    result_.throughput = last_ > 0 ? result_.minibatches / last_ : 0;
    result_.mean_staleness = result_.minibatches > 0 ? stale_ / result_.minibatches : 0;
    result_.curve.push_back({last_, options_.loss.loss(progress_)});
  }

 private:
  const AsyncOptions& options_;
  AsyncResult& result_;
  double target_, progress_ = 0, stale_ = 0, last_ = 0, next_point_ = 0;
  bool reached_ = false;
};

/// FlexRR's helping in a group: whoever is done takes slices of whoever is furthest behind, 2.5 % of what remains first
/// and 5 % after that. When the last of the group is done.
double helped(std::vector<double> seconds_left_alone, std::size_t& events) {
  // By member: work that remains (in its own seconds), how fast it works, and until when it helps.
  struct Member {
    double free_at;  // when it is done with what it has
  };
  std::vector<Member> members;
  for (const double seconds : seconds_left_alone) members.push_back({seconds});
  constexpr double kFirst = 0.025, kNext = 0.05;
  std::vector<double> slice(members.size(), kFirst);
  const double usual = *std::ranges::min_element(seconds_left_alone);
  while (true) {
    ++events;
    const auto [fast, slow] = std::ranges::minmax_element(members, {}, &Member::free_at);
    const auto behind = static_cast<std::size_t>(slow - members.begin()),
               ahead = static_cast<std::size_t>(fast - members.begin());
    const double remains = slow->free_at - fast->free_at;
    // A slice of what the slow one still has to do, done at the helper's own pace.
    const double share = slice[ahead] * remains, own_pace = seconds_left_alone[ahead] / seconds_left_alone[behind];
    if (remains <= 0.02 * usual || share <= 0) return slow->free_at;
    slow->free_at -= share;
    fast->free_at += share * own_pace;
    slice[ahead] = kNext;
  }
}

/// A batch in portions (Dean et al. 2012, 4.2): whoever is free takes the next; when none is left, the portion that is
/// out longest goes to whoever is free, if that one ends it sooner. `seconds`: of a portion, by worker. When all are
/// done.
double portioned(const std::vector<double>& seconds, int each, std::size_t& events) {
  using Free = std::pair<double, std::size_t>;
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  std::vector<double> ends(seconds.size());  // of the portion that a worker has
  std::deque<std::size_t> out;               // workers with a last portion, the oldest first
  for (std::size_t worker = 0; worker < seconds.size(); ++worker) free.push({0, worker});
  for (std::size_t left = seconds.size() * static_cast<std::size_t>(each); left > 0; --left) {
    const auto [time, worker] = free.top();
    free.pop();
    ++events;
    ends[worker] = time + seconds[worker];
    free.push({ends[worker], worker});
  }
  std::vector<std::pair<double, std::size_t>> begun;
  for (std::size_t worker = 0; worker < seconds.size(); ++worker)
    begun.emplace_back(ends[worker] - seconds[worker], worker);
  std::ranges::sort(begun);
  for (const auto& [time, worker] : begun) out.push_back(worker);
  while (!free.empty() && !out.empty()) {
    const auto [time, worker] = free.top();
    free.pop();
    ++events;
    while (!out.empty() && ends[out.front()] <= time) out.pop_front();
    if (out.empty()) break;
    const std::size_t helped_worker = out.front();
    const double done = time + seconds[worker];
    if (helped_worker == worker || done >= ends[helped_worker]) continue;
    out.pop_front();  // two have it now
    ends[helped_worker] = done;
    free.push({done, worker});
  }
  return *std::ranges::max_element(ends);
}

void run_synchronous(const AsyncCluster& cluster, const AsyncOptions& options, AsyncResult& result,
                     ProgressAccount& account) {
  const MinibatchTimes times(cluster);
  const Random evictions(cluster.seed, "async/eviction");
  std::vector<double> away_until(static_cast<std::size_t>(cluster.workers), -1.0);
  double now = 0, busy = 0, all = 0;
  for (std::int64_t step = 0; !account.done(); ++step) {
    std::vector<double> takes;
    for (int worker = 0; worker < cluster.workers; ++worker) {
      if (options.mode == AsyncMode::kProteus && away_until[static_cast<std::size_t>(worker)] > now) continue;
      takes.push_back(times.of(worker, step));
      ++result.events;
    }
    if (takes.empty()) {
      now = *std::ranges::min_element(away_until);
      continue;
    }
    double longest = *std::ranges::max_element(takes);
    for (const double seconds : takes) busy += seconds;
    if (options.mode == AsyncMode::kFlexRr) {
      longest = 0;
      constexpr std::size_t kGroup = 3;
      const std::size_t groups = (takes.size() + kGroup - 1) / kGroup;
      for (std::size_t group = 0; group < groups; ++group) {
        std::vector<double> members;
        // Neighbours in the numbering are not in one group: slow ones often stand side by side.
        for (std::size_t at = group; at < takes.size(); at += groups) members.push_back(takes[at]);
        longest = std::max(longest, helped(std::move(members), result.events));
      }
    }
    if (options.mode == AsyncMode::kSandblaster) {
      std::vector<double> portions = takes;
      for (double& seconds : portions) seconds /= options.portions;
      longest = portioned(portions, options.portions, result.events);
    }
    const double takes_all = longest + cluster.exchange_seconds;
    all += takes_all * static_cast<double>(takes.size());
    now += takes_all;
    account.add(now, static_cast<double>(takes.size()), static_cast<double>(takes.size()) - 1);
    for (int worker = 0; options.mode == AsyncMode::kProteus && worker < cluster.workers; ++worker) {
      double& until = away_until[static_cast<std::size_t>(worker)];
      if (until > now) continue;
      const auto index = static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(cluster.workers) +
                         static_cast<std::uint64_t>(worker);
      if (evictions.uniform(index) < 1 - std::exp(-options.evictions_per_hour * takes_all / 3600))
        until = now + options.away_seconds;
    }
  }
  result.max_staleness = 0;
  result.bound = 0;
  result.waiting = all > 0 ? std::max(0.0, 1 - busy / all) : 0;
}

/// Workers of a parameter server: pull, some minibatches, push, and on, unless the slowest is too far behind.
void run_server(const AsyncCluster& cluster, const AsyncOptions& options, AsyncResult& result,
                ProgressAccount& account) {
  const MinibatchTimes times(cluster);
  const bool downpour = options.mode == AsyncMode::kDownpour;
  const int push_every = downpour ? options.push_every : 1, pull_every = downpour ? options.pull_every : 1;
  const int delay = options.mode == AsyncMode::kSequential ? 0
                    : options.mode == AsyncMode::kBounded  ? options.delay
                                                           : std::numeric_limits<int>::max();
  struct Worker {
    std::int64_t step = 0;  // minibatches done
    double pulled = 0;      // minibatches that were in the weights when it pulled
    double since_push = 0;  // minibatches
    double waits_from = -1;
  };
  std::vector<Worker> workers(static_cast<std::size_t>(cluster.workers));
  using Event = std::pair<double, int>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  std::vector<int> held;                               // that wait for the slowest
  std::vector<std::int64_t> at_step{cluster.workers};  // workers by step
  std::int64_t slowest = 0;
  double applied = 0, waited = 0, now = 0, stale_steps = 0;
  const auto start = [&](int index) {
    Worker& worker = workers[static_cast<std::size_t>(index)];
    if (worker.waits_from >= 0) waited += now - worker.waits_from, worker.waits_from = -1;
    if (worker.step % pull_every == 0) worker.pulled = applied;
    stale_steps = std::max(stale_steps, static_cast<double>(worker.step - slowest));
    events.push({now + times.of(index, worker.step) + cluster.exchange_seconds / push_every, index});
  };
  for (int index = 0; index < cluster.workers; ++index) start(index);
  while (!events.empty() && !account.done()) {
    const auto [time, index] = events.top();
    events.pop();
    ++result.events;
    now = time;
    Worker& worker = workers[static_cast<std::size_t>(index)];
    ++worker.step;
    ++worker.since_push;
    if (worker.step % push_every == 0) {
      const double lacked = std::max(0.0, applied - worker.pulled);
      const double staleness = delay == 0 ? cluster.workers - 1 : lacked;
      account.add(now, worker.since_push, staleness + (downpour ? worker.since_push - 1 : 0));
      applied += worker.since_push;
      worker.since_push = 0;
    }
    if (static_cast<std::size_t>(worker.step) >= at_step.size())
      at_step.resize(static_cast<std::size_t>(worker.step) + 1, 0);
    --at_step[static_cast<std::size_t>(worker.step - 1)];
    ++at_step[static_cast<std::size_t>(worker.step)];
    bool moved = false;
    while (at_step[static_cast<std::size_t>(slowest)] == 0) ++slowest, moved = true;
    if (moved) {
      std::vector<int> still;
      for (const int other : held) {
        if (workers[static_cast<std::size_t>(other)].step - slowest <= delay) {
          start(other);
        } else {
          still.push_back(other);
        }
      }
      held = std::move(still);
    }
    if (worker.step - slowest <= delay) {
      start(index);
    } else {
      worker.waits_from = now;
      held.push_back(index);
    }
  }
  for (const Worker& worker : workers) waited += worker.waits_from >= 0 ? now - worker.waits_from : 0;
  result.max_staleness = static_cast<int>(stale_steps);
  result.bound = delay == std::numeric_limits<int>::max() ? -1 : delay;
  result.waiting = now > 0 ? waited / (now * cluster.workers) : 0;
}

/// Virtual workers: a pipeline gives a minibatch whenever its slowest stage has done one, and pushes once a wave.
void run_hetpipe(const AsyncCluster& cluster, const AsyncOptions& options, AsyncResult& result,
                 ProgressAccount& account) {
  const int stages = std::max(1, options.stages), workers = std::max(1, cluster.workers / stages);
  const int wave = std::max(1, options.minibatches), distance = options.delay;
  const MinibatchTimes times(cluster);
  struct Virtual {
    std::int64_t minibatch = 0;
    double waits_from = -1;
    double lacked = 0;  // by the minibatches of the present wave together
  };
  std::int64_t done = 0;  // minibatches of all
  std::vector<Virtual> all(static_cast<std::size_t>(workers));
  std::vector<int> pushed_by_wave;  // virtual workers that have pushed it
  std::vector<double> complete;     // when all have, by wave
  using Event = std::pair<double, int>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  std::vector<int> held;
  double now = 0, waited = 0, most = 0;
  // The wave whose pull minibatch m needs, or -1 (schedule/waves.h).
  const auto needs = [&](std::int64_t m) { return (m + 1) / wave - 2 - distance; };
  // A stage has its part of a minibatch: the devices of a pipeline share it, so the pace is that of the slowest part.
  const auto pace = [&](int index, std::int64_t m) {
    double longest = 0;
    for (int stage = 0; stage < stages; ++stage)
      longest = std::max(longest, times.of(index * stages + stage, m) / stages);
    // Fewer minibatches in flight than stages leave stages idle.
    return longest * std::max(1.0, static_cast<double>(stages) / wave);
  };
  const auto start = [&](int index) {
    Virtual& one = all[static_cast<std::size_t>(index)];
    if (one.waits_from >= 0) waited += now - one.waits_from, one.waits_from = -1;
    const std::int64_t known = std::max<std::int64_t>(0, needs(one.minibatch) + 1) * wave;
    most = std::max(most, static_cast<double>(one.minibatch - known));
    events.push({now + pace(index, one.minibatch), index});
  };
  const auto may_start = [&](std::int64_t m) {
    const std::int64_t wanted = needs(m);
    return wanted < 0 ||
           (wanted < static_cast<std::int64_t>(complete.size()) && complete[static_cast<std::size_t>(wanted)] <= now);
  };
  for (int index = 0; index < workers; ++index) start(index);
  constexpr int kWake = -1;
  while (!events.empty() && !account.done()) {
    const auto [time, index] = events.top();
    events.pop();
    now = time;
    ++result.events;
    if (index != kWake) {
      Virtual& one = all[static_cast<std::size_t>(index)];
      // Of others all that they have done but the waves that it had; of its own what was in flight.
      const std::int64_t known = std::max<std::int64_t>(0, needs(one.minibatch) + 1) * wave;
      one.lacked += std::max(0.0, static_cast<double>(done - one.minibatch - known * (workers - 1))) +
                    static_cast<double>(std::min<std::int64_t>(wave - 1, one.minibatch));
      ++one.minibatch;
      ++done;
      if (one.minibatch % wave == 0) {
        const auto number = static_cast<std::size_t>(one.minibatch / wave - 1);
        if (pushed_by_wave.size() <= number) pushed_by_wave.resize(number + 1, 0);
        account.add(now + cluster.exchange_seconds, wave, std::exchange(one.lacked, 0.0) / wave);
        if (++pushed_by_wave[number] == workers) {
          complete.resize(std::max(complete.size(), number + 1), std::numeric_limits<double>::infinity());
          complete[number] = now + cluster.exchange_seconds;
          events.push({complete[number], kWake});
        }
      }
      if (may_start(one.minibatch)) {
        start(index);
      } else {
        one.waits_from = now;
        held.push_back(index);
      }
    } else {
      std::vector<int> still;
      for (const int other : held) {
        if (may_start(all[static_cast<std::size_t>(other)].minibatch)) {
          start(other);
        } else {
          still.push_back(other);
        }
      }
      held = std::move(still);
    }
  }
  const int local = wave - 1;
  result.max_staleness = static_cast<int>(most);
  result.bound = (distance + 1) * (local + 1) + local - 1;
  result.waiting = now > 0 ? waited / (now * workers) : 0;
}

/// Graphs of some workers each, one node a worker: instances go forward through all nodes of a graph and back, as in a
/// chain. Backward takes twice as long and goes first. Graphs share their parameters.
void run_ampnet(const AsyncCluster& cluster, const AsyncOptions& options, AsyncResult& result,
                ProgressAccount& account) {
  const int nodes = std::min(cluster.workers, std::max(1, options.graph_nodes)), graphs = cluster.workers / nodes;
  const int keys = options.keys > 0 ? options.keys : nodes;
  const MinibatchTimes times(cluster);
  // A minibatch's work is shared by the nodes: a third forward, two thirds back.
  const auto takes = [&](int worker, std::int64_t turn, bool backward) {
    return times.of(worker, turn) / nodes * (backward ? 2.0 : 1.0) / 3.0;
  };
  struct Item {
    std::int64_t instance;
    bool backward;
    std::int64_t begun;  // instances that had come back when this one came in
  };
  const auto workers = static_cast<std::size_t>(graphs * nodes);
  std::vector<std::deque<Item>> backward(workers), forward(workers);
  std::vector<bool> working(workers, false);
  std::vector<Item> at_work(workers);
  using Event = std::pair<double, int>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  std::int64_t next = 0, back = 0;
  double now = 0, busy = 0;
  int most = 0;
  const double link = cluster.exchange_seconds / nodes;
  const auto start = [&](int worker) {
    const auto at = static_cast<std::size_t>(worker);
    if (working[at] || (backward[at].empty() && forward[at].empty())) return;
    auto& from = backward[at].empty() ? forward[at] : backward[at];
    at_work[at] = from.front();
    from.pop_front();
    working[at] = true;
    const double seconds = takes(worker, at_work[at].instance, at_work[at].backward);
    busy += seconds;
    events.push({now + seconds + link, worker});
  };
  const auto let_in = [&](int graph) {
    forward[static_cast<std::size_t>(graph * nodes)].push_back({next++, false, back});
    start(graph * nodes);
  };
  for (int key = 0; key < keys; ++key) {
    for (int graph = 0; graph < graphs; ++graph) let_in(graph);
  }
  while (!events.empty() && !account.done()) {
    const auto [time, worker] = events.top();
    events.pop();
    now = time;
    ++result.events;
    const auto at = static_cast<std::size_t>(worker);
    const int node = worker % nodes;
    working[at] = false;
    Item item = at_work[at];
    if (!item.backward && node + 1 < nodes) {
      forward[at + 1].push_back(item);
      start(worker + 1);
    } else if (!item.backward) {
      item.backward = true;
      backward[at].push_back(item);
    } else if (node > 0) {
      backward[at - 1].push_back(item);
      start(worker - 1);
    } else {
      const auto lacked = static_cast<int>(back - item.begun);
      most = std::max(most, lacked);
      account.add(now, 1, lacked);
      ++back;
      let_in(worker / nodes);
    }
    start(worker);
  }
  result.max_staleness = most;
  result.bound = -1;
  result.waiting = now > 0 ? std::max(0.0, 1 - busy / (now * static_cast<double>(workers))) : 0;
}

}  // namespace

std::span<const Named<AsyncMode>> enum_names(std::type_identity<AsyncMode>) { return kAsyncModes; }

AsyncResult simulate_async(const AsyncCluster& cluster, const AsyncOptions& options) {
  if (cluster.workers < 1) throw ConfigError("a simulation of no workers", "give at least 1");
  if (options.mode == AsyncMode::kHetPipe && cluster.workers < options.stages)
    throw ConfigError(fmt::format("{} workers are no virtual worker of {} stages", cluster.workers, options.stages),
                      fmt::format("give at least {} workers", options.stages));
  if (options.portions < 1) throw ConfigError("a minibatch without portions", "give at least 1");
  if (options.push_every < 1 || options.pull_every < 1)
    throw ConfigError("a worker that never pushes or pulls", "let both happen after 1 minibatch or more");
  if (!std::isfinite(options.loss.progress_until(options.target_loss)))
    throw ConfigError(
        fmt::format("the loss never falls to {}: its end is {}", options.target_loss, options.loss.last_loss),
        "choose a higher target");
  AsyncResult result{.mode = options.mode};
  ProgressAccount account(options, result);
  switch (options.mode) {
    case AsyncMode::kSynchronous:
    case AsyncMode::kFlexRr:
    case AsyncMode::kProteus:
    case AsyncMode::kSandblaster:
      run_synchronous(cluster, options, result, account);
      break;
    case AsyncMode::kHetPipe:
      run_hetpipe(cluster, options, result, account);
      break;
    case AsyncMode::kAmpNet:
      run_ampnet(cluster, options, result, account);
      break;
    default:
      run_server(cluster, options, result, account);
  }
  account.finish();
  return result;
}

}  // namespace trireme::plan
