#include "trireme/train/servers/downpour.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/comm/rank.h"
#include "trireme/data/open_samples.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/spec/server_updates.h"
#include "trireme/train/engine/trainer.h"
#include "trireme/train/servers/downpour_twin.h"
#include "trireme/train/servers/server_rule.h"

namespace trireme::train {
namespace {

using DownpourClock = std::chrono::steady_clock;
constexpr std::uint32_t kGoTag = 0x646f;

/// How time goes by for a node: the machine's, or a virtual one.
struct NodeClock {
  std::function<double()> now;            // seconds
  std::function<void(double)> take_time;  // for what is computed in it
};

NodeClock machine_clock() {
  return {.now = [] { return std::chrono::duration<double>(DownpourClock::now().time_since_epoch()).count(); },
          .take_time = [](double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }};
}

NodeClock clock_of(comm::TimedMailbox& mailbox) {
  return {.now = [&] { return mailbox.now(); }, .take_time = [&](double seconds) { mailbox.advance(seconds); }};
}

struct DownpourJob {
  const spec::Recipe& recipe;
  const DownpourOptions& options;
  const spec::ModelShape shape;
  const data::Samples& samples;
  const std::int64_t steps;
  const ps::ValueType type;
  std::uint64_t keys = 0;
  std::vector<KeyGroup> groups = {};
  std::atomic<std::int64_t> next_ticket{0};
  std::atomic<int> running{0};  // replicas
  double begin = 0;             // on the nodes' clocks
  std::mutex mutex;
  std::vector<std::vector<JournalEntry>> journals;       // by replica
  std::vector<std::vector<DownpourReport::Part>> parts;  // likewise
  std::vector<double> first_weights, last_weights;
  DownpourReport report;

  int first_worker() const { return 1 + options.servers; }
  std::int64_t tickets() const { return steps * options.replicas; }
};

/// A replica in a world of its own, in threads of this process.
class LocalReplica {
 public:
  LocalReplica(DownpourJob& job, comm::Mailbox& mailbox, const NodeClock& clock, comm::Group& alone, int number)
      : job_(job),
        mailbox_(mailbox),
        clock_(clock),
        number_(number),
        state_(job.recipe, job.shape, alone, job.samples, make_engine),
        replica_(state_, job.options.replicas),
        positions_(step_positions(replica_, job.steps)),
        worker_(mailbox, replica_,
                {.n_fetch = job.options.n_fetch,
                 .n_push = job.options.n_push,
                 .tau = job.options.tau,
                 .type = job.type,
                 // The server sums over replicas, and a step is the mean.
                 .rate_factor = job.options.synchronous ? 1.0 / job.options.replicas : 1.0,
                 .filters = job.options.filters},
                [this](const Replica::Gradient& gradient, double seconds) { note(gradient, seconds); }) {}

  void run() {
    if (number_ == 0) {
      const std::vector<double> first = replica_.weights();
      worker_.assign(first, {});
      {
        const std::lock_guard lock(job_.mutex);
        job_.first_weights = first;
        job_.begin = clock_.now();
      }
      const std::int64_t alone = std::min(job_.options.warm_start, job_.steps) * job_.options.replicas;
      while (job_.next_ticket < alone) take(job_.next_ticket++);
      for (int other = 1; other < job_.options.replicas; ++other)
        mailbox_.post(job_.first_worker() + other, kGoTag, 0, {});
    } else {
      mailbox_.receive(kGoTag);
    }
    if (job_.options.synchronous) {
      for (std::int64_t at = 0; at < job_.steps; ++at) take(at * job_.options.replicas + number_);
    } else {
      for (std::int64_t ticket = job_.next_ticket++; ticket < job_.tickets(); ticket = job_.next_ticket++) take(ticket);
    }
    worker_.settle();
    if (--job_.running == 0) conclude();
    const QueueReading queue = worker_.queue();
    const std::lock_guard lock(job_.mutex);
    job_.journals[static_cast<std::size_t>(number_)] = worker_.take_journal();
    job_.parts[static_cast<std::size_t>(number_)] = std::move(parts_);
    job_.report.most_stale = std::max(job_.report.most_stale, worker_.most_stale());
    if (number_ == 0) {
      job_.report.queue_length = queue.length();
      job_.report.queue_wait = queue.wait();
      job_.report.sent_bytes = worker_.counters().sent_bytes;
      job_.report.raw_bytes = worker_.counters().raw_bytes;
    }
    worker_.leave();
  }

 private:
  void take(std::int64_t ticket) {
    step_ = ticket / job_.options.replicas;
    worker_.take(positions_[static_cast<std::size_t>(step_)], static_cast<int>(ticket % job_.options.replicas));
  }

  void note(const Replica::Gradient& gradient, double seconds) {
    const DownpourOptions& options = job_.options;
    if (options.timed)
      clock_.take_time(gradient.counts.samples * options.timed->row_s[static_cast<std::size_t>(number_)]);
    if (const auto slow = options.slowed.find(number_); slow != options.slowed.end())
      clock_.take_time((slow->second - 1) * seconds);
    parts_.push_back({step_, gradient.loss(), gradient.counts.samples, clock_.now() - job_.begin});
  }

  /// The last replica to finish: all pushes are applied.
  void conclude() {
    const std::vector<double> last = worker_.fetch();
    replica_.set_weights(last);
    const auto held_out =
        job_.recipe.eval.every > 0 ? data::open_samples(job_.recipe, data::Split::kValidation) : nullptr;
    const data::Samples& judged = held_out ? *held_out : job_.samples;
    const Evaluation evaluation =
        state_.engine.evaluate(judged, {.count = std::min<std::int64_t>(job_.recipe.eval.samples, 64)});
    const std::lock_guard lock(job_.mutex);
    job_.report.seconds = clock_.now() - job_.begin;
    job_.report.final_loss = evaluation.loss();
    job_.last_weights = last;
  }

  DownpourJob& job_;
  comm::Mailbox& mailbox_;
  const NodeClock& clock_;
  const int number_;
  TrainState state_;
  Replica replica_;
  const std::vector<spec::Position> positions_;
  DownpourWorker worker_;
  std::vector<DownpourReport::Part> parts_;
  std::int64_t step_ = 0;
};

/// Losses by step, staleness, who did what.
void summarise(DownpourJob& job) {
  std::map<std::int64_t, DownpourReport::Point> points;
  std::map<std::int64_t, int> counts;
  for (const std::vector<DownpourReport::Part>& parts : job.parts) {
    job.report.parts_of.push_back(static_cast<std::int64_t>(parts.size()));
    job.report.parts.insert(job.report.parts.end(), parts.begin(), parts.end());
    for (const DownpourReport::Part& part : parts) {
      DownpourReport::Point& point = points[part.step];
      point.step = part.step + 1;
      point.loss += part.loss;
      point.seconds = std::max(point.seconds, part.seconds);
      ++counts[part.step];
    }
  }
  std::ranges::stable_sort(job.report.parts, {}, &DownpourReport::Part::seconds);
  for (auto& [step, point] : points) {
    point.loss /= counts[step];
    job.report.points.push_back(point);
  }
  double stale = 0;
  std::size_t entries = 0;
  for (const std::vector<JournalEntry>& journal : job.journals) {
    for (const JournalEntry& entry : journal) stale += static_cast<double>(entry.stale);
    entries += journal.size();
  }
  job.report.staleness = entries > 0 ? stale / static_cast<double>(entries) : 0;
}

void run_downpour_node(DownpourJob& job, comm::Mailbox& mailbox, const NodeClock& clock) {
  const int me = mailbox.address();
  at::set_num_threads(1);
  if (me == 0) {
    ps::ManagerOptions nodes{.address = 0, .copies = job.options.copies};
    for (int i = 0; i < job.options.servers; ++i) nodes.servers.push_back(1 + i);
    for (int i = 0; i < job.options.replicas; ++i) nodes.workers.push_back(job.first_worker() + i);
    ps::Manager manager(nodes);
    return ps::manage(mailbox, manager);
  }
  if (me < job.first_worker()) {
    ps::Server server({.address = me, .keys = job.keys, .type = job.type, .aggregate = job.options.synchronous},
                      make_server_rule(job.recipe.optim, job.groups));
    ps::serve(mailbox, server, 0);
    return;
  }
  // A world of its own for each: gradients are this replica's, and no collective waits for another.
  comm::run_ranks(1, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    LocalReplica(job, mailbox, clock, rank.world(), me - job.first_worker()).run();
  });
}

}  // namespace

void check_downpour(const spec::Recipe& recipe, const DownpourOptions& options) {
  const spec::OptimConfig& optim = recipe.optim;
  if (!spec::servers_update_by(optim.kind))
    throw ConfigError("optim.kind: servers update keys one by one, as SGD, Adagrad, Adam, AdamW and Lion do",
                      "--set optim.kind=adagrad");
  if (optim.ema_decay) throw ConfigError("optim.ema_decay: pushes are no steps, after which weights are averaged");
  if (recipe.layout != spec::LayoutConfig{})
    throw ConfigError("layout: a replica of Downpour holds the whole model", "leave [layout] out");
  if (recipe.run.device != spec::DeviceKind::kCpu)
    throw ConfigError("run.device: replicas of Downpour compute on the CPU", "--set run.device=cpu");
  if (recipe.precision.compute == spec::Precision::kFp16)
    throw ConfigError("precision.compute: a push is no step that is left out where fp16 overflows",
                      "--set precision.compute=bf16");
  if (options.replicas < 1 || options.servers < 1 || options.n_fetch < 1 || options.n_push < 1)
    throw ConfigError("replicas, servers, n_fetch and n_push are at least 1");
  if (options.copies > options.servers)
    throw ConfigError(fmt::format("{} copies need as many servers, and there are {}", options.copies, options.servers),
                      fmt::format("--servers {}", options.copies));
  if (options.synchronous && (options.n_fetch != 1 || options.n_push != 1 || options.tau != 0 ||
                              options.warm_start != 0 || options.verify || !options.filters.keeps_all()))
    throw ConfigError("synchronous steps fetch and push once each, all of it, and none is on its way",
                      "leave the other options out");
  if (options.timed && (options.seed || !options.slowed.empty() ||
                        options.timed->row_s.size() != static_cast<std::size_t>(options.replicas)))
    throw ConfigError(
        fmt::format("virtual time goes by rows: it takes the time of one for each of {} replicas, and "
                    "neither a seed of other orders nor factors on the machine's time",
                    options.replicas));
  warn_of_staleness(optim, options.tau);
}

DownpourReport run_downpour(const spec::Recipe& from, const DownpourOptions& options) {
  spec::Recipe recipe = from;
  recipe.train.mode = spec::TrainMode::kSynchronous;  // each replica is a world of its own
  recipe.downpour = {};
  check_downpour(recipe, options);
  device::keep_host_memory();
  const auto samples = data::open_samples(recipe, data::Split::kTrain);
  DownpourJob job{
      .recipe = recipe,
      .options = options,
      .shape = model_shape(recipe),
      .samples = *samples,
      .steps = last_step(recipe),
      .type = recipe.precision.compute == spec::Precision::kFp64 ? ps::ValueType::kF64 : ps::ValueType::kF32};
  const auto with_replica = [&](const std::function<void(Replica&)>& body) {
    comm::run_ranks(1, [&](comm::Rank& rank) {
      at::set_num_threads(1);
      TrainState state(recipe, job.shape, rank.world(), *samples, make_engine);
      Replica replica(state, options.replicas);
      body(replica);
    });
  };
  with_replica([&](Replica& replica) {
    job.keys = replica.keys();
    job.groups = replica.groups();
  });
  job.running = options.replicas;
  job.journals.resize(static_cast<std::size_t>(options.replicas));
  job.parts.resize(static_cast<std::size_t>(options.replicas));
  const int nodes = job.first_worker() + options.replicas;
  const NodeClock real = machine_clock();
  const auto body = [&](comm::Mailbox& mailbox) { run_downpour_node(job, mailbox, real); };
  if (options.timed) {
    comm::run_timed_mailboxes(nodes, options.timed->links,
                              [&](comm::TimedMailbox& mailbox) { run_downpour_node(job, mailbox, clock_of(mailbox)); });
  } else if (options.seed) {
    comm::run_mailboxes(nodes, {.seed = *options.seed}, body);
  } else {
    comm::run_thread_mailboxes(nodes, options.links, body);
  }
  summarise(job);
  if (!options.verify) return job.report;
  with_replica([&](Replica& replica) {
    const std::vector<double> twin = replay_downpour(replica, job.journals,
                                                     {.servers = options.servers,
                                                      .copies = options.copies,
                                                      .first_weights = job.first_weights,
                                                      .filters = options.filters})
                                         .weights;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < twin.size(); ++i) {
      difference += std::pow(twin[i] - job.last_weights[i], 2);
      norm += twin[i] * twin[i];
    }
    job.report.twin_difference = std::sqrt(difference / norm);
  });
  return job.report;
}

}  // namespace trireme::train
