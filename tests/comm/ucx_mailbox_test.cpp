// Mailboxes over UCX, several in one process: whatever breaks, each message once, in the order of its tag.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/comm/control.h"
#include "trireme/comm/mailbox.h"
#include "trireme/comm/process.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class UcxMailboxes : public testing::Test {
 protected:
  void SetUp() override {
    try {
      load_ucx();
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.message();
    }
  }
};

struct PlannedMail {
  int from, to;
  std::uint32_t tag;
  int priority;
  std::size_t bytes;
  std::uint64_t index;  // of its sender and tag to that receiver
};

/// What everybody is going to send; the same for everybody.
std::vector<PlannedMail> planned_mail(int boxes, int each, std::uint64_t seed) {
  const Random random(seed, "test/mail");
  std::uint64_t draws = 0;
  const auto draw = [&](std::uint64_t below) { return random.below(below, draws++); };
  std::map<std::tuple<int, int, std::uint32_t>, std::uint64_t> next;
  std::vector<PlannedMail> all;
  for (int from = 0; from < boxes; ++from) {
    for (int i = 0; i < each; ++i) {
      PlannedMail mail{.from = from,
                       .to = static_cast<int>(draw(static_cast<std::uint64_t>(boxes))),
                       .tag = static_cast<std::uint32_t>(draw(3)),
                       .priority = static_cast<int>(draw(3)),
                       .bytes = 24 + draw(draw(8) == 0 ? 150'000 : 500),  // long ones go by rendezvous
                       .index = 0};
      mail.index = next[{mail.from, mail.to, mail.tag}]++;
      all.push_back(mail);
    }
  }
  return all;
}

std::vector<std::byte> letter(const PlannedMail& mail) {
  std::vector<std::byte> bytes(mail.bytes, static_cast<std::byte>(mail.index * 7 + mail.tag));
  std::memcpy(bytes.data(), &mail.index, sizeof mail.index);
  return bytes;
}

/// One mailbox's life: sends what it is to send and takes what is for it, in whatever order that comes.
void exchange_mail(Mailbox& mailbox, const std::vector<PlannedMail>& all) {
  std::vector<const PlannedMail*> mine;
  std::size_t awaited = 0;
  std::map<std::pair<int, std::uint32_t>, std::vector<const PlannedMail*>> expected;
  for (const PlannedMail& mail : all) {
    if (mail.from == mailbox.address()) mine.push_back(&mail);
    if (mail.to != mailbox.address()) continue;
    ++awaited;
    expected[{mail.from, mail.tag}].push_back(&mail);
  }
  std::map<std::pair<int, std::uint32_t>, std::size_t> taken;
  const auto check = [&](const Mail& mail) {
    const auto& row = expected[{mail.from, mail.tag}];
    const std::size_t at = taken[{mail.from, mail.tag}]++;
    ASSERT_LT(at, row.size()) << "more than was sent";
    EXPECT_EQ(mail.bytes, letter(*row[at])) << "from " << mail.from << ", tag " << mail.tag << ", number " << at;
    EXPECT_EQ(mail.priority, row[at]->priority);
  };
  std::size_t got = 0;
  for (const PlannedMail* mail : mine) {
    // Never waits for credit alone, nor for mail alone: everybody doing so would be a deadlock.
    bool posted = false;
    while (!posted) {
      posted = mailbox.try_post(mail->to, mail->tag, mail->priority, letter(*mail));
      while (auto mail_here = mailbox.try_receive()) {
        check(*mail_here);
        ++got;
      }
      if (!posted) std::this_thread::sleep_for(1ms);
    }
  }
  for (; got < awaited; ++got) check(mailbox.receive());
  EXPECT_FALSE(mailbox.try_receive());
}

TEST_F(UcxMailboxes, EverythingArrivesOnceAndInOrderThroughBrokenConnections) {
  constexpr int kBoxes = 4;
  // Every endpoint's end crosses others' beginnings: hundreds of them.
  for (const int break_every : {0, 40, 12}) {
    auto planes = make_local_control(kBoxes);
    const auto all = planned_mail(kBoxes, 120, 11 + static_cast<std::uint64_t>(break_every));
    std::vector<std::thread> threads;
    for (int me = 0; me < kBoxes; ++me) {
      threads.emplace_back([&, me] {
        const auto mailbox = make_ucx_mailbox(*planes[static_cast<std::size_t>(me)],
                                              {.address = me,
                                               .limits = {.credit_bytes = 400'000, .window_bytes = 200'000},
                                               .deadline = 60s,
                                               .linger = 30s,
                                               .break_every = break_every});
        EXPECT_NO_THROW(exchange_mail(*mailbox, all));
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (HasFailure()) FAIL() << "connections broke after every " << break_every << " frames";
  }
}

TEST_F(UcxMailboxes, ANewProcessOfAnAddressTakesItsPlaceAndGetsNoMailOfTheFormer) {
  auto planes = make_local_control(3);
  const auto sender = make_ucx_mailbox(*planes[0], {.address = 0, .deadline = 30s, .linger = 10ms});
  const std::vector<std::byte> first(8, std::byte{1}), untaken(8, std::byte{2}), later(8, std::byte{3});
  {
    const auto former = make_ucx_mailbox(*planes[1], {.address = 7, .deadline = 30s, .linger = 10ms});
    sender->post(7, 0, 0, first);
    sender->post(7, 0, 0, untaken);
    EXPECT_EQ(former->receive().bytes, first);
  }
  // Another process of this address: what the former one did not take is returned, for nobody knows what it did.
  const auto next = make_ucx_mailbox(*planes[2], {.address = 7, .deadline = 30s, .linger = 10ms});
  next->post(0, 5, 0, later);
  EXPECT_EQ(sender->receive().bytes, later);
  const std::vector<Mail> returned = sender->take_returned();
  ASSERT_EQ(returned.size(), 1u);
  EXPECT_EQ(returned[0].bytes, untaken);
  EXPECT_EQ(returned[0].from, 7);
  sender->post(7, 0, 0, later);
  EXPECT_EQ(next->receive().bytes, later);
  EXPECT_FALSE(next->try_receive());
}

TEST_F(UcxMailboxes, MailMayBePostedBeforeItsReceiverIsThere) {
  auto planes = make_local_control(2);
  const auto early = make_ucx_mailbox(*planes[0], {.address = 0, .deadline = 30s});
  for (int i = 0; i < 3; ++i) early->post(1, 0, 0, std::vector<std::byte>(4, static_cast<std::byte>(i)));
  const auto late = make_ucx_mailbox(*planes[1], {.address = 1, .deadline = 30s});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(late->receive().bytes.at(0), static_cast<std::byte>(i));
}

TEST_F(UcxMailboxes, CreditAndDeadlinesHold) {
  auto planes = make_local_control(2);
  const auto sender = make_ucx_mailbox(
      *planes[0], {.address = 0, .limits = {.credit_bytes = 16, .window_bytes = 8}, .deadline = 100ms, .linger = 10ms});
  const auto receiver = make_ucx_mailbox(*planes[1], {.address = 1, .deadline = 100ms});
  const std::vector<std::byte> eight(8);
  EXPECT_TRUE(sender->try_post(1, 0, 0, eight));
  EXPECT_TRUE(sender->try_post(1, 0, 0, eight));
  EXPECT_FALSE(sender->try_post(1, 0, 0, eight));
  try {
    sender->post(1, 0, 0, eight);
    FAIL() << "beyond the credit";
  } catch (const CommError& error) {
    EXPECT_THAT(error.message(), HasSubstr("to mailbox 1, which has 16 bytes of ours not taken"));
  }
  // On a busy machine the way takes longer than these mailboxes wait.
  const auto received = [&] { return receiver->receive_for(30s).value_or(Mail{}).bytes; };
  EXPECT_EQ(received(), eight);
  const auto patience = std::chrono::steady_clock::now() + 30s;
  while (!sender->try_post(1, 0, 0, eight)) {  // what was taken is credit
    ASSERT_LT(std::chrono::steady_clock::now(), patience);
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(received(), eight);
  EXPECT_EQ(received(), eight);
  try {
    receiver->receive(9);
    FAIL() << "nobody sends that";
  } catch (const CommError& error) {
    EXPECT_THAT(error.message(), HasSubstr("mailbox 1 got no mail of tag 9"));
  }
}

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

TEST_F(UcxMailboxes, MailForADeadProcessKeepsItsDescriptorsBounded) {
  constexpr const char* kCard = "trireme/mail/address/7";
  auto planes = make_local_control(3);
  const auto sender = make_ucx_mailbox(*planes[0], {.address = 0, .deadline = 30s, .linger = 10ms});
  const std::vector<std::byte> first(8, std::byte{1}), untaken(8, std::byte{2}), later(8, std::byte{3});
  std::optional<std::string> card;
  {
    const auto former = make_ucx_mailbox(*planes[1], {.address = 7, .deadline = 30s, .linger = 10ms});
    sender->post(7, 0, 0, first);
    EXPECT_EQ(former->receive().bytes, first);
    card = planes[1]->get(kCard);
  }
  // As a process that was killed leaves it: nobody is there, and the directory says otherwise.
  ASSERT_TRUE(card);
  planes[1]->set(kCard, *card);
  sender->post(7, 0, 0, untaken);
  std::this_thread::sleep_for(1s);
  const std::ptrdiff_t before = open_descriptors();
  std::this_thread::sleep_for(5s);
  EXPECT_LE(open_descriptors(), before + 1);
  EXPECT_LE(before, 60) << "already after a second";
  // And who takes its place is found.
  const auto next = make_ucx_mailbox(*planes[2], {.address = 7, .deadline = 30s, .linger = 10ms});
  next->post(0, 5, 0, later);
  EXPECT_EQ(sender->receive().bytes, later);
  EXPECT_EQ(sender->take_returned().size(), 1u);
}

}  // namespace
}  // namespace trireme::comm
