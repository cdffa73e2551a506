// Mailboxes of threads that run beside each other: everything once and in the order of its tag, whatever the delays;
// credit bounds what was not taken. Here, and not beside its users, so that the sanitizers look at it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/comm/mailbox_threads.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

std::vector<std::byte> numbered_mail(std::uint8_t number) { return std::vector<std::byte>(40, std::byte{number}); }

TEST(ThreadMailboxes, DeliverEverythingOnceAndInTheOrderOfItsTag) {
  constexpr int kCount = 4, kEach = 60;
  constexpr std::uint32_t kTags = 2;
  for (const std::uint64_t seed : {1, 2, 3}) {
    // Room for two mails of each sender: posts wait for credit all the time.
    const ThreadMail links{.latency = 20us, .jitter = 100us, .seed = seed, .credit_bytes = 100};
    run_thread_mailboxes(kCount, links, [&](Mailbox& mailbox) {
      std::map<std::pair<int, std::uint32_t>, std::uint8_t> next;
      int taken = 0;
      const auto note = [&](const Mail& mail) {
        ++taken;
        EXPECT_EQ(mail.bytes, numbered_mail(next[{mail.from, mail.tag}]++)) << "from " << mail.from;
      };
      for (int i = 0; i < kEach; ++i) {
        for (int to = 0; to < kCount; ++to) {
          if (to == mailbox.address()) continue;
          const auto tag = static_cast<std::uint32_t>(i) % kTags;
          const auto bytes = numbered_mail(static_cast<std::uint8_t>(i / static_cast<int>(kTags)));
          // Whoever only posted would wait for ever: all others do so too.
          while (!mailbox.try_post(to, tag, 0, bytes)) {
            if (const auto mail = mailbox.receive_for(1ms)) note(*mail);
          }
        }
      }
      while (taken < (kCount - 1) * kEach) note(mailbox.receive());
      EXPECT_EQ(mailbox.try_receive(), std::nullopt);
    });
  }
}

TEST(ThreadMailboxes, PriorityDoesNotBreakTheOrderOfATag) {
  std::latch posted(1);
  run_thread_mailboxes(2, {}, [&](Mailbox& mailbox) {
    if (mailbox.address() == 0) {
      mailbox.post(1, /*tag=*/0, /*priority=*/0, numbered_mail(0));
      mailbox.post(1, 0, 5, numbered_mail(1));
      mailbox.post(1, 1, 3, numbered_mail(2));
      posted.count_down();
      return;
    }
    posted.wait();
    for (const std::uint8_t number : {2, 0, 1}) EXPECT_EQ(mailbox.receive().bytes, numbered_mail(number));
  });
}

TEST(ThreadMailboxes, CreditBoundsWhatWasNotTaken) {
  std::latch posted(1);
  run_thread_mailboxes(2, {.credit_bytes = 100}, [&](Mailbox& mailbox) {
    if (mailbox.address() == 0) {
      int fitted = 0;
      while (mailbox.try_post(1, 0, 0, numbered_mail(0)) && fitted < 10) ++fitted;
      EXPECT_EQ(fitted, 2) << "of 40 bytes each";
      posted.count_down();
      mailbox.post(1, 0, 0, numbered_mail(1));  // until there is room
      return;
    }
    posted.wait();
    for (const std::uint8_t number : {0, 0, 1}) EXPECT_EQ(mailbox.receive().bytes, numbered_mail(number));
  });
}

TEST(ThreadMailboxes, WaitingForMailThatNobodySendsEndsAtItsDeadline) {
  try {
    run_thread_mailboxes(2, {.deadline = 50ms}, [](Mailbox& mailbox) {
      if (mailbox.address() == 1) mailbox.receive();
    });
    FAIL() << "it came to an end";
  } catch (const CommError& error) {
    EXPECT_THAT(error.message(), HasSubstr("got no mail"));
  }
}

TEST(ThreadMailboxes, AFailureEndsTheOthers) {
  try {
    run_thread_mailboxes(3, {}, [](Mailbox& mailbox) {
      if (mailbox.address() == 2) throw ConfigError("this one cannot");
      mailbox.receive();
    });
    FAIL() << "it came to an end";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message(), "this one cannot");
  }
}

}  // namespace
}  // namespace trireme::comm
