#include "trireme/comm/control/switchboard.h"

#include <algorithm>
#include <utility>

#include "trireme/base/sha256.h"
#include "trireme/comm/control/listener.h"

namespace trireme::comm::control {
namespace {

// A timeout off the wire: any number may be there.
Clock::time_point due(Clock::time_point now, std::int64_t ms) {
  constexpr std::int64_t kYearMs = 365LL * 24 * 3600 * 1000;
  return now + std::chrono::milliseconds(std::clamp<std::int64_t>(ms, 0, kYearMs));
}

}  // namespace

Switchboard::Switchboard(const TcpControlOptions& options)
    : ranks_(options.ranks),
      job_id_(options.job_id),
      token_(options.token),
      heartbeat_timeout_(options.heartbeat_timeout),
      own_rank_(options.rank),
      seats_(static_cast<std::size_t>(options.ranks)) {}

void Switchboard::receive(Caller caller, const Message& message, Time now) {
  if (!knows(caller)) {
    if (message.type == MessageType::kProof && challenged_.contains(caller)) {
      check_proof(caller, message, now);
    } else if (message.type == MessageType::kHello && !challenged_.contains(caller)) {
      hello(caller, message, now);
    } else {
      throw WireError("it sent a request before saying who it is");
    }
    return;
  }
  heard(caller, now);
  const int rank = rank_of_.at(caller);
  switch (message.type) {
    case MessageType::kHeartbeat:
      send(caller, {.type = MessageType::kHeartbeat});
      return;
    case MessageType::kBye:
      leave(rank);
      send(caller, {.type = MessageType::kBye}, /*close_after=*/true);
      return;
    case MessageType::kSet:
    case MessageType::kGet:
    case MessageType::kWait:
    case MessageType::kAdd:
    case MessageType::kErase:
      request(caller, message, now);
      return;
    case MessageType::kAnnounce:
      if (message.number < 0 || message.number > static_cast<std::int64_t>(Notice::Kind::kRefused)) {
        throw WireError(fmt::format("it announced a notice of the unknown kind {}", message.number));
      }
      announce(static_cast<Notice::Kind>(message.number), rank, message.value);
      return;
    case MessageType::kAsk:
      ask(caller, message, now);
      return;
    case MessageType::kAnswer:
      answer(caller, message);
      return;
    case MessageType::kHello:
    case MessageType::kWelcome:
    case MessageType::kRefused:
    case MessageType::kReply:
    case MessageType::kFailure:
    case MessageType::kNotice:
    case MessageType::kQuestion:
    case MessageType::kChallenge:
    case MessageType::kProof:
      break;
  }
  throw WireError(fmt::format("it sent a message of type {}, which only a server may, or may twice",
                              static_cast<int>(message.type)));
}

std::string Switchboard::objection(const Message& message) const {
  if (message.key != job_id_) {
    return "it serves another job: its TRIREME_JOB_ID is not this process's; give the jobs different ports";
  }
  if (message.number != ranks_) {
    return fmt::format("it serves {} ranks, and this process was told of {}; are these two jobs on one port?", ranks_,
                       message.number);
  }
  if (message.rank < 0 || message.rank >= ranks_) {
    return fmt::format("there is no rank {} among {} ranks", message.rank, ranks_);
  }
  switch (seats_[static_cast<std::size_t>(message.rank)].state) {
    case Seat::State::kAbsent:
      return {};
    case Seat::State::kHere:
      return fmt::format("another process takes part as rank {} already; give each process a rank of its own",
                         message.rank);
    case Seat::State::kGone:
      return fmt::format("rank {} took part before and is gone, and a rank cannot come back; restart all ranks",
                         message.rank);
  }
  return {};
}

void Switchboard::refuse(Caller caller, std::string why) {
  send(caller, {.type = MessageType::kRefused, .value = std::move(why)}, /*close_after=*/true);
}

// Whoever has not proved anything learns nothing else of the job.
void Switchboard::hello(Caller caller, const Message& message, Time now) {
  if (token_.empty()) {
    if (message.flag) {
      refuse(caller,
             "this process has a token (TRIREME_TOKEN, TRIREME_TOKEN_FILE) and rank 0 has none; give it to all");
    } else if (strangers_.contains(caller)) {
      refuse(caller,
             "rank 0 has no token, so only processes of its user on its machine may join; set TRIREME_TOKEN_FILE for "
             "all ranks to a file of mode 0600 that holds the same secret");
    } else {
      welcome(caller, message, now);
    }
    return;
  }
  if (!message.flag || message.value.size() != kNonceBytes) {
    refuse(caller,
           "rank 0 has a token and this process has none; set TRIREME_TOKEN or TRIREME_TOKEN_FILE for all ranks");
    return;
  }
  const Greeting greeting{.rank_nonce = message.value,
                          .server_nonce = random_bytes(kNonceBytes),
                          .job_id = message.key,
                          .rank = message.rank,
                          .ranks = static_cast<int>(message.number)};
  challenged_[caller] = {.hello = message, .greeting = greeting};
  send(caller, {.type = MessageType::kChallenge,
                .key = greeting.server_nonce,
                .value = prove(token_, Prover::kServer, greeting)});
}

void Switchboard::check_proof(Caller caller, const Message& message, Time now) {
  const Challenge challenge = std::move(challenged_.extract(caller).mapped());
  if (!same_secret(message.value, prove(token_, Prover::kRank, challenge.greeting))) {
    refuse(caller, "its token is not rank 0's; give all ranks the same TRIREME_TOKEN or TRIREME_TOKEN_FILE");
    return;
  }
  welcome(caller, challenge.hello, now);
}

void Switchboard::welcome(Caller caller, const Message& message, Time now) {
  if (std::string why = objection(message); !why.empty()) {
    refuse(caller, std::move(why));
    return;
  }
  seats_[static_cast<std::size_t>(message.rank)] = {.state = Seat::State::kHere, .caller = caller, .heard = now};
  rank_of_[caller] = message.rank;
  send(caller, {.type = MessageType::kWelcome});
  for (const Notice& notice : notices_) {
    send(caller, {.type = MessageType::kNotice,
                  .rank = notice.rank,
                  .number = static_cast<std::int64_t>(notice.kind),
                  .value = notice.text});
  }
}

void Switchboard::heard(Caller caller, Time now) {
  if (const auto found = rank_of_.find(caller); found != rank_of_.end()) {
    seats_[static_cast<std::size_t>(found->second)].heard = now;
  }
}

void Switchboard::request(Caller caller, const Message& message, Time now) {
  Message reply{.type = MessageType::kReply, .id = message.id};
  try {
    switch (message.type) {
      case MessageType::kSet:
        store_.set(message.key, message.value);
        serve_waits(message.key, message.value);
        break;
      case MessageType::kAdd:
        reply.number = store_.add(message.key, message.number);
        serve_waits(message.key, fmt::format("{}", reply.number));
        break;
      case MessageType::kErase:
        store_.erase(message.key);
        break;
      default:  // get and wait: the same, but for what an absent key means
        if (auto value = store_.get(message.key)) {
          reply.flag = true;
          reply.value = *std::move(value);
        } else if (message.type == MessageType::kWait) {
          waits_.emplace(message.key, Wait{caller, message.id, due(now, message.number)});
          return;
        }
    }
  } catch (const Error& error) {
    reply = {.type = MessageType::kFailure, .id = message.id, .key = error.hint(), .value = error.message()};
  }
  send(caller, std::move(reply));
}

void Switchboard::serve_waits(const std::string& key, const std::string& value) {
  const auto [begin, end] = waits_.equal_range(key);
  for (auto wait = begin; wait != end; ++wait) {
    send(wait->second.caller, {.type = MessageType::kReply, .flag = true, .id = wait->second.id, .value = value});
  }
  waits_.erase(begin, end);
}

void Switchboard::ask(Caller caller, const Message& message, Time now) {
  const bool here = message.rank >= 0 && message.rank < ranks_ &&
                    seats_[static_cast<std::size_t>(message.rank)].state == Seat::State::kHere;
  if (!here) {
    send(caller, {.type = MessageType::kReply, .id = message.id});
    return;
  }
  const std::uint64_t number = next_question_++;
  questions_[number] = {caller, message.id, message.rank, due(now, message.number)};
  send(seats_[static_cast<std::size_t>(message.rank)].caller,
       {.type = MessageType::kQuestion, .id = number, .value = message.value});
}

void Switchboard::answer(Caller caller, const Message& message) {
  const auto question = questions_.find(message.id);
  // Too late, or the asker is gone: no fault of the one who answers.
  if (question == questions_.end() || question->second.asked != rank_of_.at(caller)) return;
  send(question->second.asker,
       {.type = MessageType::kReply, .flag = message.flag, .id = question->second.id, .value = message.value});
  questions_.erase(question);
}

void Switchboard::announce(Notice::Kind kind, int rank, const std::string& text) {
  seats_[static_cast<std::size_t>(rank)].announced_failure = true;
  if (notices_.size() >= kMaxNotices) return;
  notices_.push_back({kind, rank, text});
  for (const auto& [caller, its_rank] : rank_of_) {
    if (its_rank == rank) continue;
    send(caller,
         {.type = MessageType::kNotice, .rank = rank, .number = static_cast<std::int64_t>(kind), .value = text});
  }
}

// The rank is here no more, for whatever reason: nothing is kept for it, and nobody waits for it.
void Switchboard::leave(int rank) {
  Seat& seat = seats_[static_cast<std::size_t>(rank)];
  seat.state = Seat::State::kGone;
  rank_of_.erase(seat.caller);
  std::erase_if(waits_, [&](const auto& wait) { return wait.second.caller == seat.caller; });
  std::erase_if(questions_, [&](const auto& entry) {
    const Question& question = entry.second;
    if (question.asked == rank) send(question.asker, {.type = MessageType::kReply, .id = question.id});
    return question.asked == rank || question.asker == seat.caller;
  });
  if (!seat.announced_failure) announce(Notice::Kind::kLeft, rank, fmt::format("rank {} left", rank));
}

void Switchboard::lose(int rank, const std::string& how) {
  // Last words count more than the silence after them: a rank that said why it ends is not lost.
  if (!seats_[static_cast<std::size_t>(rank)].announced_failure) {
    announce(Notice::Kind::kLost, rank, fmt::format("rank {} is lost: {}", rank, how));
  }
  leave(rank);
}

void Switchboard::gone(Caller caller, const std::string& how) {
  strangers_.erase(caller);
  challenged_.erase(caller);
  if (const auto found = rank_of_.find(caller); found != rank_of_.end()) lose(found->second, how);
}

void Switchboard::tick(Time now) {
  for (int rank = 0; rank < ranks_; ++rank) {
    const Seat& seat = seats_[static_cast<std::size_t>(rank)];
    // Were the serving process itself stopped, so would be this: a thread of it that had to wait for a core is no loss,
    // and giving it up would be one for all.
    if (rank == own_rank_) continue;
    if (seat.state != Seat::State::kHere || now - seat.heard <= heartbeat_timeout_) continue;
    const double silent_s = std::chrono::duration<double>(now - seat.heard).count();
    send(seat.caller,
         {.type = MessageType::kRefused,
          .value = fmt::format("it heard nothing from this rank for {:.1f} s and gave it up as lost", silent_s)},
         /*close_after=*/true);
    lose(rank,
         fmt::format("nothing was heard from it for {:.1f} s (its process is stopped or its host is down)", silent_s));
  }
  // The one who waits keeps its own time and has given up by now; only the memory of it is left here.
  std::erase_if(waits_, [&](const auto& wait) { return wait.second.until <= now; });
  std::erase_if(questions_, [&](const auto& question) { return question.second.until <= now; });
}

bool Switchboard::owes_last_words() const {
  const auto is_own_failure = [&](const Notice& notice) {
    return notice.rank == own_rank_ && (notice.kind == Notice::Kind::kFailed || notice.kind == Notice::Kind::kRefused);
  };
  const auto is_absent = [](const Seat& seat) { return seat.state == Seat::State::kAbsent; };
  return std::ranges::any_of(notices_, is_own_failure) && std::ranges::any_of(seats_, is_absent);
}

bool Switchboard::has_failed() const {
  return std::ranges::any_of(notices_, [](const Notice& notice) { return notice.kind != Notice::Kind::kLeft; });
}

void Switchboard::close_all(const std::string& why) {
  for (const auto& [caller, rank] : rank_of_) {
    send(caller, {.type = MessageType::kRefused, .value = why}, /*close_after=*/true);
  }
  rank_of_.clear();
}

void Switchboard::send(Caller to, Message message, bool close_after) {
  outgoing_.push_back({to, std::move(message), close_after});
}

}  // namespace trireme::comm::control
