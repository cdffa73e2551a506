// ps/manager.h -- who is a server and who a worker, epoch after epoch: the server manager of Li et al. 2014.
//
// A server that joins or wants to leave is first part of the chains of what it will have, or others of what it had
// (View::next): those who own the keys copy them while pushes go on. When all of them say that every copy is complete,
// the next epoch makes them owners. A server that dies is out at once: the next in each chain answers, and whoever
// follows at the end of a chain is brought up to date. Where a range has no copy left, the job cannot go on: `lost()`.
// Who is dead is not decided here: the control plane's heartbeat or the end of a connection tells.
// Depends on: message.h.
#pragma once

#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/ps/message.h"

namespace trireme::ps {

struct ManagerOptions {
  int address = 0;
  std::vector<int> servers, workers;  ///< of the first view
  int copies = 1, points = kRingPoints;
};

class Manager {
 public:
  /// The first view goes out at once.
  explicit Manager(const ManagerOptions& options);

  void receive(int from, const Message& message);
  /// Tells everybody that the job is over.
  void stop();
  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }

  const View& view() const { return view_; }
  /// Every range has as many copies as it should, and nobody is on their way in or out.
  bool whole() const { return view_.next.empty() && waiting_.empty() && reports_.size() == expected().size(); }
  /// Ranges that no living server has, and who was the last to go; empty: none.
  const std::vector<Segment>& lost() const { return lost_; }
  std::string lost_text() const;
  std::int64_t changes() const { return static_cast<std::int64_t>(view_.epoch) - 1; }

 private:
  struct Wish {
    int server;
    bool join;
  };
  std::set<int> expected() const;
  void announce();
  void advance();
  void remove(int node);

  const int address_;
  View view_;
  std::deque<Wish> waiting_;
  std::set<int> reports_;  // servers whose copies are complete in this epoch
  std::vector<int> gone_;
  std::vector<Segment> lost_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace trireme::ps
