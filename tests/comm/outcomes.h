// tests/comm/outcomes.h -- how a run ended on each rank, for tests in which it should not end well.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/thread_ranks.h"
#include "trireme/base/error.h"
#include "trireme/comm/rank.h"

namespace trireme::comm {

using namespace std::chrono_literals;

/// Far less than any deadline that is not meant to pass, and far more than any machine needs.
inline constexpr auto kSoon = std::chrono::seconds(20);

/// A deadline that is meant to pass: so long that a rank which is only slow, since the machine does something else for
/// a second, is not taken for one that never arrives.
inline constexpr auto kPatience = std::chrono::milliseconds(1500);

struct Outcome {
  std::string error;  // message of what was thrown; empty: nothing was
  std::string hint;
  bool because_of_other = false;  // a PeerFailure
  std::chrono::nanoseconds took{};
};

struct Outcomes {
  std::vector<Outcome> ranks;
  std::string rethrown;  // by run_ranks
  const Outcome& operator[](int rank) const { return ranks[static_cast<std::size_t>(rank)]; }
};

inline Outcomes run_to_the_end(int ranks, const std::function<void(Rank&)>& body, const RanksOptions& options) {
  Outcomes out;
  out.ranks.resize(static_cast<std::size_t>(ranks));
  try {
    run_ranks(
        ranks,
        [&](Rank& self) {
          Outcome& outcome = out.ranks[static_cast<std::size_t>(self.rank())];
          const auto started = std::chrono::steady_clock::now();
          const auto end = [&](const std::exception& error) {
            outcome.took = std::chrono::steady_clock::now() - started;
            outcome.error = error.what();
          };
          try {
            body(self);
          } catch (const Error& error) {
            end(error);
            outcome.hint = error.hint();
            outcome.because_of_other = dynamic_cast<const PeerFailure*>(&error) != nullptr;
            throw;
          } catch (const std::exception& error) {
            end(error);
            throw;
          }
        },
        options);
  } catch (const std::exception& error) {
    out.rethrown = error.what();
  }
  return out;
}

/// Keeps a rank out of the way until the others are done with it.
class Gate {
 public:
  void open() { open_ = true; }
  void wait() const {
    while (!open_) std::this_thread::sleep_for(1ms);
  }

 private:
  std::atomic<bool> open_{false};
};

}  // namespace trireme::comm
