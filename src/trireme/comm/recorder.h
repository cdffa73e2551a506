// comm/recorder.h -- the flight recorder: the last calls of a rank, readable while the rank is stuck.
//
// Records are words in relaxed atomics: writing one costs a few stores, and another thread (the control plane, a
// signal's watcher) may read at any time; a record that changes while it is read is left out.
// Depends on: call.h.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/comm/call.h"

namespace trireme::comm {

/// Nanoseconds of the steady clock.
std::int64_t now_ns();

class Recorder {
 public:
  /// kGiven: the GPU has it; the host does not wait for it.
  enum class State : std::uint8_t { kPending, kDone, kFailed, kGiven };
  struct Entry {
    std::uint64_t id = 0, sequence = 0;
    std::uint32_t group_number = 0;
    std::string group = {};
    CallKey key = {};
    int peer = -1;
    State state = State::kPending;
    std::int64_t started_ns = 0, ended_ns = 0;
  };

  explicit Recorder(int rank, std::size_t capacity = 1000);

  /// Groups are written as numbers; this gives one its number.
  std::uint32_t add_group(const std::string& name);

  std::uint64_t begin(std::uint32_t group, const CallKey& key, std::uint64_t sequence, int peer,
                      std::int64_t started_ns);
  void given(std::uint64_t id);
  void end(std::uint64_t id, State state, std::int64_t ended_ns);

  /// Oldest first.
  std::vector<Entry> entries() const;
  std::string to_json(const std::string& reason) const;
  /// Writes to_json() to DIR/flight-RANK.json, whole or not at all; says in the log when that fails. Never throws.
  void dump(const std::string& directory, const std::string& reason) const noexcept;

 private:
  struct Record {
    std::atomic<std::uint64_t> id{0};  // 0: empty or being written
    std::array<std::atomic<std::uint64_t>, 8> words{};
  };
  int rank_;
  std::vector<Record> records_;
  std::atomic<std::uint64_t> next_{1};
  mutable std::atomic<int> dumps_{0};  // several threads may dump at once: each to a file of its own first
  mutable std::mutex names_mutex_;
  std::vector<std::string> group_names_;
};

// SIGUSR1 writes the flight recorders of this process's ranks while they run, or hang.
//
// A signal has no object to be delivered to, so here, and only here, is a list of all recorders of the process.

/// A recorder as long as it can be asked for by the signal.
class FlightListing {
 public:
  FlightListing(const Recorder& recorder, std::string directory);
  ~FlightListing();
  FlightListing(const FlightListing&) = delete;
  FlightListing& operator=(const FlightListing&) = delete;

 private:
  const Recorder& recorder_;
};

/// From now on SIGUSR1 writes all listed recorders. A thread of its own does the writing, so it works whatever the
/// ranks are stuck in. Calling it again changes nothing.
void write_flights_on_signal();

}  // namespace trireme::comm
