#include "trireme/http/head.h"

#include <gmock/gmock.h>

namespace trireme::http {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

int status_of(std::string_view bytes, const HeadLimits& limits = {}) {
  try {
    parse_head(bytes, limits);
  } catch (const HttpError& error) {
    EXPECT_FALSE(error.message().empty());
    return error.status();
  }
  return 200;
}

int target_status(std::string_view target) {
  try {
    parse_target(target);
  } catch (const HttpError& error) {
    return error.status();
  }
  return 200;
}

TEST(HttpHead, IsReadWithItsHeadersInOrder) {
  const Head head =
      parse_head("POST /a?b=1 HTTP/1.1\r\nHost: localhost:80\r\nX-One:  1 \r\ncontent-length: 12\r\n\r\n", {});
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.target, "/a?b=1");
  EXPECT_EQ(head.host, "localhost:80");
  EXPECT_EQ(head.content_length, 12U);
  EXPECT_FALSE(head.chunked || head.close || head.expects_continue);
  EXPECT_EQ(*head.header("x-one"), "1");
  EXPECT_EQ(head.header("X-Two"), nullptr);
  EXPECT_EQ(head.headers.size(), 3U);
}

TEST(HttpHead, EndsAtItsEmptyLine) {
  EXPECT_EQ(head_end("GET / HTTP/1.1\r\nHost: a\r\n\r\nrest"), 27U);
  EXPECT_EQ(head_end("GET / HTTP/1.1\r\nHost: a\r\n\r"), std::nullopt);
  EXPECT_EQ(head_end(""), std::nullopt);
  EXPECT_EQ(head_end("\r\n\r\nGET / HTTP/1.1\r\n\r\n"), 22U) << "empty lines before it are passed over";
  EXPECT_EQ(head_end("GET / HTTP/1.1\nHost: a\n\n"), 24U) << "given whole, to be refused at once";
  EXPECT_EQ(head_end(std::string_view("\x16\x03\x01\0\xa5", 5)), 5U) << "the beginning of TLS";
}

TEST(HttpHead, OneThatTwoReadersCouldReadInTwoWaysIsRefused) {
  const auto with = [](std::string_view line) {
    return status_of(fmt::format("POST / HTTP/1.1\r\nHost: a\r\n{}\r\n\r\n", line));
  };
  EXPECT_EQ(with("Content-Length: 5"), 200);
  EXPECT_EQ(with("Content-Length: 5\r\nContent-Length: 5"), 400);
  EXPECT_EQ(with("Content-Length: 5, 5"), 400);
  EXPECT_EQ(with("Content-Length: +5"), 400);
  EXPECT_EQ(with("Content-Length: -5"), 400);
  EXPECT_EQ(with("Content-Length: 0x5"), 400);
  EXPECT_EQ(with("Content-Length:"), 400);
  EXPECT_EQ(with("Content-Length: 99999999999999999999999"), 400);
  EXPECT_EQ(with("Transfer-Encoding: chunked"), 200);
  EXPECT_EQ(with("Transfer-Encoding: chunked\r\nContent-Length: 5"), 400);
  EXPECT_EQ(with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), 400);
  EXPECT_EQ(with("Transfer-Encoding: gzip, chunked"), 501);
  EXPECT_EQ(with("Transfer-Encoding: identity"), 501);
  EXPECT_EQ(with("Transfer-Encoding : chunked"), 400) << "a space before the colon";
  EXPECT_EQ(with("X: a\r\n b"), 400) << "folded";
  EXPECT_EQ(with("X: a\nY: b"), 400) << "a bare line feed";
  EXPECT_EQ(with("X: a\rY: b"), 400) << "a bare carriage return";
  EXPECT_EQ(with("no colon"), 400);
  EXPECT_EQ(with(": no name"), 400);
  EXPECT_EQ(with("X: \x01"), 400);
  EXPECT_EQ(with("Host: b"), 400) << "two hosts";
  EXPECT_EQ(with("Content-Encoding: gzip"), 415);
  EXPECT_EQ(with("Expect: miracles"), 417);
}

TEST(HttpHead, ARequestLineIsThreeWords) {
  const auto line = [](std::string_view text) { return status_of(fmt::format("{}\r\nHost: a\r\n\r\n", text)); };
  EXPECT_EQ(line("GET / HTTP/1.1"), 200);
  EXPECT_EQ(line("GET / HTTP/1.0"), 200);
  EXPECT_EQ(line("BREW /pot HTTP/1.1"), 200) << "whether a method is known is for the routes";
  EXPECT_EQ(line("GET / HTTP/2.0"), 505);
  EXPECT_EQ(line("GET /"), 400);
  EXPECT_EQ(line("GET  HTTP/1.1"), 400);
  EXPECT_EQ(line("GET /a b HTTP/1.1"), 400);
  EXPECT_EQ(line("GET /\x80 HTTP/1.1"), 400);
  EXPECT_EQ(line("G(T / HTTP/1.1"), 400);
  EXPECT_EQ(line("HEAD / HTTP/1.1\r\nContent-Length: 1"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
}

TEST(HttpHead, IsRefusedBeyondItsLimits) {
  const std::string long_target = fmt::format("GET /{} HTTP/1.1\r\n\r\n", std::string(100, 'a'));
  EXPECT_EQ(status_of(long_target, {.bytes = 64}), 414);
  const std::string long_header = fmt::format("GET / HTTP/1.1\r\nX: {}\r\n\r\n", std::string(100, 'a'));
  EXPECT_EQ(status_of(long_header, {.bytes = 64}), 431);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n", {.headers = 2}), 431);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nA: 1\r\nB: 2\r\n\r\n", {.headers = 2}), 200);
}

TEST(HttpHead, SaysWhetherTheConnectionStays) {
  const auto closes = [](std::string_view text) { return parse_head(text, {}).close; };
  EXPECT_FALSE(closes("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_FALSE(closes("GET / HTTP/1.1\r\nConnection: keep-alive\r\n\r\n"));
  EXPECT_TRUE(closes("GET / HTTP/1.1\r\nConnection: upgrade, Close\r\n\r\n"));
  EXPECT_TRUE(closes("GET / HTTP/1.0\r\n\r\n"));
}

TEST(HttpHead, OfAProxyNamesTheHostInItsTarget) {
  const Head head = parse_head("GET http://Example.org:81/a?b HTTP/1.1\r\nHost: localhost\r\n\r\n", {});
  EXPECT_EQ(head.host, "Example.org:81");
  EXPECT_EQ(head.target, "/a?b");
  EXPECT_EQ(parse_head("GET http://a?b HTTP/1.1\r\n\r\n", {}).target, "/?b");
  EXPECT_EQ(parse_head("GET http://a HTTP/1.1\r\n\r\n", {}).target, "/");
}

TEST(HttpTarget, IsCutAtSlashesBeforeItIsDecoded) {
  const Target target = parse_target("/runs/a%2Fb%20c/%C3%A9?x=1+2%2B3&flag&=v&y=%26");
  EXPECT_EQ(target.path, "/runs/a%2Fb%20c/%C3%A9");
  EXPECT_THAT(target.segments, ElementsAre("runs", "a/b c", "\u00e9"));
  EXPECT_THAT(target.query, ElementsAre(Pair("x", "1 2+3"), Pair("flag", ""), Pair("", "v"), Pair("y", "&")));
  EXPECT_THAT(parse_target("/").segments, ElementsAre(""));
  EXPECT_THAT(parse_target("/a/#b?c").query, ElementsAre());
}

TEST(HttpTarget, ThatLeadsElsewhereIsRefused) {
  EXPECT_EQ(target_status("/a/../b"), 400);
  EXPECT_EQ(target_status("/%2e%2E/etc/passwd"), 400);
  EXPECT_EQ(target_status("/a/."), 400);
  EXPECT_EQ(target_status("/..a/b.."), 200);
  EXPECT_EQ(target_status("/a%00b"), 400);
  EXPECT_EQ(target_status("/a%0d%0ab"), 400);
  EXPECT_EQ(target_status("/%"), 400);
  EXPECT_EQ(target_status("/%4"), 400);
  EXPECT_EQ(target_status("/%zz"), 400);
  EXPECT_EQ(target_status("/%-1"), 400);
  EXPECT_EQ(target_status("/%ff"), 400) << "no UTF-8";
  EXPECT_EQ(target_status("/%c0%ae%c0%ae/"), 400) << "dots the long way";
  EXPECT_EQ(target_status("/%ed%a0%80"), 400) << "half a surrogate pair";
  EXPECT_EQ(target_status("/%f4%90%80%80"), 400) << "beyond Unicode";
  EXPECT_EQ(target_status("/%f0%9f%9a%a3"), 200);
  EXPECT_EQ(target_status("*"), 400);
  EXPECT_EQ(target_status("http:/a"), 400);
}

TEST(HttpLists, NameAWordUnlessItsWeightIsNone) {
  EXPECT_TRUE(lists_word("br, GZIP", "gzip"));
  EXPECT_TRUE(lists_word("gzip;q=0.5", "gzip"));
  EXPECT_FALSE(lists_word("gzip;q=0", "gzip"));
  EXPECT_FALSE(lists_word("br, gzip; q=0.000", "gzip"));
  EXPECT_FALSE(lists_word("xgzip", "gzip"));
}

TEST(HttpErrors, AreTheObjectThatOpenAisClientsRead) {
  const Response response = HttpError(404, "no model \"a\"", {.code = "model_not_found", .param = "model"}).response();
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(
      response.body,
      R"({"error":{"message":"no model \"a\"","type":"not_found_error","param":"model","code":"model_not_found"}})");
  EXPECT_THAT(HttpError(400, "bad \xff").response().body,
              HasSubstr(R"("type":"invalid_request_error","param":null,"code":null)"));
}

TEST(HttpResponses, HeadersThatWouldBeTwoAreRefused) {
  EXPECT_THROW(Response().set("X", "a\r\nSet-Cookie: b"), InternalError);
  EXPECT_THROW(Response().set("X Y", "a"), InternalError);
  EXPECT_THAT(Response().set("x", "1").set("X", "2").headers, ElementsAre(Pair("X", "2")));
}

}  // namespace
}  // namespace trireme::http
