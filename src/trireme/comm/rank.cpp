#include "trireme/comm/rank.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>
#include <thread>

#include "trireme/base/cores.h"
#include "trireme/base/log.h"
#include "trireme/comm/transports/threads.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kSpin = 50us;
// A rank that left in good order may have sent what is still on its way to us: give that so long.
constexpr std::chrono::nanoseconds kLeftGrace = 2s;
constexpr std::chrono::milliseconds kAnswerTimeout = 2s;

std::chrono::nanoseconds default_spin(int ranks) { return ranks <= usable_cores() ? kSpin : 0ns; }

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += fmt::format("{} {}", i == 0 ? "" : ",", ranks[i]);
  return text;
}

/// The latest collective of a rank in one group, as it travels over the control plane.
struct Position {
  std::uint64_t calls = 0;  // begun
  bool pending = false;
  CallKey key = {};
};

std::string to_wire(const Position& position) {
  std::string key_hex;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&position.key);
  for (std::size_t i = 0; i < sizeof position.key; ++i) key_hex += fmt::format("{:02x}", bytes[i]);
  return fmt::format("{} {} {}", position.calls, position.pending ? 1 : 0, key_hex);
}

std::optional<Position> from_wire(const std::string& text) {
  Position position;
  int pending = 0;
  char hex[2 * sizeof(CallKey) + 1] = {};
  if (std::sscanf(text.c_str(), "%lu %d %64s", &position.calls, &pending, hex) < 2) return std::nullopt;
  position.pending = pending != 0;
  auto* bytes = reinterpret_cast<unsigned char*>(&position.key);
  if (std::strlen(hex) != 2 * sizeof(CallKey)) return position;
  for (std::size_t i = 0; i < sizeof(CallKey); ++i) std::from_chars(hex + 2 * i, hex + 2 * i + 2, bytes[i], 16);
  return position;
}

}  // namespace

Rank::Rank(std::unique_ptr<Transport> transport, std::unique_ptr<ControlPlane> control, CommOptions options)
    : options_(std::move(options)),
      transport_(std::move(transport)),
      control_(std::move(control)),
      recorder_(transport_->rank(), options_.recorded_calls),
      listing_(recorder_, options_.flight_directory.empty() ? "." : options_.flight_directory),
      gone_(static_cast<std::size_t>(transport_->ranks())),
      engine_(*transport_, *this, options_.spin.value_or(default_spin(transport_->ranks()))) {
  control_->listen([this](const Notice& notice) { on_notice(notice); },
                   [this](const std::string& question) { return on_question(question); });
  Members everyone;
  everyone.ranks.resize(static_cast<std::size_t>(ranks()));
  std::iota(everyone.ranks.begin(), everyone.ranks.end(), 0);
  everyone.me = rank();
  world_.reset(new Group(*this, std::move(everyone), "world"));
}

Rank::~Rank() {
  control_->listen(nullptr, nullptr);
  world_.reset();
  if (!has_failed_) control_->announce(Notice::Kind::kLeft, to_text(departure_));
}

void Rank::add(Group& group) {
  const std::lock_guard lock(groups_mutex_);
  groups_.push_back(&group);
}

void Rank::remove(Group& group) {
  const std::lock_guard lock(groups_mutex_);
  std::erase(groups_, &group);
  const std::uint32_t channel = group.members().channel;
  departure_.calls[channel] = group.calls();
  for (int r = 0; r < group.size(); ++r) {
    if (group.sends_to(r) != 0) departure_.sends[{channel, group.world_rank(r)}] = group.sends_to(r);
  }
}

void Rank::announce_failure(const std::string& reason, Notice::Kind kind) noexcept {
  {
    const std::lock_guard lock(gone_mutex_);
    if (has_failed_) return;
    has_failed_ = true;
  }
  control_->announce(kind, reason);
  give_up();
}

void Rank::give_up() noexcept {
  transport_->give_up();
  const auto lock = engine_.lock();
  if (gpu_) gpu_->give_up();
}

void Rank::on_notice(const Notice& notice) {
  {
    const std::lock_guard lock(gone_mutex_);
    auto& gone = gone_[static_cast<std::size_t>(notice.rank)];
    // The first reason is the one that matters; only "left" may still turn into something worse.
    if (gone && gone->kind != Notice::Kind::kLeft) return;
    gone = Gone{.kind = notice.kind, .text = notice.text, .since_ns = now_ns()};
    if (notice.kind == Notice::Kind::kLeft) gone->departure = parse_departure(notice.text);
  }
  engine_.alarm();
}

std::string Rank::on_question(const std::string& question) {
  // "position CHANNEL", "sends CHANNEL RANK" or "gpu RANK,RANK,..."
  char what[16] = {};
  unsigned channel = 0;
  int to = 0;
  if (std::sscanf(question.c_str(), "%15s %u %d", what, &channel, &to) < 2) return {};
  const std::lock_guard lock(groups_mutex_);
  if (std::strcmp(what, "gpu") == 0) {
    const GpuProgress at = gpu_ ? gpu_->progress_of(question.substr(4)) : GpuProgress{};
    return fmt::format("{} {} {}", at.given, at.begun, at.done);
  }
  for (const Group* group : groups_) {
    if (group->members().channel != channel) continue;
    if (std::strcmp(what, "sends") == 0) {
      for (int r = 0; r < group->size(); ++r) {
        if (group->world_rank(r) == to) return std::to_string(group->sends_to(r));
      }
    }
    Position position{.calls = group->calls()};
    for (const Recorder::Entry& entry : recorder_.entries()) {
      if (entry.group_number != group->record_group() || !is_collective(entry.key.op)) continue;
      position.pending = entry.state == Recorder::State::kPending || entry.state == Recorder::State::kGiven;
      position.key = entry.key;
    }
    return to_wire(position);
  }
  return to_wire({});  // not in that group, or not any more
}

bool Rank::fails(const Gone& gone, const Operation& operation) const {
  if (gone.kind != Notice::Kind::kLeft) return true;
  const std::uint32_t channel = operation.group_->members().channel;
  // A send to it may be on its way to being taken; and without word from it there is only the clock.
  if (!gone.departure || operation.key_.op == Op::kSend) return now_ns() - gone.since_ns >= kLeftGrace.count();
  const auto count_in = [](const auto& counts, const auto& key) {
    const auto found = counts.find(key);
    return found == counts.end() ? 0 : found->second;
  };
  if (operation.key_.op == Op::kRecv) {
    return count_in(gone.departure->sends, std::pair{channel, rank()}) <= operation.sequence_;
  }
  return count_in(gone.departure->calls, channel) <= operation.sequence_;
}

void Rank::check_peers(const Group& group) {
  const std::lock_guard lock(gone_mutex_);
  for (int r = 0; r < group.size(); ++r) {
    const int other = group.world_rank(r);
    const auto& gone = gone_[static_cast<std::size_t>(other)];
    if (!gone || other == rank() || gone->kind == Notice::Kind::kLeft) continue;
    throw PeerFailure(fmt::format("rank {} waits for rank {}, which {}: {}", rank(), other,
                                  gone->kind == Notice::Kind::kLost ? "is lost" : "failed", gone->text));
  }
}

std::exception_ptr Rank::peer_lost(const Operation& operation) {
  const Group& group = *operation.group_;
  const std::lock_guard lock(gone_mutex_);
  // Of several the one that went first: the others are likely to have gone because of it.
  int who = -1;
  for (int r = 0; r < group.size(); ++r) {
    const int other = group.world_rank(r);
    const auto& gone = gone_[static_cast<std::size_t>(other)];
    if (!gone || other == rank()) continue;
    if (operation.peer_ >= 0 && operation.peer_ != r) continue;
    if (!fails(*gone, operation)) continue;
    if (who < 0 || gone->since_ns < gone_[static_cast<std::size_t>(who)]->since_ns) who = other;
  }
  if (who < 0) return nullptr;
  const Gone& gone = *gone_[static_cast<std::size_t>(who)];
  if (gone.kind == Notice::Kind::kLeft) {
    return std::make_exception_ptr(PeerFailure(fmt::format(
        "{} on rank {} waits for rank {}, which has already ended its work", describe(operation), rank(), who)));
  }
  return std::make_exception_ptr(
      PeerFailure(fmt::format("{} on rank {} cannot be completed: rank {} {}: {}", describe(operation), rank(), who,
                              gone.kind == Notice::Kind::kLost ? "is lost" : "failed", gone.text)));
}

std::string Rank::arrivals(const Operation& operation, std::vector<int>& missing) {
  const Group& group = *operation.group_;
  std::vector<int> others, silent, arrived;
  for (int r = 0; r < group.size(); ++r) {
    if (r != group.rank()) others.push_back(group.world_rank(r));
  }
  const auto answers = control_->ask(others, fmt::format("position {}", group.members().channel), kAnswerTimeout);
  std::string text;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const auto position = answers[i] ? from_wire(*answers[i]) : std::nullopt;
    if (!position) {
      silent.push_back(others[i]);
    } else if (position->calls <= operation.sequence_) {
      missing.push_back(others[i]);
      const std::string last = position->calls == 0
                                   ? "it has made no call there"
                                   : fmt::format("its last call there: {}, number {}, {}", describe(position->key),
                                                 position->calls - 1, position->pending ? "pending" : "done");
      text += fmt::format("; rank {} had not arrived ({})", others[i], last);
    } else if (position->calls == operation.sequence_ + 1 && position->key != operation.key_) {
      text += fmt::format("; rank {} called {} instead ({})", others[i], describe(position->key),
                          difference(operation.key_, position->key));
    } else {
      arrived.push_back(others[i]);
    }
  }
  if (!silent.empty()) text += fmt::format("; {} did not answer at all", ranks_text(silent));
  if (!arrived.empty()) text += fmt::format("; {} had arrived", ranks_text(arrived));
  return text;
}

std::string Rank::peer_position(const Operation& operation) {
  const Group& group = *operation.group_;
  const int peer = group.world_rank(operation.peer_);
  if (operation.key_.op == Op::kSend) return fmt::format("; rank {} has not received it", peer);
  const std::vector<int> whom{peer};
  const auto answers = control_->ask(whom, fmt::format("sends {} {}", group.members().channel, rank()), kAnswerTimeout);
  if (!answers[0]) return fmt::format("; rank {} did not answer at all", peer);
  return fmt::format("; rank {} has made {} sends to rank {} in this group, this is receive number {}", peer,
                     *answers[0], rank(), operation.sequence_);
}

std::string Rank::gpu_positions(const Operation& operation, const GpuPosition& mine) {
  const Group& group = *operation.group_;
  std::vector<int> others, waiting, inside, past, silent;
  for (int r = 0; r < group.size(); ++r) {
    if (r != group.rank() && (operation.peer_ < 0 || operation.peer_ == r)) others.push_back(group.world_rank(r));
  }
  const auto sort_in = [&](int who, const GpuProgress& at) {
    (at.done >= mine.number ? past : at.begun >= mine.number ? inside : waiting).push_back(who);
  };
  sort_in(rank(), gpu_->progress_of(mine.ranks));
  const auto answers = control_->ask(others, "gpu " + mine.ranks, kAnswerTimeout);
  for (std::size_t i = 0; i < others.size(); ++i) {
    GpuProgress at;
    const bool told =
        answers[i] && std::sscanf(answers[i]->c_str(), "%lu %lu %lu", &at.given, &at.begun, &at.done) == 3;
    told ? sort_in(others[i], at) : silent.push_back(others[i]);
  }
  std::string text = " although the GPU was given it";
  const auto tell = [&](const std::vector<int>& ranks, std::string_view what) {
    if (!ranks.empty()) text += fmt::format("; {} {}", ranks_text(ranks), what);
  };
  tell(waiting, "had not begun it: work given to that GPU before is not over");
  tell(inside, "had begun it and waited for the others");
  tell(past, "had done it");
  tell(silent, "did not answer at all");
  return text;
}

std::exception_ptr Rank::timed_out(const Operation& operation) {
  std::vector<int> missing;
  const auto on_gpu = operation.gpu_position();
  const std::string found = on_gpu                 ? gpu_positions(operation, *on_gpu)
                            : operation.peer_ >= 0 ? peer_position(operation)
                                                   : arrivals(operation, missing);
  const std::string phase =
      operation.waits_for().empty() ? "" : fmt::format(" while waiting for {}", operation.waits_for());
  const double seconds = static_cast<double>(operation.deadline_ns_ - operation.started_ns_) / 1e9;
  const std::string hint =
      missing.empty() ? "look at the other ranks' logs; raise the deadline (comm.deadline) if they are only slow"
                      : fmt::format("look at the log of {}; raise the deadline (comm.deadline) if it is only slow",
                                    ranks_text(missing));
  return std::make_exception_ptr(CommError(fmt::format("{} passed its deadline of {:.3g} s on rank {}{}{}",
                                                       describe(operation), seconds, rank(), phase, found),
                                           hint));
}

FailureReport Rank::report(const Group& group, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailure& failure) {
    return {.group = group.name(), .reason = failure.message(), .own = false};
  } catch (const std::exception& failure) {
    return {.group = group.name(), .reason = failure.what(), .own = true};
  }
}

bool Rank::peer_refused() {
  const std::lock_guard lock(gone_mutex_);
  return std::ranges::any_of(gone_, [](const auto& gone) { return gone && gone->kind == Notice::Kind::kRefused; });
}

void Rank::failed(const FailureReport& report) {
  log_debug("group '{}' failed on rank {}: {}", report.group, rank(), report.reason);
  if (!options_.flight_directory.empty() && !peer_refused()) recorder_.dump(options_.flight_directory, report.reason);
  if (report.own) {
    announce_failure(report.reason);
  } else {
    give_up();
  }
}

void run_ranks(int ranks, const std::function<void(Rank&)>& body, const RanksOptions& options) {
  TRIREME_CHECK(ranks >= 1, "run_ranks needs at least one rank, not {}", ranks);
  auto transports = make_threads_transport(ranks, options.ranks_per_node);
  auto controls = make_local_control(ranks);
  std::mutex mutex;
  std::exception_ptr own, consequence;
  const auto run = [&](int r) {
    const ThreadRank in_log(r, ranks);
    const auto i = static_cast<std::size_t>(r);
    std::unique_ptr<Rank> rank;
    const auto failed = [&](std::exception_ptr& where, const std::string& reason,
                            Notice::Kind kind = Notice::Kind::kFailed) {
      {
        const std::lock_guard lock(mutex);
        if (!where) where = std::current_exception();
      }
      if (rank) {
        rank->announce_failure(reason, kind);
      } else if (controls[i]) {
        controls[i]->announce(kind, reason);
      }
    };
    try {
      std::unique_ptr<Transport> transport = std::move(transports[i]);
      if (options.wrap) transport = options.wrap(std::move(transport));
      rank = std::make_unique<Rank>(std::move(transport), std::move(controls[i]), options.comm);
      body(*rank);
    } catch (const PeerFailure& error) {
      failed(consequence, error.what());
    } catch (const ConfigError& error) {
      failed(own, error.what(), Notice::Kind::kRefused);
    } catch (const std::exception& error) {
      failed(own, error.what());
    } catch (...) {
      failed(own, "something that is no std::exception was thrown");
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int r = 1; r < ranks; ++r) threads.emplace_back(run, r);
  // Rank 0 is the caller: a debugger and thread-local state of the caller stay where one expects them.
  run(0);
  for (auto& thread : threads) thread.join();
  if (own) std::rethrow_exception(own);
  if (consequence) std::rethrow_exception(consequence);
}

}  // namespace trireme::comm
