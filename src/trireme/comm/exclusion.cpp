#include "trireme/comm/exclusion.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::comm {

using Messages = ExclusionProcess::Messages;

ExclusionProcess::ExclusionProcess(int rank, int ranks)
    : rank_(rank), ranks_(ranks), requests_(static_cast<std::size_t>(ranks)), heard_(static_cast<std::size_t>(ranks)) {
  TRIREME_CHECK(0 <= rank && rank < ranks, "rank {} of {}", rank, ranks);
}

std::optional<ClockStamp> ExclusionProcess::requested() const {
  const std::int64_t clock = requests_[static_cast<std::size_t>(rank_)];
  if (clock == 0) return std::nullopt;
  return ClockStamp{.clock = clock, .rank = rank_};
}

bool ExclusionProcess::is_first() const {
  const auto mine = requested();
  if (!mine) return false;
  for (int other = 0; other < ranks_; ++other) {
    const std::int64_t clock = requests_[static_cast<std::size_t>(other)];
    if (clock != 0 && ClockStamp{.clock = clock, .rank = other} < *mine) return false;
  }
  return true;
}

bool ExclusionProcess::may_enter() const { return requested() && !inside_ && waits_for().empty(); }

std::vector<int> ExclusionProcess::waits_for() const {
  std::vector<int> ranks;
  const auto mine = requested();
  if (!mine) return ranks;
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank_) continue;
    const auto at = static_cast<std::size_t>(other);
    const bool earlier = requests_[at] != 0 && ClockStamp{.clock = requests_[at], .rank = other} < *mine;
    if (earlier || ClockStamp{.clock = heard_[at], .rank = other} < *mine) ranks.push_back(other);
  }
  return ranks;
}

Messages ExclusionProcess::to_all(ExclusionMessage::Kind kind) {
  Messages messages;
  for (int other = 0; other < ranks_; ++other) {
    if (other != rank_) messages.push_back({.kind = kind, .from = rank_, .to = other, .clock = clock_});
  }
  return messages;
}

Messages ExclusionProcess::request() {
  TRIREME_CHECK(!requested(), "rank {} has a request already", rank_);
  requests_[static_cast<std::size_t>(rank_)] = ++clock_;
  return to_all(ExclusionMessage::Kind::kRequest);
}

void ExclusionProcess::enter() {
  TRIREME_CHECK(requested() && !inside_, "rank {} enters without a request", rank_);
  inside_ = true;
}

Messages ExclusionProcess::release() {
  TRIREME_CHECK(inside_, "rank {} is not inside", rank_);
  inside_ = false;
  requests_[static_cast<std::size_t>(rank_)] = 0;
  ++clock_;
  return to_all(ExclusionMessage::Kind::kRelease);
}

Messages ExclusionProcess::receive(const ExclusionMessage& message) {
  const auto from = static_cast<std::size_t>(message.from);
  clock_ = std::max(clock_, message.clock) + 1;
  heard_[from] = std::max(heard_[from], message.clock);
  switch (message.kind) {
    case ExclusionMessage::Kind::kRequest:
      requests_[from] = message.clock;
      return {{.kind = ExclusionMessage::Kind::kAcknowledge, .from = rank_, .to = message.from, .clock = clock_}};
    case ExclusionMessage::Kind::kRelease:
      requests_[from] = 0;
      return {};
    case ExclusionMessage::Kind::kAcknowledge:
      return {};
  }
  return {};
}

namespace {

constexpr std::string_view kStopWord = "stop";

std::string message_text(const ExclusionMessage& message) {
  return fmt::format("{} {} {}", static_cast<int>(message.kind), message.from, message.clock);
}

ExclusionMessage parse_message(const std::string& text, int to) {
  const std::vector<std::string> words = split(text, ' ');
  TRIREME_CHECK(words.size() == 3, "no message of a mutual exclusion: \"{}\"", text);
  return {.kind = static_cast<ExclusionMessage::Kind>(std::stoi(words[0])),
          .from = std::stoi(words[1]),
          .to = to,
          .clock = std::stoll(words[2])};
}

}  // namespace

MutualExclusion::MutualExclusion(ControlPlane& plane, std::string name)
    : plane_(plane), name_(std::move(name)), process_(plane.rank(), plane.ranks()), server_([this] { serve(); }) {}

MutualExclusion::~MutualExclusion() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  try {  // wakes the thread at once; without the plane it finds out by itself
    const std::string mine = box(plane_.rank());
    plane_.set(fmt::format("{}/{}", mine, plane_.add(mine, 1)), std::string(kStopWord));
  } catch (const Error&) {
  }
  server_.join();
}

/// Where messages for a rank lie: "…" counts them, "…/7" is the seventh. A sender takes the number first, so what one
/// rank sends another is read in its order.
std::string MutualExclusion::box(int rank) const { return fmt::format("trireme/exclusion/{}/{}", name_, rank); }

void MutualExclusion::send(const Messages& messages) {
  for (const ExclusionMessage& message : messages) {
    const std::string to = box(message.to);
    plane_.set(fmt::format("{}/{}", to, plane_.add(to, 1)), message_text(message));
  }
}

void MutualExclusion::serve() {
  constexpr std::chrono::milliseconds kLook{1000};
  const std::string mine = box(plane_.rank());
  for (std::int64_t next = 1;; ++next) {
    const std::string key = fmt::format("{}/{}", mine, next);
    std::optional<std::string> text;
    try {
      while (!text) {
        try {
          text = plane_.wait_for(key, kLook);
        } catch (const CommError&) {
          text = plane_.get(key);  // throws when the plane is lost; no message yet is no error
        }
        const std::lock_guard lock(mutex_);
        if (stopping_ && !text) return;
      }
      plane_.erase(key);
      if (*text == kStopWord) return;
      // Answers go out under the lock: what this rank sends must not be overtaken by a request that was made later.
      const std::lock_guard lock(mutex_);
      const Messages answers = process_.receive(parse_message(*text, plane_.rank()));
      sent_ += static_cast<std::int64_t>(answers.size());
      send(answers);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      lost_ = std::current_exception();
      changed_.notify_all();
      return;
    }
    changed_.notify_all();
  }
}

void MutualExclusion::lock(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (broken_) {
    throw CommError(fmt::format("mutual exclusion \"{}\": an earlier lock timed out", name_),
                    "end the run: a request that was sent cannot be taken back");
  }
  const Messages requests = process_.request();
  sent_ += static_cast<std::int64_t>(requests.size());
  send(requests);
  const bool granted = changed_.wait_for(lock, timeout, [&] { return lost_ || process_.may_enter(); });
  if (lost_) std::rethrow_exception(lost_);
  if (!granted) {
    broken_ = true;
    std::vector<std::string> names;
    for (const int rank : process_.waits_for()) names.push_back(fmt::format("rank {}", rank));
    throw CommError(
        fmt::format("rank {} waited {} ms for the mutual exclusion \"{}\": {} {} not answered, or {} before it",
                    process_.rank(), timeout.count(), name_, listed(names), names.size() == 1 ? "has" : "have",
                    names.size() == 1 ? "is" : "are"),
        "look whether these ranks live and use the same name; who holds it for long needs a longer timeout");
  }
  process_.enter();
  ++entries_;
}

void MutualExclusion::unlock() {
  const std::lock_guard lock(mutex_);
  const Messages releases = process_.release();
  sent_ += static_cast<std::int64_t>(releases.size());
  send(releases);
}

std::int64_t MutualExclusion::messages_sent() const {
  const std::lock_guard lock(mutex_);
  return sent_;
}

std::int64_t MutualExclusion::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

}  // namespace trireme::comm
