// Commands and portions over mailboxes.
#include "trireme/ps/sandblaster.h"

#include <fmt/format.h>

#include <cstring>

#include "trireme/base/error.h"
#include "trireme/ps/ring.h"

namespace trireme::ps {
namespace {

constexpr std::uint32_t kCommandTag = 0x7362, kAnswerTag = 0x7363;

struct ShardCommand {
  enum class Op : std::uint32_t {
    kDot,
    kScale,
    kAxpy,
    kCopy,
    kRead,
    kWrite,
    kBegin,
    kAddPortion,
    kWork,
    kWorked,
    kStop
  };
  Op op = Op::kStop;
  std::int32_t a = 0, b = 0, portion = 0;
  std::uint64_t step = 0;
  double factor = 0, low = 0;
};

std::vector<std::byte> pack(const ShardCommand& command, std::span<const double> values = {}) {
  std::vector<std::byte> bytes(sizeof command + values.size_bytes());
  std::memcpy(bytes.data(), &command, sizeof command);
  if (!values.empty()) std::memcpy(bytes.data() + sizeof command, values.data(), values.size_bytes());
  return bytes;
}

struct Unpacked {
  int from;
  ShardCommand command;
  std::vector<double> values;
};

std::vector<std::byte> pack_stop() { return pack({.op = ShardCommand::Op::kStop}); }

Unpacked receive_command(comm::Mailbox& mailbox, std::uint32_t tag) {
  const comm::Mail mail = mailbox.receive(tag);
  Unpacked unpacked{.from = mail.from, .command = {}, .values = {}};
  if (mail.bytes.size() < sizeof unpacked.command) throw CommError("a command of a coordinator is too short");
  std::memcpy(&unpacked.command, mail.bytes.data(), sizeof unpacked.command);
  unpacked.values.resize((mail.bytes.size() - sizeof unpacked.command) / sizeof(double));
  if (!unpacked.values.empty())
    std::memcpy(unpacked.values.data(), mail.bytes.data() + sizeof unpacked.command,
                unpacked.values.size() * sizeof(double));
  return unpacked;
}

std::vector<double> gather(std::span<const double> all, const std::vector<Segment>& segments) {
  std::vector<double> part;
  part.reserve(count_keys(segments));
  for (const Segment& segment : segments)
    part.insert(part.end(), all.begin() + static_cast<std::ptrdiff_t>(segment.begin),
                all.begin() + static_cast<std::ptrdiff_t>(segment.end));
  return part;
}

void scatter(std::span<const double> part, const std::vector<Segment>& segments, std::span<double> all) {
  TRIREME_CHECK(part.size() == count_keys(segments), "a shard of {} values where {} were due", part.size(),
                count_keys(segments));
  std::size_t at = 0;
  for (const Segment& segment : segments) {
    std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(at), segment.size(),
                all.begin() + static_cast<std::ptrdiff_t>(segment.begin));
    at += segment.size();
  }
}

}  // namespace

Shards ring_shards(std::uint64_t keys, int servers) {
  std::vector<int> names;
  for (int i = 0; i < servers; ++i) names.push_back(1 + i);
  Shards shards(static_cast<std::size_t>(servers));
  for (const PlacedRange& range : HashRing(names).place(keys, 1))
    shards[static_cast<std::size_t>(range.chain.front() - 1)].push_back(range.keys);
  return shards;
}

Shards even_shards(std::uint64_t keys, int servers) {
  Shards shards(static_cast<std::size_t>(servers));
  const auto count = static_cast<std::uint64_t>(servers);
  for (std::uint64_t i = 0; i < count; ++i) {
    const Segment part{keys * i / count, keys * (i + 1) / count};
    if (part.begin < part.end) shards[i].push_back(part);
  }
  return shards;
}

/// Slots of a server's keys, and portions added in order.
void run_shard(comm::Mailbox& mailbox, LocalVectors& shard) {
  std::uint64_t step = 0;
  int target = 0, added = 0;
  std::map<int, std::vector<double>> early;  // portions that wait for one before them; bounded by those that are out
  while (true) {
    Unpacked got = receive_command(mailbox, kCommandTag);
    ShardCommand& command = got.command;
    std::vector<double> values;
    switch (command.op) {
      case ShardCommand::Op::kDot: {
        const TwoSum sum = shard.dot_parts(command.a, command.b);
        command.factor = sum.high;
        command.low = sum.low;
        break;
      }
      case ShardCommand::Op::kScale:
        shard.scale(command.a, command.factor);
        break;
      case ShardCommand::Op::kAxpy:
        shard.axpy(command.factor, command.a, command.b);
        break;
      case ShardCommand::Op::kCopy:
        shard.copy(command.a, command.b);
        break;
      case ShardCommand::Op::kRead:
        values.assign(shard.slot(command.a).begin(), shard.slot(command.a).end());
        break;
      case ShardCommand::Op::kWrite:
        TRIREME_CHECK(got.values.size() == shard.slot(command.a).size(), "{} values for a shard of {}",
                      got.values.size(), shard.slot(command.a).size());
        std::ranges::copy(got.values, shard.slot(command.a).begin());
        break;
      case ShardCommand::Op::kBegin:
        step = command.step;
        target = command.b;
        added = 0;
        early.clear();
        std::ranges::fill(shard.slot(target), 0.0);
        break;
      case ShardCommand::Op::kAddPortion:
        if (command.step == step && command.portion >= added) early.try_emplace(command.portion, std::move(got.values));
        for (auto next = early.find(added); next != early.end(); next = early.find(added)) {
          const std::span<double> total = shard.slot(target);
          for (std::size_t i = 0; i < total.size(); ++i) total[i] += next->second[i];
          early.erase(next);
          ++added;
        }
        break;
      case ShardCommand::Op::kWork:
      case ShardCommand::Op::kWorked:
        continue;
      case ShardCommand::Op::kStop:
        return;
    }
    mailbox.post(got.from, kAnswerTag, 0, pack(command, values));
  }
}

void read_slot(comm::Mailbox& mailbox, const Shards& shards, int slot, std::span<double> values) {
  for (std::size_t server = 0; server < shards.size(); ++server)
    mailbox.post(1 + static_cast<int>(server), kCommandTag, 0, pack({.op = ShardCommand::Op::kRead, .a = slot}));
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const Unpacked part = receive_command(mailbox, kAnswerTag);
    scatter(part.values, shards[static_cast<std::size_t>(part.from - 1)], values);
  }
}

void run_replica(comm::Mailbox& mailbox, const Shards& shards, std::uint64_t keys, const PortionLoss& loss) {
  const int servers = static_cast<int>(shards.size());
  std::vector<double> weights(keys), gradient(keys);
  std::uint64_t read_at = 0;  // the step that the weights are of
  while (true) {
    Unpacked work = receive_command(mailbox, kCommandTag);
    if (work.command.op == ShardCommand::Op::kStop) return;
    if (read_at != work.command.step) {
      read_slot(mailbox, shards, work.command.a, weights);
      read_at = work.command.step;
    }
    std::ranges::fill(gradient, 0.0);
    const double value = loss(work.command.portion, weights, gradient);
    for (int server = 0; server < servers; ++server) {
      mailbox.post(
          1 + server, kCommandTag, 0,
          pack({.op = ShardCommand::Op::kAddPortion, .portion = work.command.portion, .step = work.command.step},
               gather(gradient, shards[static_cast<std::size_t>(server)])));
    }
    for (int i = 0; i < servers; ++i) receive_command(mailbox, kAnswerTag);
    mailbox.post(0, kAnswerTag, 0,
                 pack({.op = ShardCommand::Op::kWorked,
                       .portion = work.command.portion,
                       .step = work.command.step,
                       .factor = value}));
  }
}

struct SandblasterCoordinator::Answer {
  int from = 0;
  double high = 0, low = 0;  // of a dot product
  std::vector<double> values;
};

SandblasterCoordinator::SandblasterCoordinator(comm::Mailbox& mailbox, Shards shards, int replicas, int portions,
                                               bool backup)
    : mailbox_(mailbox),
      shards_(std::move(shards)),
      replicas_(replicas),
      portions_(portions),
      backup_(backup),
      portions_of_(static_cast<std::size_t>(replicas)) {}

double SandblasterCoordinator::dot(int a, int b) {
  std::vector<TwoSum> parts(shards_.size());
  for (const Answer& answer : command(pack({.op = ShardCommand::Op::kDot, .a = a, .b = b})))
    parts[static_cast<std::size_t>(answer.from - 1)] = {answer.high, answer.low};
  TwoSum sum;
  for (const TwoSum& part : parts) sum.add(part);
  return sum.value();
}

void SandblasterCoordinator::scale(int a, double factor) {
  command(pack({.op = ShardCommand::Op::kScale, .a = a, .factor = factor}));
}

void SandblasterCoordinator::axpy(double factor, int a, int b) {
  command(pack({.op = ShardCommand::Op::kAxpy, .a = a, .b = b, .factor = factor}));
}

void SandblasterCoordinator::copy(int a, int b) { command(pack({.op = ShardCommand::Op::kCopy, .a = a, .b = b})); }

double SandblasterCoordinator::evaluate(int weights, int gradient) {
  ++step_;
  command(pack({.op = ShardCommand::Op::kBegin, .b = gradient, .step = step_}));
  PortionScheduler scheduler(portions_, backup_);
  std::vector<double> losses(static_cast<std::size_t>(portions_));
  const auto give = [&](int replica) {
    if (busy_[replica]) return;
    if (const auto portion = scheduler.next(replica)) {
      busy_[replica] = true;
      mailbox_.post(1 + servers() + replica, kCommandTag, 0,
                    pack({.op = ShardCommand::Op::kWork, .a = weights, .portion = *portion, .step = step_}));
    }
  };
  for (int replica = 0; replica < replicas_; ++replica) give(replica);
  while (!scheduler.complete()) {
    const Unpacked answer = receive_command(mailbox_, kAnswerTag);
    const int replica = answer.from - 1 - servers();
    busy_[replica] = false;  // also when it was still at a portion of the step before
    if (answer.command.step == step_ && scheduler.done(answer.command.portion)) {
      losses[static_cast<std::size_t>(answer.command.portion)] = answer.command.factor;
      ++portions_of_[static_cast<std::size_t>(replica)];
    }
    give(replica);
  }
  backups_ += scheduler.backups();
  double loss = 0;
  for (const double part : losses) loss += part;
  return loss;
}

void SandblasterCoordinator::write(int slot, std::span<const double> values) {
  for (int server = 0; server < servers(); ++server) {
    mailbox_.post(
        1 + server, kCommandTag, 0,
        pack({.op = ShardCommand::Op::kWrite, .a = slot}, gather(values, shards_[static_cast<std::size_t>(server)])));
  }
  answers();
}

void SandblasterCoordinator::read(int slot, std::span<double> values) {
  for (const Answer& answer : command(pack({.op = ShardCommand::Op::kRead, .a = slot})))
    scatter(answer.values, shards_[static_cast<std::size_t>(answer.from - 1)], values);
}

void SandblasterCoordinator::release_replicas() {
  // One may still be at a portion that somebody else answered first.
  for (auto& [replica, busy] : busy_) {
    while (busy) {
      const Unpacked answer = receive_command(mailbox_, kAnswerTag);
      if (answer.from > servers()) busy_[answer.from - 1 - servers()] = false;
    }
  }
  for (int replica = 0; replica < replicas_; ++replica)
    mailbox_.post(1 + servers() + replica, kCommandTag, 0, pack_stop());
}

void SandblasterCoordinator::release_shards() {
  for (int server = 0; server < servers(); ++server) mailbox_.post(1 + server, kCommandTag, 0, pack_stop());
}

std::vector<SandblasterCoordinator::Answer> SandblasterCoordinator::command(std::span<const std::byte> command) {
  for (int server = 0; server < servers(); ++server) mailbox_.post(1 + server, kCommandTag, 0, command);
  return answers();
}

/// One of each server; answers of replicas to a step that is over may come between them.
std::vector<SandblasterCoordinator::Answer> SandblasterCoordinator::answers() {
  std::vector<Answer> all;
  while (all.size() < shards_.size()) {
    Unpacked answer = receive_command(mailbox_, kAnswerTag);
    if (answer.from <= servers()) {
      all.push_back({answer.from, answer.command.factor, answer.command.low, std::move(answer.values)});
    } else {
      busy_[answer.from - 1 - servers()] = false;
    }
  }
  return all;
}

void run_sandblaster(comm::Mailbox& mailbox, const SandblasterOptions& options, std::span<const double> start,
                     const PortionLoss& loss, SandblasterResult& result) {
  const std::uint64_t keys = start.size();
  const int me = mailbox.address();
  const Shards shards = ring_shards(keys, options.servers);
  if (me > options.servers) return run_replica(mailbox, shards, keys, loss);
  if (me > 0) {
    LocalVectors shard(count_keys(shards[static_cast<std::size_t>(me - 1)]), lbfgs_slots(options.lbfgs.history), 0,
                       nullptr);
    return run_shard(mailbox, shard);
  }
  const int portions = options.portions > 0 ? options.portions : kPortionsPerReplica * options.replicas;
  SandblasterCoordinator space(mailbox, shards, options.replicas, portions, options.backup);
  space.write(kWeightSlot, start);
  result.report = minimize_lbfgs(space, options.lbfgs);
  result.weights.resize(keys);
  space.read(kWeightSlot, result.weights);
  space.release_replicas();
  space.release_shards();
  result.backups = space.backups();
  result.portions_of = space.portions_of();
}

}  // namespace trireme::ps
