// comm/elastic_world.h -- a world whose ranks come and go, as a value: which members make up which epoch, and when.
//
//              a member dies, or an edge was asked for and reached
//     running ------------------------------------------------------> agreeing <-- a death in any phase leads here
//        ^                                                                |          (and so does a member that gives
//        up) | all have moved                             all survivors rest  |
//     moving <------------------- replanning <----------------------------+----> waiting (too few; goes on when more
//     come)
//               rank 0 listens
//
// A member is a process with a number that no other ever gets. It rests (has left its last world and waits) or is in
// the epoch of the day. An epoch is formed only when nobody is in the one before, so two worlds never compute at once.
// Members that have been here longest come first: the oldest is rank 0. Those beyond the largest world that fits are
// spare. One that is asked to leave does so at a step edge, after which the others go on without it. Whoever calls this
// keeps clocks and sockets: elastic_coordinator.h.
// Depends on: base.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

enum class WorldPhase : std::uint8_t { kWaiting, kAgreeing, kReplanning, kMoving, kRunning, kEnded };
std::string_view name_of(WorldPhase phase);

struct ElasticRules {
  int min_ranks = 1;
  int max_ranks = 1 << 20;
  /// The largest world of at most so many ranks; 0: there is none.
  std::function<int(int available)> fit = [](int available) { return available; };
  /// So many epochs in a row may begin at the same step; 0: any number.
  int reset_limit = 0;
};

/// What a member that rests is told.
struct WorldAnswer {
  enum class Kind : std::uint8_t { kWait, kWorld, kEnd } kind = Kind::kWait;
  std::string why = {};  ///< of kWait and kEnd
  bool good_end = true;  ///< of kEnd: the run is finished
  std::int64_t epoch = 0;
  int rank = 0, ranks = 0;
  std::string meeting = {};  ///< where rank 0 listens; empty: not yet
  bool operator==(const WorldAnswer&) const = default;
};

class ElasticWorld {
 public:
  explicit ElasticWorld(ElasticRules rules) : rules_(std::move(rules)) {}

  /// The first epoch waits for so many ranks, where that is more than the least number.
  void set_first_ranks(int ranks) {
    first_ranks_ = ranks;
    settle();
  }

  // What happens. Whatever is late, of an older epoch or of somebody unknown changes nothing.

  /// The member has left `epoch` (0: it is new) and waits; asked again and again until it is told of a world.
  WorldAnswer rests(int member, std::int64_t epoch);
  /// Rank 0 of the epoch listens there.
  void listens(int member, std::int64_t epoch, const std::string& meeting);
  /// It has its part of the state, and goes on from `step`.
  void moved(int member, std::int64_t epoch, std::int64_t step);
  void lost(int member);
  /// It is to go: at the next step edge, or at once where it rests. One at a time: what each knows of the state, its
  /// neighbours know too. Whether that is news.
  bool leaves(int member);
  void finished(int member, std::int64_t epoch);
  void end(const std::string& why, bool good);

  // What follows.

  WorldPhase phase() const { return phase_; }
  std::int64_t epoch() const { return epoch_; }
  /// Of the epoch, by rank; those that died since are still listed.
  const std::vector<int>& members() const { return members_; }
  /// Whether the epoch is to end at the next step edge: a larger world is possible, or somebody of it is gone.
  bool wants_edge() const;
  /// Members that have not left the epoch though it is over.
  std::vector<int> awaited() const;
  int present() const { return static_cast<int>(seats_.size()); }
  const std::string& why() const { return why_; }
  bool good_end() const { return good_end_; }
  /// All of it, in a line: to compare two values, and for logs.
  std::string to_text() const;

 private:
  struct Seat {
    std::uint64_t order = 0;
    bool in_epoch = false, has_moved = false, leaves = false;
  };
  void settle();
  std::vector<int> by_age() const;
  /// Of those that stay, at most as many as there may be.
  int available() const;

  ElasticRules rules_;
  WorldPhase phase_ = WorldPhase::kWaiting;
  std::int64_t epoch_ = 0;
  std::vector<int> members_;
  std::map<int, Seat> seats_;  // of those that live
  std::uint64_t orders_ = 0;
  std::string meeting_;
  std::int64_t begun_at_ = -1;  // the step that the last epoch went on from
  int resets_ = 0;
  int first_ranks_ = 0;
  std::string why_;
  bool good_end_ = true;
};

}  // namespace trireme::comm
