#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/http/client.h"

namespace trireme::http {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class HttpLimits : public ServerTest {
 protected:
  /// A route whose handlers wait for open_gate().
  void add_gate(Server& server) {
    server.get("/wait", [this](const Request&) {
      std::unique_lock lock(mutex_);
      opened_.wait(lock, [&] { return open_; });
      return Response::text("done");
    });
  }
  void open_gate() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void TearDown() override {
    open_gate();
    ServerTest::TearDown();
  }

  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

TEST_F(HttpLimits, AHeadThatIsTooLongIsRefusedBeforeItEnds) {
  started({.limits = {.head = {.bytes = 1024, .headers = 10}}});
  EXPECT_EQ(ask("GET /" + std::string(5000, 'a')).status, 414);
  EXPECT_EQ(ask("GET / HTTP/1.1\r\nX: " + std::string(5000, 'a')).status, 431);
  EXPECT_EQ(ask(get_text("/hello", "A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\nF: 1\r\nG: 1\r\nH: 1\r\nI: 1\r\nJ: 1\r\n"))
                .status,
            431);
  EXPECT_EQ(ask(get_text("/hello", "X: " + std::string(900, 'a') + "\r\n")).status, 200);
}

TEST_F(HttpLimits, ABodyThatIsTooLongIsRefusedByItsHead) {
  started({.limits = {.body_bytes = 1000}});
  EXPECT_EQ(ask(post_text("/echo", std::string(1000, 'a'))).status, 200);
  EXPECT_EQ(ask("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n").status, 413);
  // A client that sends on hears it all the same, as its bytes are taken and thrown away.
  RawClient client(port());
  client.send(post_text("/echo", std::string(500'000, 'a')));
  EXPECT_EQ(client.answer().status, 413);
}

TEST_F(HttpLimits, ChunksAddUpToTheSameLimit) {
  started({.limits = {.body_bytes = 1000}});
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string small, large;
  for (int i = 0; i < 1000; ++i) small += "1\r\na\r\n";
  for (int i = 0; i < 11; ++i) large += "64\r\n" + std::string(100, 'a') + "\r\n";
  EXPECT_EQ(ask(head + small + "0\r\n\r\n").body, std::string(1000, 'a'));
  EXPECT_EQ(ask(head + large + "0\r\n\r\n").status, 413);
  EXPECT_EQ(ask(head + "ffffffffffff\r\n" + std::string(2000, 'a')).status, 413);
  EXPECT_EQ(ask(head + std::string(200'000, '0')).status, 400) << "a size without end";
}

TEST_F(HttpLimits, ASlowHeadIsCutAndCostsNoThread) {
  started({.limits = {.requests = 1, .head_time = milliseconds(60)}});
  RawClient half(port()), silent(port());
  half.send("GET /hello HTTP/1.1\r\nHost: local");
  EXPECT_EQ(ask(get_text("/hello")).status, 200) << "meanwhile";
  EXPECT_EQ(half.answer().status, 408);
  EXPECT_TRUE(half.ended());
  EXPECT_TRUE(silent.ended()) << "nothing was asked, so nothing is answered";
  // A byte now and then does not help: it is the whole head that has a time.
  RawClient drip(port());
  std::string got;
  for (int i = 0; i < 100 && got.empty(); ++i) {
    drip.send("G");
    got = drip.receive(10);
  }
  EXPECT_THAT(got, HasSubstr("HTTP/1.1 408"));
}

TEST_F(HttpLimits, ASlowBodyIsCut) {
  started({.limits = {.body_time = milliseconds(40)}});
  RawClient client(port());
  const Answer answer = client.ask("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(answer.status, 408);
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_TRUE(client.ended());
  RawClient half(port());
  half.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
  half.send_no_more();
  EXPECT_EQ(half.answer().status, 400);
}

TEST_F(HttpLimits, AnIdleConnectionIsClosed) {
  started({.limits = {.idle_time = milliseconds(30)}});
  RawClient client(port());
  EXPECT_EQ(client.ask(get_text("/hello")).status, 200);
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(soon([&] { return connections() == 0; }));
}

TEST_F(HttpLimits, MoreRequestsThanMayRunAreSentAwayAndProbesAreNot) {
  Server& server = make({.limits = {.requests = 2, .retry_after = std::chrono::seconds(7)}});
  add_gate(server);
  server.start();
  RawClient first(port()), second(port());
  first.send(get_text("/wait"));
  second.send(get_text("/wait"));
  ASSERT_TRUE(soon([&] { return running() == 2; }));
  const Answer answer = ask(get_text("/hello"));
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.header("Retry-After"), "7");
  EXPECT_THAT(answer.body, HasSubstr(R"("code":"busy")"));
  EXPECT_EQ(ask(get_text("/health")).status, 200);
  EXPECT_EQ(ask(get_text("/metrics")).status, 200);
  open_gate();
  EXPECT_EQ(first.answer().body, "done");
  EXPECT_EQ(second.answer().body, "done");
  EXPECT_TRUE(soon([&] { return ask(get_text("/hello")).status == 200; }));
}

TEST_F(HttpLimits, MoreConnectionsThanMayBeAreSentAway) {
  started({.limits = {.connections = 3}});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    EXPECT_EQ(clients.back()->ask(get_text("/hello")).status, 200);
  }
  RawClient another(port());
  const Answer answer = another.answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.header("Retry-After"), "1");
  EXPECT_TRUE(another.ended());
  EXPECT_EQ(clients[0]->ask(get_text("/hello")).status, 200) << "those that are there stay";
  another.close();
  clients.clear();
  EXPECT_TRUE(soon([&] { return ask(get_text("/hello")).status == 200; }));
}

TEST_F(HttpLimits, FourHundredConnectionsCostNoThreads) {
  started();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 400; ++i) clients.push_back(std::make_unique<RawClient>(port()));
  for (auto& client : clients) ASSERT_TRUE(client->open());
  for (std::size_t i = 0; i < clients.size(); i += 50) EXPECT_EQ(clients[i]->ask(get_text("/hello")).body, "hello");
  EXPECT_TRUE(soon([&] { return connections() == 400; }));
  clients.clear();
  EXPECT_TRUE(soon([&] { return connections() == 0; }));
}

TEST_F(HttpLimits, ManyClientsAtOnceGetTheirOwnAnswers) {
  started();
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      RawClient client(port());
      for (int i = 0; i < 25; ++i) {
        const std::string body = fmt::format("{}-{}", t, i);
        right += client.ask(post_text("/echo", body)).body == body;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

TEST_F(HttpLimits, AClientThatTakesNothingIsCut) {
  Server& server = make({.limits = {.write_time = milliseconds(50)}});
  std::atomic<bool> cut = false;
  server.get("/endless", [&](const Request&) {
    return Response::streamed("text/plain", [&](Writer& writer) {
      while (writer.write(std::string(4096, 'a'))) {
      }
      cut = true;
    });
  });
  server.start();
  RawClient client(port(), 4096);
  client.send(get_text("/endless"));
  EXPECT_TRUE(soon([&] { return cut.load(); }));
}

}  // namespace
}  // namespace trireme::http
