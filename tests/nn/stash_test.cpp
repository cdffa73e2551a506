#include "trireme/nn/stash.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/nn/tape.h"

namespace trireme::nn {
namespace {

using device::MemoryUse;
constexpr std::int64_t kElements = 4096, kFrame = 2 * 4 * kElements;  // two float tensors a frame

Tensors frame(int number) {
  return {at::full({kElements}, number, at::kFloat), at::full({64, kElements / 64}, -number, at::kFloat)};
}

TEST(Stash, GivesBackWhatItWasGivenInTheOrderOfTheTape) {
  device::RankMemory memory;
  Stash stash(&memory);
  Tape tape;
  constexpr int kFrames = 12;
  for (int i = 0; i < kFrames; ++i) {
    tape.push(frame(i), stash);
    tape.push({at::full({8}, i, at::kFloat)});  // what other layers keep stays here
  }
  EXPECT_EQ(tape.bytes(), kFrames * 8 * 4);
  EXPECT_EQ(memory.host.bytes_of(MemoryUse::kActivations), kFrames * kFrame);
  EXPECT_EQ(memory.device.bytes_of(MemoryUse::kActivations), kFrame);  // the newest
  for (int i = kFrames - 1; i >= 0; --i) {
    EXPECT_TRUE(at::equal(tape.pop(1)[0], at::full({8}, i, at::kFloat)));
    const Tensors back = tape.pop(2), expected = frame(i);
    for (std::size_t j = 0; j < 2; ++j) EXPECT_TRUE(at::equal(back[j], expected[j])) << "frame " << i;
    // The next one is on its way already.
    EXPECT_EQ(memory.device.bytes_of(MemoryUse::kActivations), i > 0 ? kFrame : 0);
    EXPECT_EQ(memory.host.bytes_of(MemoryUse::kActivations), i * kFrame);
  }
  EXPECT_TRUE(tape.empty());
  EXPECT_LE(memory.device.peak_of(MemoryUse::kActivations), 2 * kFrame);  // however deep
}

TEST(Stash, ServesSeveralTapesAtOnce) {
  device::RankMemory memory;
  Stash stash(&memory);
  std::vector<Tape> tapes(3);
  for (int i = 0; i < 9; ++i) tapes[static_cast<std::size_t>(i % 3)].push(frame(i), stash);
  for (const std::size_t tape : {1u, 0u, 2u}) {  // as a schedule may have it
    for (int i = 6; i >= 0; i -= 3) {
      const int number = i + static_cast<int>(tape);
      EXPECT_TRUE(at::equal(tapes[tape].pop(2)[1], frame(number)[1])) << number;
    }
  }
  EXPECT_EQ(memory.device.bytes(), 0);
  EXPECT_EQ(memory.host.bytes(), 0);
}

TEST(Stash, ATapeThatIsGivenUpLeavesNothingBehind) {
  device::RankMemory memory;
  Stash stash(&memory);
  {
    Tape tape;
    for (int i = 0; i < 5; ++i) tape.push(frame(i), stash);
    tape.pop(2);  // one more is on its way back
    Tape other;
    other.push(frame(9), stash);
    other = std::move(tape);
  }
  EXPECT_EQ(memory.device.bytes(), 0);
  EXPECT_EQ(memory.host.bytes(), 0);
}

/// Little's law holds for what is away and for the copies: everything that came has gone.
TEST(Stash, MetersFramesAndTheirCopies) {
  Stash stash;
  {
    std::vector<Tape> tapes(2);
    for (int i = 0; i < 8; ++i) tapes[static_cast<std::size_t>(i % 2)].push(frame(i), stash);
    EXPECT_EQ(stash.queue().arrivals, 8);
    EXPECT_EQ(stash.queue().departures, 0);
    for (int i = 0; i < 4; ++i) tapes[0].pop(2);
    EXPECT_EQ(stash.queue().departures, 4);
  }  // the other tape is given up
  const QueueReading frames = stash.queue();
  EXPECT_EQ(frames.departures, 8);
  EXPECT_NEAR(frames.occupancy, frames.sojourn, 1e-8);
  EXPECT_GT(frames.sojourn, 0);
  EXPECT_LE(frames.blocked, frames.seconds);
  QueueReading copies = stash.copies();
  for (int i = 0; i < 1000 && copies.departures < copies.arrivals; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    copies = stash.copies();
  }
  EXPECT_GE(copies.arrivals, 2 * 8 + 2 * 4) << "two tensors of each frame out, and of those that were taken in again";
  EXPECT_EQ(copies.arrivals, copies.departures);
  EXPECT_NEAR(copies.occupancy, copies.sojourn, 1e-8);
}

TEST(Stash, KeepsUndefinedTensorsAndRefusesAFrameOfAnotherSize) {
  Stash stash;
  Tape tape;
  tape.push({at::Tensor(), at::full({3}, 1, at::kLong)}, stash);
  tape.push(frame(1), stash);
  EXPECT_THROW(tape.pop(3), InternalError);
  const Tensors back = tape.pop(2);
  EXPECT_FALSE(back[0].defined());
  EXPECT_TRUE(at::equal(back[1], at::full({3}, 1, at::kLong)));
}

}  // namespace
}  // namespace trireme::nn
