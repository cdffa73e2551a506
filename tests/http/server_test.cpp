#include "trireme/http/server.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/errors.h"
#include "tests/http/client.h"

namespace trireme::http {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class HttpServer : public ServerTest {};

TEST_F(HttpServer, AnswersOneRequestAfterAnotherOnAConnection) {
  started();
  RawClient client(port());
  for (int i = 0; i < 3; ++i) {
    const Answer answer = client.ask(get_text("/hello"));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "hello");
    EXPECT_EQ(answer.header("Connection"), "(none)");
    EXPECT_EQ(answer.header("Content-Type"), "text/plain; charset=utf-8");
  }
  const Answer echoed = client.ask(post_text("/echo", "some\0 bytes"));
  EXPECT_EQ(echoed.body, "some\0 bytes");
}

TEST_F(HttpServer, SaysOfEveryAnswerWhatABrowserMayDoWithIt) {
  started();
  for (const char* target : {"/hello", "/nowhere"}) {
    const Answer answer = ask(get_text(target));
    EXPECT_EQ(answer.header("X-Content-Type-Options"), "nosniff") << target;
    EXPECT_THAT(answer.header("Content-Security-Policy"),
                AllOf(HasSubstr("default-src 'self'"), HasSubstr("frame-ancestors 'none'")));
    EXPECT_EQ(answer.header("Cache-Control"), "no-store");
    EXPECT_EQ(answer.header("Access-Control-Allow-Origin"), "(none)");
  }
}

TEST_F(HttpServer, TakesRequestsThatComeTogether) {
  started();
  RawClient client(port());
  client.send(get_text("/hello") + post_text("/echo", "one") + get_text("/nowhere") + post_text("/echo", "two") +
              "\r\n" + get_text("/hello"));
  EXPECT_EQ(client.answer().body, "hello");
  EXPECT_EQ(client.answer().body, "one");
  EXPECT_EQ(client.answer().status, 404);
  EXPECT_EQ(client.answer().body, "two");
  EXPECT_EQ(client.answer().body, "hello");
}

TEST_F(HttpServer, TakesARequestByteByByte) {
  started();
  RawClient client(port());
  for (const char byte : post_text("/echo", "slow")) client.send({&byte, 1});
  EXPECT_EQ(client.answer().body, "slow");
}

TEST_F(HttpServer, ReadsChunkedBodies) {
  started();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  RawClient client(port());
  const Answer answer = client.ask(head + "4\r\nwiki\r\n5;name=value\r\npedia\r\n0\r\n\r\n");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "wikipedia");
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_TRUE(client.ended());
  for (const char* broken : {"4\r\nwikiXX\r\n0\r\n\r\n", "zz\r\n", "4\r\nwi", "-1\r\nwiki\r\n0\r\n\r\n"}) {
    RawClient other(port());
    other.send(head + broken + "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
    other.send_no_more();
    const Answer refused = other.answer();
    EXPECT_TRUE(refused.status == 400 || refused.status == 413) << broken << refused.status;
    EXPECT_TRUE(other.ended()) << "nothing behind it is taken for a request";
  }
}

TEST_F(HttpServer, DoesNotTakeAPartOfChunksForTheWhole) {
  started();
  for (const char* part : {"", "4\r\n", "4\r\nwiki", "4\r\nwiki\r\n", "4\r\nwiki\r\n0\r\n"}) {
    RawClient client(port());
    client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(part);
    client.send_no_more();
    EXPECT_EQ(client.answer().status, 400) << part;
  }
}

TEST_F(HttpServer, AsksForABodyThatWaits) {
  started();
  RawClient client(port());
  client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.answer().status, 100);
  EXPECT_EQ(client.ask("body").body, "body");
  const Answer refused =
      client.ask("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(refused.status, 404) << "without having asked";
}

TEST_F(HttpServer, GivesHandlersWhatWasAsked) {
  Server& server = make();
  server.route("PUT", "/runs/{run}/notes", [](const Request& request) {
    return Response::text(fmt::format("{} {} {} {} {} {}", request.method, request.path, request.param("run"),
                                      *request.query_value("q"), *request.header("x-name"), request.body));
  });
  server.start();
  const Answer answer =
      ask("PUT /runs/a%2Fb%20%C3%A9/notes?q=1%262 HTTP/1.1\r\nHost: localhost\r\nX-Name: %41\r\nContent-Length: "
          "3\r\n\r\nabc");
  EXPECT_EQ(answer.body, "PUT /runs/a%2Fb%20%C3%A9/notes a/b \u00e9 1&2 %41 abc");
}

TEST_F(HttpServer, HeadHasTheHeadOfGet) {
  started();
  RawClient client(port());
  client.send("HEAD /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const Answer answer = client.answer(true);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("Content-Length"), "5");
  client.send("HEAD /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.answer(true).status, 404);
  EXPECT_EQ(client.ask(get_text("/hello")).body, "hello") << "no byte of a body stood between";
}

TEST_F(HttpServer, ReadsABodyOfGetToo) {
  started();
  RawClient client(port());
  EXPECT_EQ(client.ask("GET /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nGET ").body, "hello");
  EXPECT_EQ(client.ask(get_text("/hello")).body, "hello");
}

TEST_F(HttpServer, RefusesWithAReason) {
  started();
  const Answer no_method = ask("DELETE /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(no_method.status, 405);
  EXPECT_EQ(no_method.header("Allow"), "GET, HEAD");
  EXPECT_EQ(ask("BREW /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 405);
  EXPECT_EQ(ask(get_text("/../etc/passwd")).status, 400);
  EXPECT_EQ(ask("GET /hello HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 421);
  EXPECT_EQ(ask("GET /hello HTTP/1.1\r\n\r\n").status, 400);
  const Answer nonsense = ask("nonsense\r\n\r\n");
  EXPECT_EQ(nonsense.status, 400);
  EXPECT_EQ(nonsense.header("Connection"), "close");
  const auto error = nlohmann::json::parse(ask(get_text("/nowhere")).body).at("error");
  EXPECT_EQ(error.at("message"), "there is nothing at /nowhere");
  EXPECT_EQ(error.at("type"), "not_found_error");
}

TEST_F(HttpServer, DoesNotTakeARefusedBodyForARequest) {
  started();
  RawClient client(port());
  const Answer answer = client.ask(post_text("/nowhere", get_text("/hello")));
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_TRUE(client.ended());
}

TEST_F(HttpServer, NeedsAKeyForAllButProbes) {
  started({.access = {.keys = {"the-key"}}});
  const Answer without = ask(get_text("/hello"));
  EXPECT_EQ(without.status, 401);
  EXPECT_EQ(without.header("WWW-Authenticate"), "Bearer");
  EXPECT_EQ(nlohmann::json::parse(without.body).at("error").at("code"), "invalid_api_key");
  EXPECT_EQ(ask(get_text("/hello", "Authorization: Bearer another\r\n")).status, 401);
  EXPECT_EQ(ask(get_text("/hello", "Authorization: Bearer the-key\r\n")).status, 200);
  EXPECT_EQ(ask(get_text("/nowhere")).status, 401) << "which routes there are is not told either";
  EXPECT_EQ(ask(get_text("/metrics")).status, 401);
  EXPECT_EQ(ask(get_text("/health")).status, 200);
  EXPECT_EQ(ask(get_text("/ready")).status, 200);
  EXPECT_EQ(ask(post_text("/echo", "x")).status, 401);
}

TEST_F(HttpServer, HandlersFailWithWordsOrWithout) {
  Server& server = make();
  server.get("/refuses", [](const Request&) -> Response { throw HttpError(422, "not that", {.param = "seed"}); });
  server.get("/fails", [](const Request&) -> Response { throw IoError("/home/secret is not there"); });
  server.get("/odd", [](const Request&) -> Response { throw 17; });
  server.get("/splits", [](const Request&) {
    Response response;
    response.headers.emplace_back("X", "a\r\nSet-Cookie: b=c");
    return response;
  });
  server.post("/json", [](const Request& request) { return Response::json(json_body(request).dump()); });
  server.start();
  std::string logged;
  divert_log([&](std::string_view line) { logged += line; });
  EXPECT_THAT(ask(get_text("/refuses")).body,
              HasSubstr(R"("message":"not that","type":"invalid_request_error","param":"seed")"));
  const Answer failed = ask(get_text("/fails"));
  EXPECT_EQ(failed.status, 500);
  EXPECT_THAT(failed.body, Not(HasSubstr("secret")));
  EXPECT_EQ(ask(get_text("/odd")).status, 500);
  const Answer split = ask(get_text("/splits"));
  EXPECT_EQ(split.status, 500);
  EXPECT_EQ(split.header("Set-Cookie"), "(none)");
  server.stop();
  divert_log(nullptr);
  EXPECT_THAT(logged, HasSubstr("/home/secret is not there"));
}

TEST_F(HttpServer, ReadsJsonObjectsOnly) {
  Server& server = make();
  server.post("/json", [](const Request& request) { return Response::json(json_body(request).dump()); });
  server.start();
  const std::string type = "Content-Type: application/json; charset=utf-8\r\n";
  EXPECT_EQ(ask(post_text("/json", R"({"a":[1]})", type)).body, R"({"a":[1]})");
  EXPECT_EQ(ask(post_text("/json", R"({})")).status, 200);
  EXPECT_EQ(ask(post_text("/json", "{}", "Content-Type: text/plain\r\n")).status, 415);
  const Answer broken = ask(post_text("/json", R"({"a":)", type));
  EXPECT_EQ(broken.status, 400);
  EXPECT_THAT(broken.body, HasSubstr("byte 6 of 5"));
  EXPECT_EQ(ask(post_text("/json", "[1]", type)).status, 400);
  EXPECT_EQ(ask(post_text("/json",
                          R"({"a":")"
                          "\xff"
                          R"("})",
                          type))
                .status,
            400);
  EXPECT_EQ(
      ask(post_text("/json", R"({"a":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}", type)).status,
      400);
}

TEST_F(HttpServer, CompressesLargeAnswersForThoseWhoAsk) {
  Server& server = make();
  server.get("/large", [](const Request&) { return Response::json(fmt::format("{:0>100000}", 0)); });
  server.start();
  const Answer plain = ask(get_text("/large"));
  EXPECT_EQ(plain.body.size(), 100'000U);
  const Answer packed = ask(get_text("/large", "Accept-Encoding: gzip, br\r\n"));
  EXPECT_EQ(packed.header("Content-Encoding"), "gzip");
  EXPECT_EQ(packed.header("Vary"), "Accept-Encoding");
  EXPECT_LT(packed.body.size(), 1000U);
  EXPECT_TRUE(packed.body.starts_with("\x1f\x8b"));
  EXPECT_EQ(ask(get_text("/large", "Accept-Encoding: gzip;q=0\r\n")).header("Content-Encoding"), "(none)");
  EXPECT_EQ(ask(get_text("/hello", "Accept-Encoding: gzip\r\n")).header("Content-Encoding"), "(none)") << "too small";
}

TEST_F(HttpServer, AssetsAreAskedForAgainAndNotSentAgain) {
  Server& server = make();
  server.asset("/app.js", "text/javascript", "let a = 1;");
  server.start();
  const Answer first = ask(get_text("/app.js"));
  EXPECT_EQ(first.body, "let a = 1;");
  EXPECT_EQ(first.header("Content-Type"), "text/javascript");
  EXPECT_EQ(first.header("Cache-Control"), "no-cache");
  RawClient client(port());
  const Answer again = client.ask(get_text("/app.js", fmt::format("If-None-Match: {}\r\n", first.header("ETag"))));
  EXPECT_EQ(again.status, 304);
  EXPECT_EQ(again.header("Content-Length"), "(none)");
  EXPECT_EQ(client.ask(get_text("/hello")).body, "hello");
  EXPECT_EQ(ask(get_text("/app.js/../../etc/passwd")).status, 400);
  EXPECT_EQ(ask(get_text("/%2e%2e%2fetc%2fpasswd")).status, 404);
}

TEST_F(HttpServer, SpeaksWithOldClients) {
  Server& server = make();
  server.get("/stream", [](const Request&) {
    return Response::streamed("text/plain", [](Writer& writer) {
      writer.write("one ");
      writer.write("");
      writer.write("two");
    });
  });
  server.start();
  RawClient client(port());
  const Answer answer = client.ask("GET /stream HTTP/1.0\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(answer.header("Transfer-Encoding"), "(none)");
  EXPECT_EQ(answer.body, "one two");
  EXPECT_EQ(ask(get_text("/stream")).body, "one two");
}

TEST_F(HttpServer, CountsWhatItDoes) {
  started();
  ask(get_text("/hello"));
  ask(get_text("/hello"));
  ask(get_text("/nowhere/1"));
  ask("BREW /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
  // Counted when the answer has gone out, which a client may be ahead of.
  EXPECT_TRUE(soon([&] { return running() == 0; }));
  const Answer answer = ask(get_text("/metrics"));
  EXPECT_EQ(answer.header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(answer.body,
              HasSubstr("trireme_http_requests_total{route=\"/hello\",method=\"GET\",status=\"200\"} 2\n"));
  EXPECT_THAT(answer.body, HasSubstr("trireme_http_requests_total{route=\"\",method=\"GET\",status=\"404\"} 1\n"));
  EXPECT_THAT(answer.body, HasSubstr("trireme_http_requests_total{route=\"\",method=\"other\",status=\"404\"} 1\n"));
  EXPECT_THAT(answer.body, HasSubstr("trireme_http_request_seconds_count{route=\"/hello\"} 2\n"));
  EXPECT_THAT(answer.body, Not(HasSubstr("nowhere")));
  // Two of /hello; the other two were refused by their heads, and this one still runs.
  EXPECT_THAT(answer.body, HasSubstr("trireme_queue_arrivals_total{queue=\"http_requests\"} 3\n"));
  EXPECT_THAT(answer.body, HasSubstr("trireme_queue_departures_total{queue=\"http_requests\"} 2\n"));
  EXPECT_THAT(answer.body, HasSubstr("trireme_queue_arrivals_total{queue=\"http_connections\"} 5\n"));
}

TEST_F(HttpServer, LogsNeitherKeysNorQueries) {
  std::mutex mutex;
  std::string logged;
  const auto text = [&] {
    const std::lock_guard lock(mutex);
    return logged;
  };
  divert_log([&](std::string_view line) {
    const std::lock_guard lock(mutex);
    logged += line;
  });
  Server& server = started({.access = {.keys = {"the-key"}}, .access_log = LogLevel::kInfo});
  ask(get_text("/hello?key=the-key", "Authorization: Bearer the-key\r\n"));
  ask(get_text("/nowhere?key=the-key", "Authorization: Bearer the-key\r\n"));
  ask(get_text("/hello", "Authorization: Bearer the-keyX\r\n"));
  EXPECT_TRUE(soon([&] { return text().find("\" 401,") != std::string::npos; }));
  server.stop();
  divert_log(nullptr);
  EXPECT_THAT(logged, HasSubstr("\"GET /hello\" 200, "));
  EXPECT_THAT(logged, HasSubstr("\"GET /nowhere\" 404, "));
  EXPECT_THAT(logged, Not(HasSubstr("the-key")));
}

TEST_F(HttpServer, APortIsForOneServer) {
  started();
  EXPECT_GT(port(), 0);
  EXPECT_EQ(server_->url(), fmt::format("http://127.0.0.1:{}", port()));
  Metrics metrics;
  const std::string words = words_of([&] { Server({.port = port()}, metrics); });
  EXPECT_THAT(words, HasSubstr(fmt::format("port {} at 127.0.0.1 is taken", port())));
  EXPECT_THAT(words, HasSubstr("0 for any free one"));
  const int before = port();
  server_->stop();
  EXPECT_FALSE(RawClient(before).open());
  Server again({.port = before}, metrics);  // though connections to it have just been closed
  EXPECT_EQ(again.port(), before);
}

TEST_F(HttpServer, ElsewhereIsRefusedWithoutAKey) {
  EXPECT_THAT(words_of([&] { Server({.address = "0.0.0.0"}, metrics_); }), HasSubstr("no API key"));
  EXPECT_THAT(words_of([&] { Server({.address = "no such host!"}, metrics_); }), HasSubstr("no such host!"));
  EXPECT_THAT(words_of([&] { Server({.port = 70000}, metrics_); }), HasSubstr("70000"));
  Server open({.address = "0.0.0.0", .access = {.keys = {"k"}}}, metrics_);
  EXPECT_GT(open.port(), 0);
}

}  // namespace
}  // namespace trireme::http
