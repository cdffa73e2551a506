// comm/control/switchboard.h -- what the control plane's server decides: messages in, messages out.
//
// It knows who is here, who waits for which key, who asked whom, and what was announced; it has no socket, no thread
// and no clock of its own, so every decision can be tested as a value. tcp_server.cpp moves the bytes. Depends on:
// base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "trireme/comm/control.h"
#include "trireme/comm/control/socket.h"
#include "trireme/comm/control/store.h"
#include "trireme/comm/control/token.h"
#include "trireme/comm/control/wire.h"

namespace trireme::comm::control {

class Switchboard {
 public:
  using Caller = std::uint64_t;  // a connection, never reused
  using Time = Clock::time_point;

  struct Outgoing {
    Caller to;
    Message message;
    bool close_after = false;
  };

  explicit Switchboard(const TcpControlOptions& options);

  /// The caller is not known to be a process of this user: without a token it is not let in.
  void distrust(Caller caller) { strangers_.insert(caller); }
  /// Throws WireError when the caller may not say that: its connection must be dropped.
  void receive(Caller caller, const Message& message, Time now);
  /// Any bytes from the caller: it lives.
  void heard(Caller caller, Time now);
  /// The caller's connection ended; `how` completes "rank 3 is lost: ...". After a good-bye this is no news.
  void gone(Caller caller, const std::string& how);
  /// Lets pass what is overdue: silent ranks, waits, questions.
  void tick(Time now);
  /// Tells every rank still here that the server ends.
  void close_all(const std::string& why);

  /// What must be sent, in order; taken by the call.
  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  /// Whether the caller has been welcomed and not gone since.
  bool knows(Caller caller) const { return rank_of_.contains(caller); }
  std::size_t present() const { return rank_of_.size(); }
  /// Whether the serving rank has failed and some rank, which has never been here, does not know it.
  bool owes_last_words() const;
  /// Whether a rank has failed or is lost: all that are here know, and there is nothing more to wait for.
  bool has_failed() const;

 private:
  struct Seat {
    enum class State : std::uint8_t { kAbsent, kHere, kGone } state = State::kAbsent;
    Caller caller = 0;
    Time heard;
    bool announced_failure = false;
  };
  struct Wait {
    Caller caller;
    std::uint64_t id;
    Time until;
  };
  struct Question {
    Caller asker;
    std::uint64_t id;  // the asker's
    int asked;
    Time until;
  };

  void hello(Caller caller, const Message& message, Time now);
  void check_proof(Caller caller, const Message& message, Time now);
  void welcome(Caller caller, const Message& hello, Time now);
  void refuse(Caller caller, std::string why);
  /// Why this rank may not come in; empty when it may.
  std::string objection(const Message& message) const;
  void request(Caller caller, const Message& message, Time now);
  void ask(Caller caller, const Message& message, Time now);
  void answer(Caller caller, const Message& message);
  void announce(Notice::Kind kind, int rank, const std::string& text);
  void leave(int rank);
  void lose(int rank, const std::string& how);
  void serve_waits(const std::string& key, const std::string& value);
  void send(Caller to, Message message, bool close_after = false);

  int ranks_;
  std::string job_id_, token_;
  std::chrono::milliseconds heartbeat_timeout_;
  int own_rank_;  // of the process that serves

  std::vector<Seat> seats_;  // [rank]
  std::map<Caller, int> rank_of_;
  std::set<Caller> strangers_;
  struct Challenge {
    Message hello;
    Greeting greeting;
  };
  std::map<Caller, Challenge> challenged_;  // have said hello, and owe a proof
  Store store_;
  std::multimap<std::string, Wait> waits_;       // by key
  std::map<std::uint64_t, Question> questions_;  // by our own number
  std::uint64_t next_question_ = 1;
  std::vector<Notice> notices_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace trireme::comm::control
