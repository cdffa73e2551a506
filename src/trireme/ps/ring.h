// ps/ring.h -- which server has which keys: consistent hashing with virtual points (Li et al. 2014, section 4.3).
//
// Each server has `points` places on a ring of 2^64 by xxHash64("server/S/I") and owns what lies before each of them;
// copies are on the next distinct servers clockwise. Keys keep their order on the ring: key i of n stands at
// i 2^64 / n, so that a server's part is a few hundred ranges and not scattered keys. A server that comes takes keys
// from others and moves none between them; one that goes leaves its keys to those that have their copies.
// Depends on: segments.h.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/ps/segments.h"

namespace trireme::ps {

inline constexpr int kRingPoints = 256;

/// Keys and who has them: the first of the chain answers, the others have copies.
struct PlacedRange {
  Segment keys;
  std::vector<int> chain;
  bool operator==(const PlacedRange&) const = default;
};

class HashRing {
 public:
  explicit HashRing(const std::vector<int>& servers, int points = kRingPoints);

  /// The server that owns a place on the ring, and the next `copies` - 1 distinct ones; fewer where there are fewer.
  std::vector<int> chain(std::uint64_t place, int copies) const;
  /// All keys of `keys`, in order; neighbours with the same chain are one range.
  std::vector<PlacedRange> place(std::uint64_t keys, int copies) const;

 private:
  struct Point {
    std::uint64_t place;
    int server;
  };
  std::vector<int> chain_from(std::size_t point, int copies) const;

  std::vector<Point> points_;  // by place
  std::size_t servers_ = 0;
};

/// Who is there, as the manager tells everybody. Messages of another epoch are of another world.
struct View {
  std::uint64_t epoch = 0;   ///< from 1
  std::vector<int> servers;  ///< that own keys, sorted
  std::vector<int> next;     ///< while somebody joins or leaves: who will own keys; empty: nobody does
  std::vector<int> workers;  ///< sorted
  int copies = 1, points = kRingPoints;
  bool operator==(const View&) const = default;
};

/// The keys of a view. While servers join or leave, those that will have a range follow in its chain: they get every
/// update from then on, and what was before is copied to them meanwhile.
std::vector<PlacedRange> place(const View& view, std::uint64_t keys);
/// Those ranges of a placement whose chain begins with, or contains, the server.
std::vector<PlacedRange> owned_by(const std::vector<PlacedRange>& ranges, int server);
std::vector<PlacedRange> held_by(const std::vector<PlacedRange>& ranges, int server);

}  // namespace trireme::ps
