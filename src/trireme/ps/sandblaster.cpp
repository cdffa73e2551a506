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

/// Which server has which keys: the ring's ranges, one list a server.
std::vector<std::vector<Segment>> shards_of(std::uint64_t keys, int servers) {
  std::vector<int> names;
  for (int i = 0; i < servers; ++i) names.push_back(1 + i);
  std::vector<std::vector<Segment>> shards(static_cast<std::size_t>(servers));
  for (const PlacedRange& range : HashRing(names).place(keys, 1))
    shards[static_cast<std::size_t>(range.chain.front() - 1)].push_back(range.keys);
  return shards;
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

/// A server: slots of its keys, and portions added in order.
void run_shard(comm::Mailbox& mailbox, std::uint64_t keys, int slots) {
  LocalVectors shard(keys, slots, 0, nullptr);
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
        values = shard.slot(command.a);
        break;
      case ShardCommand::Op::kWrite:
        shard.slot(command.a) = std::move(got.values);
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
          std::vector<double>& total = shard.slot(target);
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

void run_replica(comm::Mailbox& mailbox, const SandblasterOptions& options, std::uint64_t keys,
                 const PortionLoss& loss) {
  const auto shards = shards_of(keys, options.servers);
  std::vector<double> weights(keys), gradient(keys);
  std::uint64_t read_at = 0;  // the step that the weights are of
  while (true) {
    Unpacked work = receive_command(mailbox, kCommandTag);
    if (work.command.op == ShardCommand::Op::kStop) return;
    if (read_at != work.command.step) {
      for (int server = 0; server < options.servers; ++server)
        mailbox.post(1 + server, kCommandTag, 0, pack({.op = ShardCommand::Op::kRead, .a = work.command.a}));
      for (int i = 0; i < options.servers; ++i) {
        const Unpacked part = receive_command(mailbox, kAnswerTag);
        scatter(part.values, shards[static_cast<std::size_t>(part.from - 1)], weights);
      }
      read_at = work.command.step;
    }
    std::ranges::fill(gradient, 0.0);
    const double value = loss(work.command.portion, weights, gradient);
    for (int server = 0; server < options.servers; ++server) {
      mailbox.post(
          1 + server, kCommandTag, 0,
          pack({.op = ShardCommand::Op::kAddPortion, .portion = work.command.portion, .step = work.command.step},
               gather(gradient, shards[static_cast<std::size_t>(server)])));
    }
    for (int i = 0; i < options.servers; ++i) receive_command(mailbox, kAnswerTag);
    mailbox.post(0, kAnswerTag, 0,
                 pack({.op = ShardCommand::Op::kWorked,
                       .portion = work.command.portion,
                       .step = work.command.step,
                       .factor = value}));
  }
}

/// The coordinator's view of the slots.
class RemoteVectors final : public VectorSpace {
 public:
  RemoteVectors(comm::Mailbox& mailbox, const SandblasterOptions& options, std::uint64_t keys, int portions,
                SandblasterResult& result)
      : mailbox_(mailbox),
        options_(options),
        shards_(shards_of(keys, options.servers)),
        portions_(portions),
        result_(result) {}

  double dot(int a, int b) override {
    std::vector<TwoSum> parts(static_cast<std::size_t>(options_.servers));
    for (const Unpacked& answer : command({.op = ShardCommand::Op::kDot, .a = a, .b = b}))
      parts[static_cast<std::size_t>(answer.from - 1)] = {answer.command.factor, answer.command.low};
    TwoSum sum;
    for (const TwoSum& part : parts) sum.add(part);
    return sum.value();
  }
  void scale(int a, double factor) override { command({.op = ShardCommand::Op::kScale, .a = a, .factor = factor}); }
  void axpy(double factor, int a, int b) override {
    command({.op = ShardCommand::Op::kAxpy, .a = a, .b = b, .factor = factor});
  }
  void copy(int a, int b) override { command({.op = ShardCommand::Op::kCopy, .a = a, .b = b}); }

  double evaluate(int weights, int gradient) override {
    ++step_;
    command({.op = ShardCommand::Op::kBegin, .b = gradient, .step = step_});
    PortionScheduler scheduler(portions_, options_.backup);
    std::vector<double> losses(static_cast<std::size_t>(portions_));
    const auto give = [&](int replica) {
      if (busy_[replica]) return;
      if (const auto portion = scheduler.next(replica)) {
        busy_[replica] = true;
        mailbox_.post(1 + options_.servers + replica, kCommandTag, 0,
                      pack({.op = ShardCommand::Op::kWork, .a = weights, .portion = *portion, .step = step_}));
      }
    };
    for (int replica = 0; replica < options_.replicas; ++replica) give(replica);
    while (!scheduler.complete()) {
      const Unpacked answer = receive_command(mailbox_, kAnswerTag);
      const int replica = answer.from - 1 - options_.servers;
      busy_[replica] = false;  // also when it was still at a portion of the step before
      if (answer.command.step == step_ && scheduler.done(answer.command.portion)) {
        losses[static_cast<std::size_t>(answer.command.portion)] = answer.command.factor;
        ++result_.portions_of[static_cast<std::size_t>(replica)];
      }
      give(replica);
    }
    result_.backups += scheduler.backups();
    double loss = 0;
    for (const double part : losses) loss += part;
    return loss;
  }

  void write(int slot, std::span<const double> values) {
    for (int server = 0; server < options_.servers; ++server) {
      mailbox_.post(
          1 + server, kCommandTag, 0,
          pack({.op = ShardCommand::Op::kWrite, .a = slot}, gather(values, shards_[static_cast<std::size_t>(server)])));
    }
    answers();
  }
  void read(int slot, std::span<double> values) {
    for (const Unpacked& answer : command({.op = ShardCommand::Op::kRead, .a = slot}))
      scatter(answer.values, shards_[static_cast<std::size_t>(answer.from - 1)], values);
  }
  void stop() {
    // A replica may still be at a portion that somebody else answered first.
    for (auto& [replica, busy] : busy_) {
      while (busy) {
        const Unpacked answer = receive_command(mailbox_, kAnswerTag);
        if (answer.from > options_.servers) busy_[answer.from - 1 - options_.servers] = false;
      }
    }
    for (int node = 1; node < sandblaster_mailboxes(options_); ++node)
      mailbox_.post(node, kCommandTag, 0, pack({.op = ShardCommand::Op::kStop}));
  }

 private:
  std::vector<Unpacked> command(const ShardCommand& command) {
    for (int server = 0; server < options_.servers; ++server) mailbox_.post(1 + server, kCommandTag, 0, pack(command));
    return answers();
  }
  /// One of each server; answers of replicas to a step that is over may come between them.
  std::vector<Unpacked> answers() {
    std::vector<Unpacked> all;
    while (all.size() < static_cast<std::size_t>(options_.servers)) {
      Unpacked answer = receive_command(mailbox_, kAnswerTag);
      if (answer.from <= options_.servers) {
        all.push_back(std::move(answer));
      } else {
        busy_[answer.from - 1 - options_.servers] = false;
      }
    }
    return all;
  }

  comm::Mailbox& mailbox_;
  const SandblasterOptions& options_;
  const std::vector<std::vector<Segment>> shards_;
  const int portions_;
  SandblasterResult& result_;
  std::map<int, bool> busy_;
  std::uint64_t step_ = 0;
};

}  // namespace

void run_sandblaster(comm::Mailbox& mailbox, const SandblasterOptions& options, std::span<const double> start,
                     const PortionLoss& loss, SandblasterResult& result) {
  const std::uint64_t keys = start.size();
  const int me = mailbox.address();
  if (me > options.servers) return run_replica(mailbox, options, keys, loss);
  if (me > 0) {
    const auto shards = shards_of(keys, options.servers);
    return run_shard(mailbox, count_keys(shards[static_cast<std::size_t>(me - 1)]), lbfgs_slots(options.lbfgs.history));
  }
  result.portions_of.assign(static_cast<std::size_t>(options.replicas), 0);
  const int portions = options.portions > 0 ? options.portions : kPortionsPerReplica * options.replicas;
  RemoteVectors space(mailbox, options, keys, portions, result);
  space.write(kWeightSlot, start);
  result.report = minimize_lbfgs(space, options.lbfgs);
  result.weights.resize(keys);
  space.read(kWeightSlot, result.weights);
  space.stop();
}

}  // namespace trireme::ps
