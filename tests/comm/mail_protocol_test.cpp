// The mailbox's state machine in a simulated world that loses, reorders and breaks things, drawn from a seed.
#include "trireme/comm/mail_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "trireme/base/random.h"

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}
std::string text_of(const Mail& mail) { return {reinterpret_cast<const char*>(mail.bytes.data()), mail.bytes.size()}; }

/// Some mailboxes and the frames between them.
class World {
 public:
  World(int count, MailLimits limits) : limits_(limits) {
    for (int i = 0; i < count; ++i) boxes_.push_back(std::make_unique<MailProtocol>(++incarnations_, limits));
  }
  int size() const { return static_cast<int>(boxes_.size()); }
  MailProtocol& operator[](int i) { return *boxes_[static_cast<std::size_t>(i)]; }

  void connect(int a, int b) {
    (*this)[a].connected(b);
    (*this)[b].connected(a);
    up_.insert(std::minmax(a, b));
    collect();
  }
  bool is_up(int a, int b) const { return up_.contains(std::minmax(a, b)); }
  /// With everything that is under way between them.
  void cut(int a, int b) {
    (*this)[a].disconnected(b);
    (*this)[b].disconnected(a);
    up_.erase(std::minmax(a, b));
    std::erase_if(flying, [&](const Flying& f) { return std::minmax(f.from, f.to) == std::minmax(a, b); });
  }
  /// The process of `a` ends and another takes its address: its connections are gone.
  void restart(int a) {
    for (int b = 0; b < size(); ++b) cut(a, b);
    boxes_[static_cast<std::size_t>(a)] = std::make_unique<MailProtocol>(++incarnations_, limits_);
  }
  void collect() {
    for (int i = 0; i < size(); ++i) {
      for (auto& [to, frame] : (*this)[i].take_outgoing()) flying.push_back({i, to, frame});
    }
  }
  void arrive(std::size_t which) {
    // Over the wire and back: what tests exchange is what travels.
    const Flying f = flying[which];
    flying.erase(flying.begin() + static_cast<std::ptrdiff_t>(which));
    const auto frame = decode_mail_frame(encode(f.frame));
    ASSERT_EQ(frame, f.frame);
    (*this)[f.to].receive(f.from, *frame);
    collect();
  }
  void settle() {
    collect();
    while (!flying.empty()) arrive(0);
  }

  struct Flying {
    int from, to;
    MailFrame frame;
  };
  std::vector<Flying> flying;

 private:
  const MailLimits limits_;
  std::uint64_t incarnations_ = 0;
  std::vector<std::unique_ptr<MailProtocol>> boxes_;
  std::set<std::pair<int, int>> up_;
};

std::vector<std::string> take_all(MailProtocol& box) {
  std::vector<std::string> texts;
  while (const auto mail = box.take()) texts.push_back(text_of(*mail));
  return texts;
}

TEST(MailProtocol, DeliversWhatWasPostedBeforeAnybodyWasConnected) {
  World world(2, {});
  world[0].post(1, 7, 0, bytes_of("early"));
  world.connect(0, 1);
  world.settle();
  const auto mail = world[1].take(7);
  ASSERT_TRUE(mail.has_value());
  EXPECT_EQ(*mail, (Mail{.from = 0, .tag = 7, .priority = 0, .bytes = bytes_of("early")}));
  world.settle();
  EXPECT_TRUE(world[0].settled());
}

void post_letters(World& world) {
  world[0].post(1, 1, 0, bytes_of("a1"));
  world.collect();  // on the wire
  world[0].post(1, 1, 0, bytes_of("a2"));
  world[0].post(1, 2, 9, bytes_of("b1"));
  world[0].post(1, 3, 5, bytes_of("c1"));
}

TEST(MailProtocol, PriorityOvertakesWhatIsBeyondTheWindow) {
  World world(2, {.credit_bytes = 1000, .window_bytes = 2});
  world.connect(0, 1);
  world.settle();
  post_letters(world);
  std::vector<std::string> order;
  while (!world.flying.empty()) {
    world.arrive(0);
    for (const std::string& text : take_all(world[1])) order.push_back(text);
  }
  EXPECT_THAT(order, ElementsAre("a1", "b1", "c1", "a2"));
}

TEST(MailProtocol, PriorityOvertakesWhatWaitsAtTheReceiver) {
  World world(2, {});
  world.connect(0, 1);
  world.settle();
  post_letters(world);
  world.settle();
  EXPECT_THAT(take_all(world[1]), ElementsAre("b1", "c1", "a1", "a2"));
}

TEST(MailProtocol, PriorityDoesNotBreakTheOrderOfATag) {
  World world(2, {});
  world.connect(0, 1);
  for (const auto& [text, priority] : {std::pair("one", 0), std::pair("two", 9), std::pair("three", 3)})
    world[0].post(1, 4, priority, bytes_of(text));
  world.settle();
  EXPECT_THAT(take_all(world[1]), ElementsAre("one", "two", "three"));
}

TEST(MailProtocol, CreditBoundsWhatIsOnItsWay) {
  World world(2, {.credit_bytes = 10, .window_bytes = 4});
  world.connect(0, 1);
  EXPECT_TRUE(world[0].may_post(1, 50)) << "a message larger than the credit goes alone";
  world[0].post(1, 0, 0, bytes_of("sixsix"));
  EXPECT_FALSE(world[0].may_post(1, 5));
  EXPECT_TRUE(world[0].may_post(1, 4));
  world.settle();
  EXPECT_FALSE(world[0].may_post(1, 5)) << "received is not handed out";
  EXPECT_EQ(world[1].held_bytes(0), 6u);
  take_all(world[1]);
  world.settle();
  EXPECT_TRUE(world[0].may_post(1, 10));
  EXPECT_EQ(world[0].outstanding_bytes(1), 0u);
}

TEST(MailProtocol, EmptyMailIsMailAndIsBoundedToo) {
  World world(2, {.credit_bytes = 3, .window_bytes = 3});
  world.connect(0, 1);
  for (int i = 0; i < 3; ++i) world[0].post(1, 0, 0, {});
  EXPECT_FALSE(world[0].may_post(1, 0));
  world.settle();
  EXPECT_THAT(take_all(world[1]), ElementsAre("", "", ""));
}

TEST(MailProtocol, MailToAnIncarnationThatIsGoneIsReturned) {
  World world(2, {});
  world.connect(0, 1);
  world[0].post(1, 1, 0, bytes_of("taken"));
  world.settle();
  EXPECT_THAT(take_all(world[1]), ElementsAre("taken"));
  world.settle();
  world[0].post(1, 1, 2, bytes_of("not taken"));
  world.settle();
  world.restart(1);
  world[0].post(1, 5, 0, bytes_of("for whoever is there"));  // not known yet that it is another one
  world.connect(0, 1);
  world.settle();
  const auto returned = world[0].take_returned();
  ASSERT_EQ(returned.size(), 2u);
  EXPECT_EQ(text_of(returned[0]), "not taken");
  EXPECT_EQ(text_of(returned[1]), "for whoever is there");
  EXPECT_THAT(take_all(world[1]), IsEmpty());
  world[0].post(1, 1, 0, bytes_of("again"));
  world.settle();
  EXPECT_THAT(take_all(world[1]), ElementsAre("again"));
}

TEST(MailProtocol, NoiseIsNoFrame) {
  EXPECT_EQ(decode_mail_frame(""), std::nullopt);
  EXPECT_EQ(decode_mail_frame("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::nullopt);
  const std::string whole = encode(MailFrame{.progress = {{1, 2, 1}}, .bytes = bytes_of("x")});
  for (std::size_t length = 0; length + 1 < whole.size(); ++length) {
    EXPECT_EQ(decode_mail_frame(std::string_view(whole).substr(0, length)), std::nullopt) << length;
  }
  std::string lying = whole;
  lying[37] = lying[38] = '\x7f';  // far more tags than there are bytes
  EXPECT_EQ(decode_mail_frame(lying), std::nullopt);
}

/// Numbered messages among random mailboxes through whatever the seed brings; at the end everything is connected and
/// everything must have come once, in the order of its sender and tag, and never more bytes than the credit allows.
void storm(std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const Random random(seed, "mail storm");
  std::uint64_t draws = 0;
  const auto draw = [&](std::uint64_t n) { return random.below(n, draws++); };
  const int count = 2 + static_cast<int>(draw(3));
  const MailLimits limits{.credit_bytes = 1 + draw(400), .window_bytes = 1 + draw(200)};
  World world(count, limits);
  constexpr std::uint32_t kTags = 3;
  std::map<std::tuple<int, int, std::uint32_t>, std::uint32_t> posted, taken;  // by sender, receiver and tag
  const auto look = [&](int to, const Mail& mail) {
    std::uint32_t number = 0;
    ASSERT_GE(mail.bytes.size(), sizeof number);
    std::memcpy(&number, mail.bytes.data(), sizeof number);
    ASSERT_EQ(number, (taken[{mail.from, to, mail.tag}]++)) << mail.from << " -> " << to << " tag " << mail.tag;
  };
  const auto any = [&] { return static_cast<int>(draw(static_cast<std::uint64_t>(count))); };
  for (int step = 0; step < 3000 && !testing::Test::HasFatalFailure(); ++step) {
    const int a = any(), b = any();
    switch (draw(8)) {
      case 0:
        if (!world.is_up(a, b)) world.connect(a, b);
        break;
      case 1:
        if (draw(20) == 0 && world.is_up(a, b)) world.cut(a, b);
        break;
      case 2:
      case 3: {
        const auto tag = static_cast<std::uint32_t>(draw(kTags));
        std::vector<std::byte> bytes(sizeof(std::uint32_t) + draw(60));
        if (!world[a].may_post(b, bytes.size())) break;
        std::memcpy(bytes.data(), &posted[{a, b, tag}], sizeof(std::uint32_t));
        ++posted[{a, b, tag}];
        world[a].post(b, tag, static_cast<int>(draw(4)), std::move(bytes));
        world.collect();
        break;
      }
      case 4:
        if (const auto mail = world[a].take(); mail) look(a, *mail);
        world.collect();
        break;
      default:
        if (!world.flying.empty()) world.arrive(draw(world.flying.size()));
    }
    const std::size_t most = std::max<std::size_t>(limits.credit_bytes, 64);
    ASSERT_LE(world[a].outstanding_bytes(b), most);
    ASSERT_LE(world[b].held_bytes(a), most);
  }
  for (int a = 0; a < count; ++a) {
    for (int b = a; b < count; ++b) {
      if (world.is_up(a, b)) world.cut(a, b);
      world.connect(a, b);
    }
  }
  for (bool moved = true; moved && !testing::Test::HasFatalFailure();) {
    world.settle();
    moved = false;
    for (int a = 0; a < count; ++a) {
      while (const auto mail = world[a].take()) {
        look(a, *mail);
        moved = true;
      }
    }
  }
  EXPECT_EQ(taken, posted);
  for (int a = 0; a < count; ++a) EXPECT_TRUE(world[a].settled()) << a;
}

TEST(MailProtocol, EverythingArrivesOnceAndInOrderThroughStorms) {
#if defined(TRIREME_TSAN) || defined(__SANITIZE_ADDRESS__)
  constexpr std::uint64_t kStorms = 10;
#else
  constexpr std::uint64_t kStorms = 60;
#endif
  for (std::uint64_t seed = 0; seed < kStorms && !HasFailure(); ++seed) storm(seed);
}

}  // namespace
}  // namespace trireme::comm
