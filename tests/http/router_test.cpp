#include "trireme/http/router.h"

#include <gmock/gmock.h>

namespace trireme::http {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class HttpRouter : public ::testing::Test {
 protected:
  HttpRouter() {
    for (const char* pattern :
         {"/runs/{run}/{part}", "/v1/models/{model...}", "/", "/runs/{run}", "/runs/best", "/runs"})
      router_.add({"GET", pattern, {}, [](const Request&) { return Response(); }});
    router_.add({"POST", "/runs/{run}", {}, [](const Request&) { return Response(); }});
  }
  Router::Match find(std::string_view method, std::string_view target) {
    return router_.find(method, parse_target(target), allowed_);
  }
  std::string pattern(std::string_view method, std::string_view target) {
    try {
      return find(method, target).route->pattern;
    } catch (const HttpError& error) {
      return std::to_string(error.status());
    }
  }

  Router router_;
  std::string allowed_;
};

TEST_F(HttpRouter, PrefersTheMostParticularPattern) {
  EXPECT_EQ(pattern("GET", "/"), "/");
  EXPECT_EQ(pattern("GET", "/runs"), "/runs");
  EXPECT_EQ(pattern("GET", "/runs/best"), "/runs/best");
  EXPECT_EQ(pattern("GET", "/runs/worst"), "/runs/{run}");
  EXPECT_EQ(pattern("POST", "/runs/best"), "/runs/{run}");
  EXPECT_EQ(pattern("HEAD", "/runs/best"), "/runs/best");
}

TEST_F(HttpRouter, TakesParametersAsTheyWereMeant) {
  EXPECT_THAT(find("GET", "/runs/a%2Fb/c%20d").params, ElementsAre(Pair("run", "a/b"), Pair("part", "c d")));
  EXPECT_THAT(find("GET", "/v1/models/meta/llama%201").params, ElementsAre(Pair("model", "meta/llama 1")));
  EXPECT_THAT(find("GET", "/runs").params, IsEmpty());
}

TEST_F(HttpRouter, KnowsNothingElse) {
  for (const char* path : {"/run", "/runs/", "//runs", "/runs/a/b/c", "/runs//b", "/v1/models", "/v1/models/", "/RUNS"})
    EXPECT_EQ(pattern("GET", path), "404") << path;
}

TEST_F(HttpRouter, SaysWhichMethodsThereAre) {
  EXPECT_EQ(pattern("DELETE", "/runs/best"), "405");
  EXPECT_EQ(allowed_, "GET, HEAD, POST");
  EXPECT_EQ(pattern("BREW", "/runs"), "405");
  EXPECT_EQ(allowed_, "GET, HEAD");
}

TEST_F(HttpRouter, RefusesPatternsThatAreNone) {
  const auto add = [&](const char* text) { router_.add({"GET", text, {}, [](const Request&) { return Response(); }}); };
  for (const char* text : {"runs", "/{", "/a{b}", "/{}", "/{...}", "/{a...}/b", "/runs"})
    EXPECT_THROW(add(text), InternalError) << text;
}

}  // namespace
}  // namespace trireme::http
