// Mailboxes of threads under a seeded scheduler: asynchronous algorithms that replay bit for bit.
#include "trireme/comm/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using testing::HasSubstr;

template <typename Number>
std::span<const std::byte> number_bytes(const Number& number) {
  return std::as_bytes(std::span(&number, 1));
}
template <typename Number>
Number number_in(const Mail& mail) {
  Number number{};
  EXPECT_EQ(mail.bytes.size(), sizeof number);
  std::memcpy(&number, mail.bytes.data(), sizeof number);
  return number;
}

/// Workers push gradients of a value that they hold a stale copy of; the server (address 0) applies them as they come
/// and answers with the value. What it ends with depends on the order, and on nothing else.
float asynchronous_descent(std::uint64_t seed, int breaks_per_mille = 0) {
  constexpr int kWorkers = 3, kSteps = 20;
  float value = 10;
  run_mailboxes(kWorkers + 1, {.seed = seed, .breaks_per_mille = breaks_per_mille}, [&](Mailbox& mailbox) {
    if (mailbox.address() == 0) {
      for (int i = 0; i < kWorkers * kSteps; ++i) {
        const Mail mail = mailbox.receive();
        value -= 0.1f * number_in<float>(mail);
        mailbox.post(mail.from, 1, 0, number_bytes(value));
      }
      return;
    }
    float mine = 10;
    for (int i = 0; i < kSteps; ++i) {
      const float gradient = mine * (1 + 0.01f * static_cast<float>(mailbox.address()));
      mailbox.post(0, 0, 0, number_bytes(gradient));
      mine = number_in<float>(mailbox.receive(1));
    }
  });
  return value;
}

TEST(Mailbox, AsynchronousAlgorithmsReplayBitForBit) {
  std::map<float, int> outcomes;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const float first = asynchronous_descent(seed);
    EXPECT_EQ(first, asynchronous_descent(seed)) << "seed " << seed;
    ++outcomes[first];
    EXPECT_LT(std::abs(first), 1.0f);
  }
  EXPECT_GT(outcomes.size(), 3u) << "seeds must be different interleavings";
}

TEST(Mailbox, BrokenConnectionsCostNoMail) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const float value = asynchronous_descent(seed, 30);
    EXPECT_EQ(value, asynchronous_descent(seed, 30));
    EXPECT_LT(std::abs(value), 1.0f);
  }
}

TEST(Mailbox, PostWaitsForCreditAndTryPostDoesNot) {
  run_mailboxes(2, {.seed = 3, .limits = {.credit_bytes = 8, .window_bytes = 8}}, [](Mailbox& mailbox) {
    constexpr std::uint64_t kCount = 50;
    if (mailbox.address() == 0) {
      int refused = 0;
      for (std::uint64_t i = 0; i < kCount; ++i) {
        if (!mailbox.try_post(1, 0, 0, number_bytes(i))) {
          ++refused;
          mailbox.post(1, 0, 0, number_bytes(i));
        }
      }
      EXPECT_GT(refused, 0);
      return;
    }
    for (std::uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(number_in<std::uint64_t>(mailbox.receive()), i);
    EXPECT_EQ(mailbox.try_receive(), std::nullopt);
  });
}

TEST(Mailbox, WaitingForMailThatNobodySendsIsAnError) {
  try {
    run_mailboxes(3, {}, [](Mailbox& mailbox) { mailbox.receive(); });
    FAIL() << "nobody noticed";
  } catch (const CommError& error) {
    EXPECT_THAT(error.message(), HasSubstr("waits for mail, and so does everybody else"));
  }
}

TEST(Mailbox, AFailureEndsTheOthers) {
  EXPECT_THROW(run_mailboxes(3, {.seed = 1},
                             [](Mailbox& mailbox) {
                               if (mailbox.address() == 2) throw IoError("disk on fire");
                               mailbox.receive();
                             }),
               IoError);
}

}  // namespace
}  // namespace trireme::comm
