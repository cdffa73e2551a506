#include <gmock/gmock.h>

#include <atomic>
#include <future>

#include "tests/http/client.h"

namespace trireme::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class HttpDrain : public ServerTest {};

TEST_F(HttpDrain, AnIdleServerStopsAtOnce) {
  started();
  RawClient client(port());
  EXPECT_EQ(client.ask(get_text("/hello")).status, 200);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(server_->drain(seconds(30)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(5));
  EXPECT_TRUE(client.ended());
  EXPECT_FALSE(RawClient(port()).open());
  server_->stop();  // once more is fine
}

TEST_F(HttpDrain, AStreamGoesOnWhileNewRequestsAreSentAway) {
  Server& server = make();
  std::atomic<bool> finish = false;
  server.get("/tokens", [&](const Request&) {
    return event_stream([&](EventWriter& events) {
      events.send({.data = "first"});
      EXPECT_TRUE(soon([&] { return finish.load(); }));
      EXPECT_TRUE(events.client().draining());
      events.send({.data = "last"});
    });
  });
  server.start();
  RawClient stream(port()), idle(port());
  EXPECT_EQ(idle.ask(get_text("/hello")).status, 200);
  stream.send(get_text("/tokens"));
  stream.receive_until("data: first\n\n");
  EXPECT_EQ(ask(get_text("/ready")).body, R"({"status":"ready"})");

  std::future<bool> drained = std::async(std::launch::async, [&] { return server.drain(seconds(30)); });
  EXPECT_TRUE(idle.ended()) << "nothing ran on it";
  EXPECT_TRUE(soon([&] { return ask(get_text("/ready")).status == 503; }));
  EXPECT_EQ(ask(get_text("/health")).status, 200);
  const Answer refused = ask(get_text("/hello"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr(R"("code":"draining")"));
  EXPECT_EQ(refused.header("Retry-After"), "1");
  EXPECT_EQ(refused.header("Connection"), "close");
  finish = true;
  EXPECT_THAT(stream.receive_until("0\r\n\r\n"), HasSubstr("data: last\n\n"));
  EXPECT_TRUE(stream.ended());
  EXPECT_TRUE(drained.get());
}

TEST_F(HttpDrain, FollowersOfAFeedEndByThemselves) {
  Server& server = make();
  EventFeed feed;
  server.get("/events", [&](const Request& request) { return follow(feed, request); });
  server.start();
  RawClient client(port());
  client.send(get_text("/events"));
  client.receive_until(":\n\n");
  EXPECT_TRUE(server.drain(seconds(30)));
  EXPECT_THAT(client.receive_until("0\r\n\r\n"), HasSubstr("0\r\n\r\n"));
}

TEST_F(HttpDrain, WhatDoesNotFinishInTimeIsCut) {
  Server& server = make();
  std::atomic<bool> saw_cut = false;
  server.get("/endless", [&](const Request&) {
    return event_stream([&](EventWriter& events) {
      events.send({.data = "first"});
      EXPECT_TRUE(soon([&] { return !events.connected(); }));
      saw_cut = !events.send({.data = "more"});
    });
  });
  server.start();
  RawClient client(port());
  client.send(get_text("/endless"));
  client.receive_until("data: first\n\n");
  EXPECT_FALSE(server.drain(milliseconds(20)));
  EXPECT_TRUE(saw_cut) << "its handler has returned";
  EXPECT_EQ(client.receive_until("0\r\n\r\n").find("0\r\n\r\n"), std::string::npos)
      << "and the client knows it is a part";
}

TEST_F(HttpDrain, AnAnswerUnderWayIsSentAndWhatFollowsIsNot) {
  Server& server = make();
  std::atomic<int> state = 0;
  server.get("/slow", [&](const Request&) {
    state = 1;
    EXPECT_TRUE(soon([&] { return state == 2; }));
    return Response::text("slow");
  });
  server.start();
  RawClient client(port());
  client.send(get_text("/slow") + get_text("/hello"));
  ASSERT_TRUE(soon([&] { return state == 1; }));
  std::future<bool> drained = std::async(std::launch::async, [&] { return server.drain(seconds(30)); });
  ASSERT_TRUE(soon([&] { return ask(get_text("/ready")).status == 503; }));
  state = 2;
  const Answer answer = client.answer();
  EXPECT_EQ(answer.body, "slow");
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_TRUE(client.ended()) << "what came behind it is not answered";
  EXPECT_TRUE(drained.get());
}

TEST_F(HttpDrain, ReadinessIsTheOwnersUntilThen) {
  std::atomic<bool> loaded = false;
  started({.is_ready = [&] { return loaded.load(); }});
  EXPECT_EQ(ask(get_text("/ready")).body, R"({"status":"starting"})");
  EXPECT_EQ(ask(get_text("/ready")).status, 503);
  loaded = true;
  EXPECT_EQ(ask(get_text("/ready")).status, 200);
}

TEST_F(HttpDrain, WhoConnectedBeforeTheEndIsToldOfIt) {
  make();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->send(get_text("/hello"));
  }
  server_->start();
  EXPECT_TRUE(server_->drain(seconds(30)));
  for (auto& client : clients) {
    const Answer answer = client->answer();
    EXPECT_TRUE(answer.status == 200 || answer.status == 503) << answer.status;
  }
}

TEST_F(HttpDrain, AServerThatNeverBeganStops) {
  make();
  EXPECT_TRUE(server_->drain(seconds(1)));
}

}  // namespace
}  // namespace trireme::http
