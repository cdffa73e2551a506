#include "trireme/train/servers/downpour.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"
#include "trireme/comm/rank.h"
#include "trireme/data/open_samples.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/ps/consistency.h"
#include "trireme/ps/node.h"
#include "trireme/train/engine/trainer.h"
#include "trireme/train/servers/replica.h"

namespace trireme::train {
namespace {

using DownpourClock = std::chrono::steady_clock;
constexpr std::uint32_t kGoTag = 0x646f;

/// What a replica did with one part.
struct JournalEntry {
  std::int64_t step = 0;
  int part = 0;
  std::map<int, std::uint64_t> fetched;  // by server; empty: it went on with its own weights
  std::map<int, std::uint64_t> pushed;   // by server: the version that the push became; empty: it went on accruing
  double learning_rate = 0, loss = 0, seconds = 0;
  std::uint64_t stale = 0;
};

struct DownpourJob {
  const spec::Recipe& recipe;
  const DownpourOptions& options;
  const spec::ModelShape shape;
  const data::Samples& samples;
  const std::int64_t steps;
  const ps::ValueType type;
  const std::uint64_t keys;
  std::atomic<std::int64_t> next_ticket{0};
  std::atomic<int> running{0};  // replicas
  DownpourClock::time_point begin = {};
  std::mutex mutex;
  std::vector<std::vector<JournalEntry>> journals;  // by replica
  std::vector<double> first_weights, last_weights;
  DownpourReport report;

  int first_worker() const { return 1 + options.servers; }
  std::int64_t tickets() const { return steps * options.replicas; }
};

std::unique_ptr<ps::UpdateRule> server_rule(const spec::OptimConfig& optim) {
  if (optim.kind == spec::OptimizerKind::kAdagrad) return ps::make_adagrad_rule(spec::epsilon_of(optim));
  return ps::make_sgd_rule();
}

/// Values in the servers' type: what is pushed and pulled has the masters' precision.
std::vector<std::byte> pack_values(const std::vector<double>& values, ps::ValueType type) {
  if (type == ps::ValueType::kF64) return ps::to_bytes(std::span(values));
  const std::vector<float> narrow(values.begin(), values.end());
  return ps::to_bytes(std::span(narrow));
}
std::vector<double> unpack_values(const std::vector<std::byte>& bytes, ps::ValueType type) {
  if (type == ps::ValueType::kF64) return ps::from_bytes<double>(bytes);
  const std::vector<float> narrow = ps::from_bytes<float>(bytes);
  return {narrow.begin(), narrow.end()};
}

class DownpourReplica {
 public:
  DownpourReplica(DownpourJob& job, comm::Mailbox& mailbox, comm::Group& alone, int number)
      : job_(job),
        mailbox_(mailbox),
        number_(number),
        replica_(job.recipe, job.shape, alone, job.samples, job.options.replicas),
        client_(mailbox, {.address = mailbox.address(),
                          .keys = replica_.keys(),
                          .type = job.type,
                          .part_bytes = std::size_t{1} << 40}),  // whole pushes: a version is one of them
        delay_(job.options.tau),
        all_{{0, replica_.keys()}},
        accrued_(replica_.keys()) {}

  void run() {
    if (number_ == 0) {
      const std::vector<double> first = replica_.weights();
      client_.wait(client_.push({all_, pack_values(first, job_.type), 0, ps::Message::Op::kAssign}));
      {
        const std::lock_guard lock(job_.mutex);
        job_.first_weights = first;
        job_.begin = DownpourClock::now();
      }
      const std::int64_t alone = std::min(job_.options.warm_start, job_.steps) * job_.options.replicas;
      while (job_.next_ticket < alone) step(job_.next_ticket++);
      for (int other = 1; other < job_.options.replicas; ++other)
        mailbox_.post(job_.first_worker() + other, kGoTag, 0, {});
    } else {
      mailbox_.receive(kGoTag);
    }
    if (job_.options.synchronous) {
      for (std::int64_t at = 0; at < job_.steps; ++at) step(at * job_.options.replicas + number_);
    } else {
      for (std::int64_t ticket = job_.next_ticket++; ticket < job_.tickets(); ticket = job_.next_ticket++) step(ticket);
    }
    push(/*learning_rate=*/last_rate_, /*entry=*/nullptr);
    for (const auto& [clock, task] : std::map(open_)) finish(clock);
    if (--job_.running == 0) conclude();
    const QueueReading queue = client_.worker().queue();
    const std::lock_guard lock(job_.mutex);
    job_.journals[static_cast<std::size_t>(number_)] = std::move(journal_);
    job_.report.most_stale = std::max(job_.report.most_stale, delay_.most_stale());
    if (number_ == 0) {
      job_.report.queue_length = queue.length();
      job_.report.queue_wait = queue.wait();
    }
    client_.leave();
  }

 private:
  void step(std::int64_t ticket) {
    JournalEntry& entry = journal_.emplace_back();
    entry.step = ticket / job_.options.replicas;
    entry.part = static_cast<int>(ticket % job_.options.replicas);
    while (!delay_.may_begin()) finish(open_.begin()->first);
    const std::uint64_t clock = delay_.begin();
    if (taken_ % job_.options.n_fetch == 0) {
      const auto pulled = client_.pull({all_});
      weights_ = unpack_values(client_.take(pulled), job_.type);
      entry.fetched = client_.worker().take_versions(pulled);
    }
    replica_.set_weights(weights_);
    const auto begin = DownpourClock::now();
    Replica::Gradient gradient = replica_.compute(entry.step, entry.part);
    if (const auto slow = job_.options.slowed.find(number_); slow != job_.options.slowed.end())
      std::this_thread::sleep_for((slow->second - 1) * (DownpourClock::now() - begin));
    entry.loss = gradient.loss;
    // The server sums over replicas, and a step is the mean.
    if (job_.options.synchronous) gradient.learning_rate /= job_.options.replicas;
    entry.learning_rate = last_rate_ = gradient.learning_rate;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      accrued_[i] += gradient.values[i];
      weights_[i] -= gradient.learning_rate * gradient.values[i];
    }
    ++taken_;
    entry.seconds = std::chrono::duration<double>(DownpourClock::now() - job_.begin).count();
    if (taken_ % job_.options.n_push == 0) {
      push(gradient.learning_rate, &entry);
      open_[clock] = {last_push_, journal_.size() - 1};
    } else {
      delay_.done(clock);
    }
  }

  /// What has accrued, if anything; the last of it without an entry.
  void push(double learning_rate, const JournalEntry* entry) {
    if (entry == nullptr) {
      if (journal_.empty() || taken_ % job_.options.n_push == 0) return;
      last_push_ = client_.push({all_, pack_values(accrued_, job_.type), learning_rate});
      client_.wait(last_push_);
      journal_.back().pushed = client_.worker().take_versions(last_push_);
      return;
    }
    last_push_ = client_.push({all_, pack_values(accrued_, job_.type), learning_rate});
    std::ranges::fill(accrued_, 0.0);
  }

  void finish(std::uint64_t clock) {
    const auto [task, entry] = open_.at(clock);
    client_.wait(task);
    JournalEntry& at = journal_[entry];
    at.pushed = client_.worker().take_versions(task);
    if (!at.fetched.empty() && !at.pushed.empty())
      at.stale = at.pushed.begin()->second - 1 - std::min(at.pushed.begin()->second - 1, at.fetched.begin()->second);
    open_.erase(clock);
    delay_.done(clock);
  }

  /// The last replica to finish: all pushes are applied.
  void conclude() {
    const std::vector<double> last = unpack_values(client_.take(client_.pull({all_})), job_.type);
    replica_.set_weights(last);
    const auto held_out =
        job_.recipe.eval.every > 0 ? data::open_samples(job_.recipe, data::Split::kValidation) : nullptr;
    const data::Samples& judged = held_out ? *held_out : job_.samples;
    const Evaluation evaluation =
        replica_.state().engine.evaluate(judged, {.count = std::min<std::int64_t>(job_.recipe.eval.samples, 64)});
    const std::lock_guard lock(job_.mutex);
    job_.report.seconds = std::chrono::duration<double>(DownpourClock::now() - job_.begin).count();
    job_.report.final_loss = evaluation.loss();
    job_.last_weights = last;
  }

  struct OpenPush {
    ps::Worker::TaskId task;
    std::size_t entry;
  };
  DownpourJob& job_;
  comm::Mailbox& mailbox_;
  const int number_;
  Replica replica_;
  ps::Client client_;
  ps::BoundedDelay delay_;
  const std::vector<ps::Segment> all_;
  std::vector<double> weights_, accrued_;
  std::vector<JournalEntry> journal_;
  std::map<std::uint64_t, OpenPush> open_;
  ps::Worker::TaskId last_push_ = 0;
  std::int64_t taken_ = 0;
  double last_rate_ = 0;
};

/// The journal again, on one thread: a step is taken when the versions that it fetched are there, a push is applied
/// when it is the next of its server. Returns the weights at the end.
class DownpourTwin {
 public:
  DownpourTwin(DownpourJob& job, comm::Group& alone)
      : job_(job), replica_(job.recipe, job.shape, alone, job.samples, job.options.replicas) {
    ps::View view{.epoch = 1, .workers = {}, .copies = job.options.copies};
    for (int i = 0; i < job.options.servers; ++i) view.servers.push_back(1 + i);
    for (const ps::PlacedRange& range : ps::place(view, job.keys))
      shards_[range.chain.front()].segments.push_back(range.keys);
    for (auto& [server, shard] : shards_) {
      // Version 1 is the first weights, which replica 0 pushed.
      shard.versions = {{}, gather(job.first_weights, shard.segments)};
      shard.sums.resize(shard.versions[1].size());
    }
  }

  std::vector<double> run() {
    std::vector<Runner> runners(job_.journals.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < runners.size(); ++i) {
        Runner& runner = runners[i];
        if (runner.next < job_.journals[i].size() && can_fetch(job_.journals[i][runner.next])) {
          compute(job_.journals[i][runner.next++], runner);
          moved = true;
        }
        for (OpenTwinPush& open : runner.open) moved |= push(open);
        std::erase_if(runner.open, [](const OpenTwinPush& open) { return open.servers.empty(); });
      }
    }
    for (std::size_t i = 0; i < runners.size(); ++i) {
      TRIREME_CHECK(runners[i].next == job_.journals[i].size() && runners[i].open.empty(),
                    "the journal of replica {} stops at part {} of {}, with {} pushes open", i, runners[i].next,
                    job_.journals[i].size(), runners[i].open.size());
    }
    std::vector<double> weights(job_.keys);
    for (const auto& [server, shard] : shards_) scatter(shard.versions.back(), shard.segments, weights);
    return weights;
  }

 private:
  struct Shard {
    std::vector<ps::Segment> segments;
    std::vector<std::vector<double>> versions;
    std::vector<double> sums;  // Adagrad's
  };
  /// A replica does not wait for its pushes, and servers may have them in different orders beside those of others: one
  /// that a server has not reached must not keep the replica from its next part.
  struct OpenTwinPush {
    double learning_rate = 0;
    std::map<int, std::uint64_t> servers;  // that do not have it yet, and the version that it becomes there
    std::vector<double> gradient;
  };
  struct Runner {
    std::size_t next = 0;
    std::vector<OpenTwinPush> open;
    std::vector<double> weights, accrued;
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
    runner.weights.resize(job_.keys);
    runner.accrued.resize(job_.keys);
    for (const auto& [server, version] : entry.fetched)
      scatter(shards_.at(server).versions[version], shards_.at(server).segments, runner.weights);
    replica_.set_weights(runner.weights);
    const Replica::Gradient gradient = replica_.compute(entry.step, entry.part);
    for (std::size_t i = 0; i < runner.weights.size(); ++i) {
      runner.accrued[i] += gradient.values[i];
      runner.weights[i] -= gradient.learning_rate * gradient.values[i];
    }
    if (entry.pushed.empty()) return;
    runner.open.push_back({entry.learning_rate, entry.pushed, runner.accrued});
    std::ranges::fill(runner.accrued, 0.0);
  }
  /// To every server whose next version it is; whether there was one.
  bool push(OpenTwinPush& open) {
    return std::erase_if(open.servers, [&](const auto& due) {
             const auto& [server, version] = due;
             Shard& shard = shards_.at(server);
             if (shard.versions.size() != version) return false;
             std::vector<double> weights = shard.versions.back();
             const std::vector<double> gradient = gather(open.gradient, shard.segments);
             const spec::OptimConfig& optim = job_.recipe.optim;
             for (std::size_t i = 0; i < weights.size(); ++i) {
               if (optim.kind == spec::OptimizerKind::kAdagrad) {
                 shard.sums[i] += gradient[i] * gradient[i];
                 weights[i] -= open.learning_rate * gradient[i] / (std::sqrt(shard.sums[i]) + spec::epsilon_of(optim));
               } else {
                 weights[i] -= open.learning_rate * gradient[i];
               }
             }
             shard.versions.push_back(std::move(weights));
             return true;
           }) > 0;
  }

  DownpourJob& job_;
  Replica replica_;
  std::map<int, Shard> shards_;
};

/// Losses by step, staleness, who did what.
void summarise(DownpourJob& job) {
  std::map<std::int64_t, DownpourReport::Point> points;
  std::map<std::int64_t, int> counts;
  double stale = 0;
  std::int64_t entries = 0;
  for (const std::vector<JournalEntry>& journal : job.journals) {
    job.report.parts_of.push_back(static_cast<std::int64_t>(journal.size()));
    for (const JournalEntry& entry : journal) {
      DownpourReport::Point& point = points[entry.step];
      point.step = entry.step + 1;
      point.loss += entry.loss;
      point.seconds = std::max(point.seconds, entry.seconds);
      ++counts[entry.step];
      stale += static_cast<double>(entry.stale);
      ++entries;
    }
  }
  for (auto& [step, point] : points) {
    point.loss /= counts[step];
    job.report.points.push_back(point);
  }
  job.report.staleness = entries > 0 ? stale / static_cast<double>(entries) : 0;
}

void run_downpour_node(DownpourJob& job, comm::Mailbox& mailbox) {
  const int me = mailbox.address();
  if (me == 0) {
    ps::ManagerOptions nodes{.address = 0, .copies = job.options.copies};
    for (int i = 0; i < job.options.servers; ++i) nodes.servers.push_back(1 + i);
    for (int i = 0; i < job.options.replicas; ++i) nodes.workers.push_back(job.first_worker() + i);
    ps::Manager manager(nodes);
    return ps::manage(mailbox, manager);
  }
  if (me < job.first_worker()) {
    ps::Server server({.address = me, .keys = job.keys, .type = job.type, .aggregate = job.options.synchronous},
                      server_rule(job.recipe.optim));
    ps::serve(mailbox, server, 0);
    return;
  }
  // A world of its own for each: gradients are this replica's, and no collective waits for another.
  comm::run_ranks(1, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    DownpourReplica(job, mailbox, rank.world(), me - job.first_worker()).run();
  });
}

}  // namespace

void check_downpour(const spec::Recipe& recipe, const DownpourOptions& options) {
  const spec::OptimConfig& optim = recipe.optim;
  const bool sgd = optim.kind == spec::OptimizerKind::kSgd && optim.momentum == 0;
  if (!sgd && optim.kind != spec::OptimizerKind::kAdagrad)
    throw ConfigError("optim.kind: servers apply Adagrad, or SGD without momentum",
                      "--set optim.kind=adagrad, or --set optim.kind=sgd --set optim.momentum=0");
  if (optim.weight_decay != 0 || optim.grad_clip_norm != 0 || !optim.groups.empty())
    throw ConfigError("optim: weight decay, clipping and groups are not what servers do with a push",
                      "--set optim.weight_decay=0 --set optim.grad_clip_norm=0");
  if (recipe.layout != spec::LayoutConfig{})
    throw ConfigError("layout: a replica of Downpour holds the whole model", "leave [layout] out");
  if (recipe.run.device != spec::DeviceKind::kCpu)
    throw ConfigError("run.device: replicas of Downpour compute on the CPU", "--set run.device=cpu");
  if (recipe.precision.compute != spec::Precision::kFp32 && recipe.precision.compute != spec::Precision::kFp64)
    throw ConfigError("precision.compute: replicas of Downpour compute in fp32 or fp64",
                      "--set precision.compute=fp32");
  if (options.replicas < 1 || options.servers < 1 || options.n_fetch < 1 || options.n_push < 1)
    throw ConfigError("replicas, servers, n_fetch and n_push are at least 1");
  if (options.copies > options.servers)
    throw ConfigError(fmt::format("{} copies need as many servers, and there are {}", options.copies, options.servers),
                      fmt::format("--servers {}", options.copies));
  if (options.synchronous &&
      (options.n_fetch != 1 || options.n_push != 1 || options.tau != 0 || options.warm_start != 0 || options.verify))
    throw ConfigError("synchronous steps fetch and push once each, and none is on its way",
                      "leave the other options out");
  const double product = optim.learning_rate * static_cast<double>(std::min<std::uint64_t>(options.tau, 16));
  if (optim.kind == spec::OptimizerKind::kSgd && product > 1)
    log_warn("learning rate {} with up to {} pushes on their way: their product is above 1, and may diverge",
             optim.learning_rate, options.tau);
}

DownpourReport run_downpour(const spec::Recipe& from, const DownpourOptions& options) {
  spec::Recipe recipe = from;
  check_downpour(recipe, options);
  device::keep_host_memory();
  const spec::ModelShape shape = model_shape(recipe);
  const auto samples = data::open_samples(recipe, data::Split::kTrain);
  const std::int64_t steps = last_step(recipe);
  const auto type = recipe.precision.compute == spec::Precision::kFp64 ? ps::ValueType::kF64 : ps::ValueType::kF32;
  std::uint64_t keys = 0;
  comm::run_ranks(
      1, [&](comm::Rank& rank) { keys = Replica(recipe, shape, rank.world(), *samples, options.replicas).keys(); });
  DownpourJob job{.recipe = recipe,
                  .options = options,
                  .shape = shape,
                  .samples = *samples,
                  .steps = steps,
                  .type = type,
                  .keys = keys};
  job.running = options.replicas;
  job.journals.resize(static_cast<std::size_t>(options.replicas));
  const int nodes = job.first_worker() + options.replicas;
  const auto body = [&](comm::Mailbox& mailbox) { run_downpour_node(job, mailbox); };
  if (options.seed) {
    comm::run_mailboxes(nodes, {.seed = *options.seed}, body);
  } else {
    comm::run_thread_mailboxes(nodes, options.links, body);
  }
  summarise(job);
  if (options.verify) {
    comm::run_ranks(1, [&](comm::Rank& rank) {
      const std::vector<double> twin = DownpourTwin(job, rank.world()).run();
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < twin.size(); ++i) {
        difference += std::pow(twin[i] - job.last_weights[i], 2);
        norm += twin[i] * twin[i];
      }
      job.report.twin_difference = std::sqrt(difference / norm);
    });
  }
  return job.report;
}

namespace {
constexpr DownpourCommands kDownpourCommands{.version = kDownpourVersion, .run = &run_downpour};
}
extern "C" const DownpourCommands* trireme_downpour() { return &kDownpourCommands; }

}  // namespace trireme::train
