#include "trireme/http/access.h"

#include <gmock/gmock.h>

#include "tests/errors.h"
#include "tests/files.h"
#include "trireme/base/log.h"

namespace trireme::http {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int status(const Access& access, std::string_view text, Need need = Need::kKey) {
  try {
    access.check(parse_head(fmt::format("{}\r\n\r\n", text), {}), need);
  } catch (const HttpError& error) {
    return error.status();
  }
  return 200;
}

Access on_loopback(AccessOptions options = {}) { return Access(std::move(options), "127.0.0.1", true); }

int host_status(const Access& access, std::string_view host) {
  return status(access, fmt::format("GET / HTTP/1.1\r\nHost: {}", host));
}

TEST(HttpAccess, AnswersForItsOwnNamesOnly) {
  const Access access = on_loopback({.allowed_hosts = {"box.lan", "::2"}});
  for (const char* host :
       {"localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000", "box.lan:443", "[::2]"})
    EXPECT_EQ(host_status(access, host), 200) << host;
  for (const char* host : {"evil.example", "localhost.evil.example", "evil.localhost", "127.0.0.2", "localhost:x",
                           "localhost:123456", "[::1", "[::1]x", "a:b:c", "localhost, evil.example"})
    EXPECT_NE(host_status(access, host), 200) << host;
  EXPECT_EQ(host_status(access, "evil.example:8000"), 421);
  EXPECT_EQ(status(access, "GET / HTTP/1.1"), 400) << "no host";
  EXPECT_EQ(status(access, "GET http://evil.example/ HTTP/1.1\r\nHost: localhost"), 421) << "the target's host counts";
  EXPECT_EQ(status(access, "GET / HTTP/1.1\r\nHost: evil.example", Need::kNothing), 421) << "probes too";
}

TEST(HttpAccess, AtAllAddressesEachOfThemIsAName) {
  const Access access({.keys = {"secret-key"}}, "0.0.0.0", false);
  const auto with_key = [&](std::string_view host) {
    return status(access, fmt::format("GET / HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer secret-key", host));
  };
  EXPECT_EQ(with_key("10.1.2.3:8000"), 200);
  EXPECT_EQ(with_key("[fe80::1]:8000"), 200);
  EXPECT_EQ(with_key("evil.example"), 421);
  EXPECT_EQ(with_key("10.1.2.3.evil.example"), 421);
}

TEST(HttpAccess, ElsewhereThanOnThisMachineNeedsAKey) {
  const std::string words = words_of([] { Access({}, "0.0.0.0", false); });
  EXPECT_THAT(words, HasSubstr("0.0.0.0"));
  EXPECT_THAT(words, HasSubstr("no API key"));
  EXPECT_THAT(words, HasSubstr("127.0.0.1"));
  EXPECT_THROW(Access({.keys = {"k"}, .keys_for_reading = false}, "0.0.0.0", false), ConfigError);
}

TEST(HttpAccess, AKeyIsABearerToken) {
  const Access access = on_loopback({.keys = {"first-key", "second"}});
  const auto with = [&](std::string_view line) {
    return status(access, fmt::format("GET / HTTP/1.1\r\nHost: localhost\r\n{}", line));
  };
  EXPECT_EQ(with("Authorization: Bearer first-key"), 200);
  EXPECT_EQ(with("authorization: bearer second"), 200);
  EXPECT_EQ(with("X: y"), 401);
  EXPECT_EQ(with("Authorization: Bearer first-ke"), 401);
  EXPECT_EQ(with("Authorization: Bearer first-key2"), 401);
  EXPECT_EQ(with("Authorization: Bearer"), 401);
  EXPECT_EQ(with("Authorization: Basic first-key"), 401);
  EXPECT_EQ(with("Authorization: Bearer first%2Dkey"), 401);
  EXPECT_EQ(with("Cookie: key=first-key"), 401) << "no cookie was asked for";
  EXPECT_EQ(status(access, "GET / HTTP/1.1\r\nHost: localhost", Need::kNothing), 200);
}

TEST(HttpAccess, ACookieIsForReadingOnly) {
  const Access access = on_loopback({.keys = {"secret"}, .cookie = "trireme"});
  const auto with = [&](std::string_view method, std::string_view cookie) {
    return status(access, fmt::format("{} / HTTP/1.1\r\nHost: localhost\r\nCookie: {}", method, cookie));
  };
  EXPECT_EQ(with("GET", "a=b; trireme=secret"), 200);
  EXPECT_EQ(with("HEAD", "trireme=secret;c=d"), 200);
  EXPECT_EQ(with("POST", "trireme=secret"), 401);
  EXPECT_EQ(with("GET", "trireme=secre"), 401);
  EXPECT_EQ(with("GET", "xtrireme=secret"), 401);
  EXPECT_EQ(key_cookie("trireme", "secret"), "trireme=secret; Path=/; HttpOnly; SameSite=Strict");
}

TEST(HttpAccess, ReadingMayBeFreeOnThisMachine) {
  const Access access = on_loopback({.keys = {"secret"}, .keys_for_reading = false});
  EXPECT_EQ(status(access, "GET / HTTP/1.1\r\nHost: localhost"), 200);
  EXPECT_EQ(status(access, "POST / HTTP/1.1\r\nHost: localhost"), 401);
  EXPECT_EQ(status(access, "DELETE / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret"), 200);
}

TEST(HttpAccess, PagesOfOtherOriginsChangeNothing) {
  const Access access = on_loopback({.allowed_hosts = {"box.lan"}});
  const auto post = [&](std::string_view line) {
    return status(access, fmt::format("POST / HTTP/1.1\r\nHost: localhost:8000\r\n{}", line));
  };
  EXPECT_EQ(post("X: no browser"), 200);
  EXPECT_EQ(post("Origin: http://localhost:8000"), 200);
  EXPECT_EQ(post("Origin: https://box.lan"), 200) << "through a proxy of that name";
  EXPECT_EQ(post("Origin: http://localhost:3000"), 403) << "another server on this machine";
  EXPECT_EQ(post("Origin: http://evil.example"), 403);
  EXPECT_EQ(post("Origin: http://localhost:8000.evil.example"), 403);
  EXPECT_EQ(post("Origin: null"), 403);
  EXPECT_EQ(post("Sec-Fetch-Site: cross-site"), 403);
  EXPECT_EQ(post("Sec-Fetch-Site: same-origin"), 200);
  EXPECT_EQ(status(access, "GET / HTTP/1.1\r\nHost: localhost:8000\r\nOrigin: http://evil.example"), 200)
      << "it cannot see the answer, as nothing lets it";
}

TEST(HttpAccess, ComparesWholeKeys) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_FALSE(equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abcabc"));
  EXPECT_FALSE(equal_in_constant_time("abcabc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("", "a"));
  EXPECT_FALSE(equal_in_constant_time("a", ""));
}

TEST(HttpAccess, RefusesKeysThatCannotBeSent) {
  for (const char* key : {"", "two words", "caf\u00e9", "a;b", "a,b"}) {
    const std::string words = words_of([&] { on_loopback({.keys = {key}}); });
    EXPECT_THAT(words, HasSubstr("could not be sent")) << key;
    if (*key) {
      EXPECT_THAT(words, ::testing::Not(HasSubstr(key))) << "a key is never shown";
    }
  }
}

class HttpKeys : public OwnFolder {};

TEST_F(HttpKeys, AreReadFromAFile) {
  const std::string path = folder_ / "keys";
  write_all(path, "# of the team\nfirst \r\n\n\tsecond\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  EXPECT_THAT(read_keys(path), ElementsAre("first", "second"));
  write_all(folder_ / "none", "# nothing\n");
  EXPECT_THAT(words_of([&] { read_keys(folder_ / "none"); }), HasSubstr("holds no key"));
  EXPECT_THROW(read_keys(folder_ / "missing"), IoError);
}

TEST_F(HttpKeys, ThatOthersCanReadAreWarnedOf) {
  std::string logged;
  divert_log([&](std::string_view line) { logged += line; });
  write_all(folder_ / "keys", "secret\n");
  std::filesystem::permissions(folder_ / "keys", std::filesystem::perms(0644));
  read_keys(folder_ / "keys");
  divert_log(nullptr);
  EXPECT_THAT(logged, HasSubstr("chmod 600"));
  EXPECT_THAT(logged, ::testing::Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace trireme::http
