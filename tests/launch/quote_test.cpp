#include "trireme/launch/quote.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/launch/jobs.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"

namespace trireme::launch {
namespace {

/// Bytes that shells care about come often; NUL never.
std::string random_word(const Random& random, std::uint64_t& draw) {
  static constexpr std::string_view kOdd = "'\"\\$`!&|;<>(){}[]*?#~=% \t\n\r-";
  std::string word;
  for (std::uint64_t length = random.below(12, draw++); length > 0; --length) {
    if (random.below(2, draw++) == 0) {
      word += kOdd[random.below(kOdd.size(), draw++)];
    } else {
      word += static_cast<char>(1 + random.below(255, draw++));
    }
  }
  return word;
}

TEST(Quote, AnyWordsComeThroughARealShAsTheyWere) {
  const Random random(7, "quote");
  std::uint64_t draw = 0;
  for (int round = 0; round < 12; ++round) {
    std::vector<std::string> words = {"printf", "%s\\0"};
    for (int i = 0; i < 60; ++i) words.push_back(random_word(random, draw));
    words.insert(words.end(), {"", "a b", "it's", "line\nbreak", "$HOME", "`id`", "-n", "~", "*", "a=b", "!x"});
    std::string expected;
    for (std::size_t i = 2; i < words.size(); ++i) expected += words[i] + '\0';
    for (const char* shell : {"sh", "bash"}) {
      EXPECT_EQ(run_sh(sh_line(words), shell), expected) << shell << ", round " << round;
    }
  }
}

TEST(Quote, TheFirstWordIsACommandAndNothingElse) {
  int status = 0;
  run_sh(sh_line(std::vector<std::string>{"A=b"}), "sh", &status);
  EXPECT_EQ(status, 127) << "an assignment would succeed";
  run_sh(sh_line(std::vector<std::string>{"if"}), "sh", &status);
  EXPECT_EQ(status, 127) << "a keyword would be a syntax error";
  EXPECT_EQ(sh_line(std::vector<std::string>{"trireme", "--set", "a.b=1"}), "trireme --set a.b=1")
      << "plain words stay";
}

TEST(Quote, WhatNoArgumentCanHoldIsRefused) {
  EXPECT_THROW(sh_word(std::string("a\0b", 3)), ConfigError);
  EXPECT_THROW(sbatch_value("two\nlines"), ConfigError);
  EXPECT_THROW(yaml_text("\xff"), ConfigError);
  EXPECT_EQ(sbatch_value("a \"b\" \\c"), R"("a \"b\" \\c")");
}

TEST(Quote, YamlTextsReadBackAsTheyWere) {
  for (const std::string text : {"", "yes", "1e3", "a: b # c", "line\nbreak\ttab", "\"quoted\"", "Größe \x01"}) {
    EXPECT_EQ(nlohmann::json::parse(yaml_text(text)).get<std::string>(), text);
  }
}

TEST(Quote, LabelsAreThoseOfDns) {
  EXPECT_EQ(dns_label("My Run_1!", 40), "my-run-1");
  EXPECT_EQ(dns_label("", 40), "run");
  EXPECT_EQ(dns_label("---", 40), "run");
  EXPECT_EQ(dns_label("7b", 40), "r7b");
  EXPECT_EQ(dns_label(std::string(100, 'a'), 40).size(), 40u);
  EXPECT_EQ(dns_label("abc-def", 4), "abc");
}

}  // namespace
}  // namespace trireme::launch
