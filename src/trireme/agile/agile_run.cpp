#include "trireme/agile/agile_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/comm/mailbox.h"

namespace trireme::agile {
namespace {

using comm::Mailbox;

/// What machines say to each other. One tag for all, so that what one says arrives in its order.
enum class Kind : std::int32_t {
  kPlan,      ///< controller to all: an epoch begins at a committed clock; number: spot machines
  kState,     ///< backup to server: a shard as it was committed
  kWeights,   ///< server to workers: a shard at a clock
  kGradient,  ///< worker to server: of a partition
  kStream,    ///< server to backup: a shard after a clock
  kHave,      ///< backup to controller
  kBegun,     ///< server to controller: a clock has begun
  kCommit,    ///< controller to reliable machines
  kEvict,     ///< the market to a spot machine: it is gone
  kEnd,       ///< controller to all
  kFinal,     ///< backup to controller: a shard at the end
};

struct Note {
  Kind kind = Kind::kPlan;
  std::int32_t epoch = 0, clock = 0, shard = 0, number = 0;
  std::vector<double> values = {};
};

constexpr std::uint32_t kAgileTag = 1;
constexpr int kController = 0;

std::vector<std::byte> bytes_of(const Note& note) {
  const std::int32_t head[] = {static_cast<std::int32_t>(note.kind), note.epoch, note.clock, note.shard, note.number};
  std::vector<std::byte> bytes(sizeof head + note.values.size() * sizeof(double));
  std::memcpy(bytes.data(), head, sizeof head);
  if (!note.values.empty())
    std::memcpy(bytes.data() + sizeof head, note.values.data(), note.values.size() * sizeof(double));
  return bytes;
}

Note note_of(std::span<const std::byte> bytes) {
  std::int32_t head[5];
  TRIREME_CHECK(bytes.size() >= sizeof head, "{} bytes are no note", bytes.size());
  std::memcpy(head, bytes.data(), sizeof head);
  Note note{static_cast<Kind>(head[0]), head[1], head[2], head[3], head[4], {}};
  note.values.resize((bytes.size() - sizeof head) / sizeof(double));
  if (!note.values.empty())
    std::memcpy(note.values.data(), bytes.data() + sizeof head, note.values.size() * sizeof(double));
  return note;
}

/// The next note. Mail that came back, since whom it was for has been replaced meanwhile, goes to the replacement,
/// where it is of this epoch.
Note next_note(const AgileJob& job, Mailbox& mailbox, int epoch) {
  using namespace std::chrono_literals;
  if (!job.processes) return note_of(mailbox.receive(kAgileTag).bytes);
  constexpr auto kTurn = 20ms, kDeadline = 120'000ms;
  for (auto waited = 0ms; waited < kDeadline; waited += kTurn) {
    if (const auto mail = mailbox.receive_for(kTurn, kAgileTag)) return note_of(mail->bytes);
    for (const comm::Mail& back : mailbox.take_returned()) {
      if (note_of(back.bytes).epoch == epoch) mailbox.post(back.from, kAgileTag, 0, back.bytes);
    }
  }
  throw CommError(fmt::format("node {} of a job on spot machines heard nothing for {} s", mailbox.address(),
                              std::chrono::duration_cast<std::chrono::seconds>(kDeadline).count()));
}

/// The stretch of the weights that a shard is.
std::pair<std::size_t, std::size_t> stretch_of(const AgileJob& job, int shard) {
  const std::size_t size = job.weights.size(), shards = static_cast<std::size_t>(job.shards);
  const std::size_t each = size / shards, begin = each * static_cast<std::size_t>(shard);
  return {begin, shard + 1 == job.shards ? size : begin + each};
}

std::vector<double> slice(const AgileJob& job, const std::vector<double>& whole, int shard) {
  const auto [begin, end] = stretch_of(job, shard);
  return {whole.begin() + static_cast<std::ptrdiff_t>(begin), whole.begin() + static_cast<std::ptrdiff_t>(end)};
}

/// One machine: worker, server and backup, as the placement of the epoch says.
class Machine {
 public:
  Machine(const AgileJob& job, Mailbox& mailbox) : job_(job), mailbox_(mailbox), me_(mailbox.address() - 1) {
    for (int shard = 0; shard < job.shards && me_ < job.reliable; ++shard) {
      if (shard % job.reliable == me_) committed_[shard] = slice(job, job.weights, shard);
    }
  }

  void run() {
    while (true) {
      const Note note = next_note(job_, mailbox_, epoch_);
      if (note.kind == Kind::kEvict) return;
      if (note.kind == Kind::kEnd) break;
      if (note.kind == Kind::kPlan) {
        begin(note);
        for (const Note& early : std::exchange(early_, {})) take_in_epoch(early);
      } else {
        take_in_epoch(note);
      }
    }
    for (const auto& [shard, values] : committed_) tell(kController, {Kind::kFinal, epoch_, 0, shard, 0, values});
  }

 private:
  void tell(int address, const Note& note) { mailbox_.post(address, kAgileTag, 0, bytes_of(note)); }
  /// To a machine; to itself at once.
  void send(int machine, const Note& note) {
    if (machine == me_) return take(note);
    tell(machine + 1, note);
  }

  /// What is of an epoch that is over has no meaning any more; what is of one that others knew of first waits.
  void take_in_epoch(const Note& note) {
    if (note.epoch > epoch_) early_.push_back(note);
    if (note.epoch == epoch_) take(note);
  }

  void begin(const Note& plan) {
    epoch_ = plan.epoch;
    placement_ = plan::place_tiers(job_.reliable, plan.number, job_.shards, job_.partitions);
    serving_.clear();
    weights_.clear();
    streamed_.clear();
    mine_.clear();
    for (int part = 0; part < job_.partitions; ++part) {
      if (placement_.partitions[static_cast<std::size_t>(part)] == me_) mine_.push_back(part);
    }
    for (const auto& [shard, values] : committed_)
      send(placement_.servers[static_cast<std::size_t>(shard)], {Kind::kState, epoch_, plan.clock, shard, 0, values});
  }

  void take(const Note& note) {
    switch (note.kind) {
      case Kind::kState:
        return serve(note.shard, note.clock, note.values);
      case Kind::kWeights:
        return compute(note);
      case Kind::kGradient:
        return add(note);
      case Kind::kStream:
        streamed_[{note.clock, note.shard}] = note.values;
        return tell(kController, {Kind::kHave, epoch_, note.clock, note.shard, 0, {}});
      case Kind::kCommit:
        for (auto& [shard, values] : committed_) values = streamed_.at({note.clock, shard});
        std::erase_if(streamed_, [&](const auto& one) { return one.first.first <= note.clock; });
        return;
      default:
        TRIREME_CHECK(false, "machine {} got note {}", me_, static_cast<int>(note.kind));
    }
  }

  /// A new state of a shard: to all who compute with it.
  void serve(int shard, int clock, std::vector<double> values) {
    Serving& serving = serving_[shard];
    serving.clock = clock;
    serving.values = std::move(values);
    serving.gradients.clear();
    std::vector<int> workers = placement_.partitions;
    std::ranges::sort(workers);
    const auto rest = std::ranges::unique(workers);
    workers.erase(rest.begin(), rest.end());
    if (clock == job_.clocks) return;
    tell(kController, {Kind::kBegun, epoch_, clock + 1, shard, 0, {}});
    const Note note{Kind::kWeights, epoch_, clock, shard, 0, serving.values};
    for (const int worker : workers) send(worker, note);
  }

  void compute(const Note& note) {
    auto& here = weights_[note.clock];
    here[note.shard] = note.values;
    if (static_cast<int>(here.size()) < job_.shards) return;
    std::vector<double> whole;
    for (const auto& [shard, values] : here) whole.insert(whole.end(), values.begin(), values.end());
    weights_.erase(note.clock);
    for (const int part : mine_) {
      const std::vector<double> gradient = job_.gradient(part, note.clock, whole);
      for (int shard = 0; shard < job_.shards; ++shard)
        send(placement_.servers[static_cast<std::size_t>(shard)],
             {Kind::kGradient, epoch_, note.clock, shard, part, slice(job_, gradient, shard)});
    }
  }

  void add(const Note& note) {
    Serving& serving = serving_.at(note.shard);
    TRIREME_CHECK(serving.clock == note.clock, "a gradient of clock {} at clock {}", note.clock, serving.clock);
    serving.gradients[note.number] = note.values;
    if (static_cast<int>(serving.gradients.size()) < job_.partitions) return;
    std::vector<double> values = serving.values, sum(values.size(), 0.0);
    for (const auto& [part, gradient] : serving.gradients) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) values[i] -= job_.learning_rate * sum[i];
    send(placement_.backups[static_cast<std::size_t>(note.shard)],
         {Kind::kStream, epoch_, note.clock + 1, note.shard, 0, values});
    serve(note.shard, note.clock + 1, std::move(values));
  }

  struct Serving {
    int clock = 0;
    std::vector<double> values;
    std::map<int, std::vector<double>> gradients;  // by partition
  };
  const AgileJob& job_;
  Mailbox& mailbox_;
  int me_, epoch_ = -1;
  plan::TierPlacement placement_;
  std::vector<Note> early_;
  std::vector<int> mine_;                                        // partitions
  std::map<int, Serving> serving_;                               // by shard
  std::map<int, std::map<int, std::vector<double>>> weights_;    // by clock and shard
  std::map<int, std::vector<double>> committed_;                 // by shard, of reliable machines
  std::map<std::pair<int, int>, std::vector<double>> streamed_;  // by clock and shard
};

class Controller {
 public:
  Controller(const AgileJob& job, Mailbox& mailbox, const AgileMarket& market, AgileResult& result)
      : job_(job), mailbox_(mailbox), market_(market), result_(result) {}

  void run() {
    change();
    while (committed_ < job_.clocks) {
      const Note note = next_note(job_, mailbox_, epoch_);
      if (note.epoch != epoch_) continue;
      if (note.kind == Kind::kBegun) {
        begun_ = std::max(begun_, note.clock);
        continue;
      }
      TRIREME_CHECK(note.kind == Kind::kHave, "the controller got note {}", static_cast<int>(note.kind));
      if (++have_[note.clock] < job_.shards) continue;
      TRIREME_CHECK(note.clock == committed_ + 1, "clock {} is complete after {}", note.clock, committed_);
      committed_ = note.clock;
      result_.commits.push_back(committed_);
      if (changed_at_) result_.pauses.push_back(seconds_since(*std::exchange(changed_at_, std::nullopt)));
      for (int machine = 0; machine < job_.reliable; ++machine)
        tell(machine, {Kind::kCommit, epoch_, committed_, 0, 0, {}});
      if (next_ < job_.changes.size() && job_.changes[next_].clock <= committed_ && committed_ < job_.clocks) change();
    }
    for (int machine = 0; machine < job_.reliable + spot_; ++machine) tell(machine, {Kind::kEnd, epoch_, 0, 0, 0, {}});
    for (int machine = job_.reliable + spot_; !market_ && machine < job_.reliable + most_spot(); ++machine) {
      if (!evicted_.contains(machine)) tell(machine, {Kind::kEnd, epoch_, 0, 0, 0, {}});
    }
    std::map<int, std::vector<double>> shards;
    while (static_cast<int>(shards.size()) < job_.shards) {
      const Note note = next_note(job_, mailbox_, epoch_);
      if (note.kind == Kind::kFinal) shards[note.shard] = note.values;
    }
    for (const auto& [shard, values] : shards)
      result_.weights.insert(result_.weights.end(), values.begin(), values.end());
  }

  int most_spot() const {
    int most = 0;
    for (const Change& change : job_.changes) most = std::max(most, change.spot);
    return most;
  }

 private:
  void tell(int machine, const Note& note) { mailbox_.post(machine + 1, kAgileTag, 0, bytes_of(note)); }

  /// Machines go or come, and an epoch begins at the last committed clock.
  void change() {
    const int spot = next_ < job_.changes.size() ? job_.changes[next_].spot : 0;
    if (next_ < job_.changes.size()) ++next_;
    if (epoch_ >= 0) changed_at_ = std::chrono::steady_clock::now();
    for (int machine = job_.reliable + spot; machine < job_.reliable + spot_; ++machine) {
      if (market_) {
        market_(machine, false);
      } else {
        tell(machine, {Kind::kEvict, epoch_, 0, 0, 0, {}});
      }
      evicted_[machine] = true;
    }
    for (int machine = job_.reliable + spot_; machine < job_.reliable + spot; ++machine) {
      TRIREME_CHECK(market_ || !evicted_.contains(machine),
                    "a machine that was evicted does not come back: another takes its number");
      if (market_) market_(machine, true);
    }
    spot_ = spot;
    ++epoch_;
    result_.redone += std::max(0, std::exchange(begun_, committed_) - committed_);
    have_.clear();
    result_.stages.push_back(plan::tier_stage(job_.reliable, spot_));
    result_.epochs = epoch_ + 1;
    for (int machine = 0; machine < job_.reliable + spot_; ++machine)
      tell(machine, {Kind::kPlan, epoch_, committed_, 0, spot_, {}});
  }

  const AgileJob& job_;
  Mailbox& mailbox_;
  const AgileMarket& market_;
  AgileResult& result_;
  int epoch_ = -1, committed_ = 0, spot_ = 0;
  int begun_ = 0;  // the last clock that any server told of
  std::optional<std::chrono::steady_clock::time_point> changed_at_;
  std::size_t next_ = 0;
  std::map<int, int> have_;  // by clock
  std::map<int, bool> evicted_;
};

void require_job(const AgileJob& job) {
  if (job.reliable < 1)
    throw ConfigError("no reliable machine: nobody would have the committed state", "set reliable to at least 1");
  if (job.shards < 1 || static_cast<std::size_t>(job.shards) > job.weights.size() || job.partitions < 1)
    throw ConfigError(
        fmt::format("{} weights in {} shards, {} partitions", job.weights.size(), job.shards, job.partitions),
        "give at least one weight to each shard, and one partition");
}

}  // namespace

void run_agile_machine(const AgileJob& job, comm::Mailbox& mailbox) {
  require_job(job);
  Machine(job, mailbox).run();
}

AgileResult run_agile_controller(const AgileJob& job, comm::Mailbox& mailbox, const AgileMarket& market) {
  require_job(job);
  AgileResult result;
  Controller(job, mailbox, market, result).run();
  return result;
}

AgileResult run_agile(const AgileJob& job, std::uint64_t seed) {
  require_job(job);
  int most = 0;
  for (const Change& change : job.changes) most = std::max(most, change.spot);
  AgileResult result;
  comm::run_mailboxes(1 + job.reliable + most, {.seed = seed}, [&](Mailbox& mailbox) {
    if (mailbox.address() == kController) {
      result = run_agile_controller(job, mailbox);
    } else {
      run_agile_machine(job, mailbox);
    }
  });
  return result;
}

std::vector<double> run_serial(const AgileJob& job) {
  require_job(job);
  std::vector<double> weights = job.weights;
  for (int clock = 0; clock < job.clocks; ++clock) {
    std::vector<double> sum(weights.size(), 0.0);
    for (int part = 0; part < job.partitions; ++part) {
      const std::vector<double> gradient = job.gradient(part, clock, weights);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) weights[i] -= job.learning_rate * sum[i];
  }
  return weights;
}

}  // namespace trireme::agile
