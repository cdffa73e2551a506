// Mailboxes in virtual time: clocks say what the options say, whatever the machine does, and the same each time.
#include "trireme/comm/mailbox_timed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using testing::HasSubstr;

std::vector<std::byte> of_bytes(std::size_t count) { return std::vector<std::byte>(count, std::byte{7}); }

TEST(TimedMailbox, MailTakesItsLatencyAndItsTransferOneBehindTheOther) {
  run_timed_mailboxes(2, {.latency_s = 0.5, .bytes_per_second = 1000}, [](TimedMailbox& mailbox) {
    if (mailbox.address() == 0) {
      mailbox.post(1, 3, 0, of_bytes(1000));
      mailbox.post(1, 3, 0, of_bytes(500));
      EXPECT_EQ(mailbox.now(), 0) << "who posts does not wait";
      return;
    }
    EXPECT_EQ(mailbox.try_receive(), std::nullopt);
    EXPECT_EQ(mailbox.receive_for(std::chrono::milliseconds(250)), std::nullopt);
    EXPECT_DOUBLE_EQ(mailbox.now(), 0.25);
    EXPECT_EQ(mailbox.receive(3).bytes.size(), 1000u);
    EXPECT_DOUBLE_EQ(mailbox.now(), 1.5);
    mailbox.receive(3);
    EXPECT_DOUBLE_EQ(mailbox.now(), 2.0);
    EXPECT_EQ(mailbox.queue().departures, 2);
    EXPECT_DOUBLE_EQ(mailbox.queue().sojourn, 3.5);
  });
}

TEST(TimedMailbox, PriorityDoesNotBreakTheOrderOfATag) {
  run_timed_mailboxes(2, {}, [](TimedMailbox& mailbox) {
    if (mailbox.address() == 0) {
      mailbox.post(1, /*tag=*/0, /*priority=*/0, of_bytes(1));
      mailbox.post(1, 0, 5, of_bytes(2));
      mailbox.post(1, 1, 3, of_bytes(3));
      return;
    }
    mailbox.advance(1);
    for (const std::size_t bytes : {3, 1, 2}) EXPECT_EQ(mailbox.receive().bytes.size(), bytes);
  });
}

/// Three that compute beside each other take as long as the slowest; who ends first is heard first.
TEST(TimedMailbox, ComputingBesideEachOtherTakesAsLongAsTheSlowest) {
  std::vector<int> order;
  double end = 0;
  run_timed_mailboxes(4, {.latency_s = 0.125}, [&](TimedMailbox& mailbox) {
    if (mailbox.address() == 0) {
      for (int i = 0; i < 3; ++i) order.push_back(mailbox.receive().from);
      end = mailbox.now();
      return;
    }
    for (int part = 0; part < 4; ++part) mailbox.advance(1.0 / mailbox.address());
    mailbox.post(0, 0, 0, of_bytes(8));
  });
  EXPECT_EQ(order, (std::vector<int>{3, 2, 1}));
  EXPECT_DOUBLE_EQ(end, 4.125);
}

/// Nothing arrives in the past: a mailbox whose clock has run ahead gives way to those that may still write to it.
TEST(TimedMailbox, AClockThatIsAheadWaitsForWhatOthersSendBeforeIt) {
  run_timed_mailboxes(2, {.latency_s = 0.25}, [](TimedMailbox& mailbox) {
    if (mailbox.address() == 0) {
      mailbox.advance(10);
      EXPECT_TRUE(mailbox.try_receive().has_value()) << "sent at 9, there at 9.25";
      EXPECT_FALSE(mailbox.try_receive().has_value()) << "sent at 9.9";
      return;
    }
    mailbox.advance(9);
    mailbox.post(0, 0, 0, of_bytes(1));
    mailbox.advance(0.9);
    mailbox.post(0, 0, 0, of_bytes(1));
  });
}

/// Jitter is drawn from the seed: the same each time, another with another seed, never out of a tag's order.
TEST(TimedMailbox, TheSameSeedGivesTheSameTimes) {
  const auto times = [](std::uint64_t seed) {
    std::vector<double> found;
    run_timed_mailboxes(3, {.latency_s = 0.1, .jitter_s = 0.3, .seed = seed}, [&](TimedMailbox& mailbox) {
      if (mailbox.address() == 0) {
        std::map<int, int> next;
        for (int i = 0; i < 20; ++i) {
          const Mail mail = mailbox.receive();
          EXPECT_EQ(static_cast<int>(mail.bytes.size()), ++next[mail.from]);
          found.push_back(mailbox.now());
        }
        return;
      }
      for (std::size_t i = 1; i <= 10; ++i) {
        mailbox.post(0, 0, 0, of_bytes(i));
        mailbox.advance(0.05);
      }
    });
    return found;
  };
  EXPECT_EQ(times(1), times(1));
  EXPECT_NE(times(1), times(2));
}

TEST(TimedMailbox, WaitingForMailThatNobodySendsIsAnErrorAndSoIsABodysOwn) {
  try {
    run_timed_mailboxes(2, {}, [](TimedMailbox& mailbox) { mailbox.receive(); });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CommError& error) {
    EXPECT_THAT(error.message(), HasSubstr("waits for mail, and so does everybody else"));
  }
  try {
    run_timed_mailboxes(2, {}, [](TimedMailbox& mailbox) {
      if (mailbox.address() == 1) throw IoError("the disk is gone");
      mailbox.receive();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_THAT(error.message(), HasSubstr("the disk is gone"));
  }
}

}  // namespace
}  // namespace trireme::comm
