// comm/mailbox_bodies.h -- the threads on which bodies with mailboxes run, and which letter goes first: what the kinds
// of mailboxes in one process share.
//
// Depends on: std.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

namespace trireme::comm {

/// Thrown into bodies that wait when another one has failed; never leaves run_bodies().
struct BodyStopped {};

/// Of letters, in the order in which they were posted: the one to hand out now. The highest priority goes first, of
/// several what was ready first; never before an earlier one of its sender and tag, whatever their priorities. The end
/// where there is none.
template <typename Letters, typename Ready>
auto letter_to_hand_out(Letters& letters, std::optional<std::uint32_t> tag, const Ready& is_ready) {
  auto best = letters.end();
  for (auto letter = letters.begin(); letter != letters.end(); ++letter) {
    if ((tag && letter->mail.tag != *tag) || !is_ready(*letter)) continue;
    const bool goes_first = best == letters.end() || letter->mail.priority > best->mail.priority ||
                            (letter->mail.priority == best->mail.priority && letter->ready < best->ready);
    if (!goes_first) continue;
    const bool overtakes = std::any_of(letters.begin(), letter, [&](const auto& earlier) {
      return earlier.mail.from == letter->mail.from && earlier.mail.tag == letter->mail.tag;
    });
    if (!overtakes) best = letter;
  }
  return best;
}

/// Runs body(me) on so many threads. Each ends with ended(me, failure): what it threw; null where it threw nothing or
/// was stopped.
template <typename Body, typename Ended>
void run_bodies(int count, const Body& body, const Ended& ended) {
  std::vector<std::thread> threads;
  for (int me = 0; me < count; ++me) {
    threads.emplace_back([&, me] {
      std::exception_ptr failure;
      try {
        body(me);
      } catch (const BodyStopped&) {
      } catch (...) {
        failure = std::current_exception();
      }
      ended(me, failure);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace trireme::comm
