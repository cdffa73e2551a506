#include "trireme/http/events.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tests/http/client.h"

namespace trireme::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(ServerSentEvents, AreLinesThatABrowserReads) {
  EXPECT_EQ(to_text({.data = "hello"}), "data: hello\n\n");
  EXPECT_EQ(to_text({.data = "{}", .name = "step", .id = "7-1"}), "event: step\nid: 7-1\ndata: {}\n\n");
  EXPECT_EQ(to_text({.data = "a\nb\r\nc\rd"}), "data: a\ndata: b\ndata: c\ndata: d\n\n");
  EXPECT_EQ(to_text({.data = ""}), "data: \n\n");
  EXPECT_EQ(to_text({.data = "x", .name = "a\nid: 9"}), "event: aid: 9\ndata: x\n\n");
}

std::chrono::steady_clock::time_point at_once() { return std::chrono::steady_clock::now(); }
const auto kNever = [] { return false; };

TEST(EventFeed, GivesEachFollowerWhatIsNewToIt) {
  EventFeed feed(10, 5);
  feed.publish("a", "1");
  EventFeed::Place fresh = feed.place_of(nullptr);
  feed.publish("a", "2");
  EXPECT_EQ(feed.wait(fresh, at_once(), kNever).text, "event: a\nid: 5-2\ndata: 2\n\n");
  EXPECT_EQ(feed.wait(fresh, at_once(), kNever).text, "");
  const std::string first = "5-1";
  EventFeed::Place back = feed.place_of(&first);
  EXPECT_FALSE(back.missed);
  feed.publish("a", "3");
  EXPECT_EQ(feed.wait(back, at_once(), kNever).text, "event: a\nid: 5-2\ndata: 2\n\nevent: a\nid: 5-3\ndata: 3\n\n");
}

TEST(EventFeed, SaysWhenEventsAreGone) {
  EventFeed feed(2, 5);
  EventFeed::Place slow = feed.place_of(nullptr);
  for (const char* data : {"1", "2", "3"}) feed.publish("", data);
  EXPECT_TRUE(feed.wait(slow, at_once(), kNever).missed);
  EXPECT_EQ(feed.wait(slow, at_once(), kNever).text, "id: 5-2\ndata: 2\n\nid: 5-3\ndata: 3\n\n");
  for (const std::string id :
       {"5-0", "4-2", "5-4", "5", "x", "", "5-", "5-2x", "18446744073709551616-1", "5-18446744073709551615"})
    EXPECT_TRUE(feed.place_of(&id).missed) << id;
  for (const std::string id : {"5-1", "5-2", "5-3"}) EXPECT_FALSE(feed.place_of(&id).missed) << id;
}

TEST(EventFeed, MetersEachEventForEachFollower) {
  EventFeed feed(2, 5);
  feed.publish("", "1");  // of nobody
  EventFeed::Place quick = feed.place_of(nullptr), slow = quick;
  const std::string first = "5-0";
  feed.join(quick);
  feed.join(slow);
  for (const char* data : {"2", "3", "4"}) {
    feed.publish("", data);
    std::this_thread::sleep_for(milliseconds(2));
    EXPECT_THAT(feed.wait(quick, at_once(), kNever).text, HasSubstr(data));
  }
  EXPECT_EQ(feed.queue().arrivals, 6);
  EXPECT_EQ(feed.queue().departures, 4) << "the slow one has lost its first";
  EXPECT_TRUE(feed.wait(slow, at_once(), kNever).missed);
  EXPECT_EQ(feed.wait(slow, at_once(), kNever).text, "id: 5-3\ndata: 3\n\nid: 5-4\ndata: 4\n\n");
  EventFeed::Place late = feed.place_of(&first);
  feed.join(late);
  EXPECT_EQ(feed.queue().arrivals, 8) << "what is kept is new to one that comes back";
  feed.leave(late);
  feed.leave(quick);
  feed.leave(slow);
  feed.publish("", "5");
  const QueueReading reading = feed.queue();
  EXPECT_EQ(reading.arrivals, 8);
  EXPECT_EQ(reading.departures, 8);
  EXPECT_NEAR(reading.occupancy, reading.sojourn, 1e-8);
  // Three of the quick one; what the slow one lost when the third came; what it took after the last.
  EXPECT_GE(reading.sojourn, 3 * 0.002 + 0.004 + 0.004 + 0.002);
}

class EventStreams : public ServerTest {
 protected:
  EventFeed feed_{4, 5};
};

TEST_F(EventStreams, ArriveOneByOneAndEnd) {
  Server& server = make();
  std::atomic<int> step = 0;
  server.get("/events", [&](const Request&) {
    return event_stream([&](EventWriter& events) {
      EXPECT_TRUE(events.connected());
      events.send({.data = "1"});
      EXPECT_TRUE(soon([&] { return step == 1; }));
      events.send({.data = "[DONE]"});
    });
  });
  server.start();
  RawClient client(port());
  client.send(get_text("/events", "Accept-Encoding: gzip\r\n"));
  const std::string head = client.receive_until("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("\r\nContent-Type: text/event-stream\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\nX-Accel-Buffering: no\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\nCache-Control: no-store\r\n"));
  EXPECT_THAT(head, ::testing::Not(HasSubstr("Content-Encoding")));
  EXPECT_EQ(client.receive_until("\n\n\r\n"), "9\r\ndata: 1\n\n\r\n") << "before the second one is there";
  step = 1;
  EXPECT_EQ(client.receive_until("0\r\n\r\n"), "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  EXPECT_EQ(client.ask(get_text("/hello")).body, "hello") << "on the same connection";
}

TEST_F(EventStreams, ThatFailAreNotTakenForWhole) {
  Server& server = make();
  server.get("/events", [&](const Request&) {
    return event_stream([](EventWriter& events) {
      events.send({.data = "1"});
      throw IoError("the disk is gone");
    });
  });
  server.start();
  divert_log([](std::string_view) {});
  const Answer answer = ask(get_text("/events"));
  server.stop();
  divert_log(nullptr);
  EXPECT_EQ(answer.body, "data: 1\n\n");
  EXPECT_FALSE(answer.whole);
}

TEST_F(EventStreams, ADisconnectIsToldAtOnce) {
  Server& server = make();
  std::atomic<int> state = 0;
  server.get("/events", [&](const Request& request) {
    request.client->on_change([&, client = request.client] {
      if (!client->connected()) state = 2;
    });
    return event_stream([&](EventWriter& events) {
      events.send({.data = "1"});
      state = 1;
      EXPECT_TRUE(soon([&] { return state == 2; }));  // nothing is written meanwhile
      EXPECT_FALSE(events.connected());
      EXPECT_FALSE(events.send({.data = "2"}));
      state = 3;
    });
  });
  server.start();
  RawClient client(port());
  client.send(get_text("/events"));
  ASSERT_TRUE(soon([&] { return state == 1; }));
  client.close();
  EXPECT_TRUE(soon([&] { return state == 3; }));
  EXPECT_TRUE(soon([&] { return connections() == 0; }));
}

TEST_F(EventStreams, AFeedIsFollowedFromWhereAClientWas) {
  Server& server = make();
  server.get("/events", [&](const Request& request) { return follow(feed_, request); });
  server.start();
  feed_.publish("step", "1");
  feed_.publish("step", "2");
  RawClient client(port());
  client.send(get_text("/events", "Last-Event-ID: 5-1\r\n"));
  EXPECT_THAT(client.receive_until("data: 2\n\n"), HasSubstr("event: step\nid: 5-2\n"));
  feed_.publish("step", "3");
  EXPECT_THAT(client.receive_until("data: 3\n\n"), HasSubstr("id: 5-3\n"));
  RawClient fresh(port());
  fresh.send(get_text("/events"));
  EXPECT_THAT(fresh.receive_until(":\n\n"), ::testing::Not(HasSubstr("data"))) << "only what is new";
  for (const char* data : {"4", "5", "6"}) feed_.publish("step", data);
  EXPECT_THAT(fresh.receive_until("data: 6\n\n"), HasSubstr("data: 4\n\n"));
  RawClient late(port());
  late.send(get_text("/events", "Last-Event-ID: 5-1\r\n"));
  EXPECT_THAT(late.receive_until("data: 3\n\n"), HasSubstr("event: reset\ndata: \n\n"));
  feed_.close();
  EXPECT_THAT(late.receive_until("\r\n0\r\n\r\n"), HasSubstr("data: 6\n\n"));
}

TEST_F(EventStreams, ASnapshotStandsForWhatWasMissed) {
  Server& server = make();
  std::atomic<int> snapshots = 0;
  server.get("/events", [&](const Request& request) {
    return follow(feed_, request, {.snapshot = [&] { return fmt::format("state {}", ++snapshots); }});
  });
  server.start();
  for (int i = 1; i <= 9; ++i) feed_.publish("step", std::to_string(i));
  RawClient fresh(port()), late(port());
  fresh.send(get_text("/events"));
  EXPECT_THAT(fresh.receive_until("\n\n\r\n"), HasSubstr("event: snapshot\ndata: state 1\n\n"));
  late.send(get_text("/events", "Last-Event-ID: 5-2\r\n"));
  EXPECT_THAT(late.receive_until("\n\n\r\n"), HasSubstr("event: snapshot\ndata: state 2\n\n"));
  feed_.publish("step", "10");
  EXPECT_THAT(late.receive_until("data: 10\n\n"), ::testing::Not(HasSubstr("data: 9\n")));
}

TEST_F(EventStreams, SilenceIsFilledWithHeartbeats) {
  Server& server = make();
  server.get("/events",
             [&](const Request& request) { return follow(feed_, request, {.heartbeat = milliseconds(10)}); });
  server.start();
  RawClient client(port());
  client.send(get_text("/events"));
  for (int i = 0; i < 3; ++i) EXPECT_THAT(client.receive_until("3\r\n:\n\n\r\n"), HasSubstr(":\n\n"));
}

TEST_F(EventStreams, SixtyFourFollowOneFeed) {
  Server& server = make({.limits = {.requests = 64}});
  server.get("/events", [&](const Request& request) { return follow(feed_, request); });
  server.start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->send(get_text("/events"));
  }
  for (auto& client : clients) ASSERT_THAT(client->receive_until(":\n\n"), HasSubstr("200 OK"));
  EXPECT_EQ(ask(get_text("/events")).status, 503);
  feed_.publish("step", "1");
  for (auto& client : clients) EXPECT_THAT(client->receive_until("data: 1\n\n"), HasSubstr("data: 1"));
  clients.clear();
  EXPECT_TRUE(soon([&] { return running() == 0; })) << "each was woken when its client went";
}

}  // namespace
}  // namespace trireme::http
