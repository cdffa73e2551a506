#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/config_sample.h"
#include "trireme/base/random.h"

namespace trireme::sample {
namespace {

using config::load;
using testing::HasSubstr;

TEST(ConfigWrite, ShowIsTomlWithWhereEachValueCameFrom) {
  const auto loaded = load<All>(
      {.file = "x.toml", .text = "[basics]\nranks = 4\n[[blend]]\npath = \"one\"\n", .sets = {"basics.deadline=30s"}});
  EXPECT_EQ(config::show(loaded), R"([basics]
on = false        # default
ranks = 4         # x.toml:2
steps = "10k"     # default
buffer = "64MiB"  # default
link = "10GB/s"   # default
rate = 0.1        # default
name = "plain"    # default
shape = "round"   # default
shapes = []       # default
deadline = "30s"  # --set
sizes = [1, 2]    # default

[basics.inner]
# limit = (unset)  # default
tags = ["a"]       # default

[[blend]]
path = "one"  # x.toml:4
weight = 1.0  # default
)");
}

TEST(ConfigWrite, WhatIsShownReadsBackAsTheSame) {
  const auto loaded = load<All>({.file = "x.toml", .text = kText});
  EXPECT_EQ(load<All>({.text = config::show(loaded)}).value, loaded.value);
  EXPECT_EQ(load<All>({.text = config::to_toml(loaded.value)}).value, loaded.value);
  EXPECT_EQ(load<All>({.text = config::to_toml(All())}).value, All());
}

TEST(ConfigWrite, AnyValueReadsBackAsTheSame) {
  const Random random(1, "config values");
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t n) { return random.below(n, draw++); };
  const auto any_size = [&] {  // as often small as large
    const std::uint64_t bits = random.bits(draw++);
    return static_cast<std::int64_t>(bits >> (2 + below(61)));
  };
  const auto text = [&] {
    std::string out;
    for (std::uint64_t i = below(12); i > 0; --i) {
      const std::uint64_t c = below(140);
      out += c < 128 ? std::string(1, static_cast<char>(c)) : std::string("µ");
    }
    return out;
  };
  for (int round = 0; round < 300; ++round) {
    All all;
    Basics& basics = all.basics;
    basics.on = below(2) == 1;
    basics.ranks = 1 + static_cast<int>(below(32));
    basics.steps = any_size();
    basics.buffer = any_size();
    basics.link = any_size();
    basics.rate = 1 - random.uniform(draw++);
    basics.name = text();
    basics.deadline = 1ms + std::chrono::nanoseconds(any_size());
    basics.inner.tags = {text(), text()};
    if (below(2) == 1) basics.inner.limit = 5;
    all.blend.resize(below(3));
    for (Entry& entry : all.blend) entry = {text(), random.uniform(draw++) * 1e30};
    const std::string toml = config::to_toml(all);
    ASSERT_EQ(load<All>({.text = toml}).value, all) << toml;
  }
}

TEST(ConfigWrite, DocsNameEveryKeyWithTypeDefaultAndMeaning) {
  const std::string docs = config::docs_text(config::schema_of<All>());
  EXPECT_THAT(docs, HasSubstr("[basics]  one of each\n"));
  EXPECT_THAT(docs, HasSubstr("  ranks = 1\n      how many (a whole number from 1 to 64)\n"));
  EXPECT_THAT(docs, HasSubstr("  rate = 0.1\n      how much (a number, above 0 and at most 1)\n"));
  EXPECT_THAT(docs, HasSubstr("  buffer = \"64MiB\"\n      how large (a size in bytes)\n"));
  EXPECT_THAT(docs, HasSubstr("  shape = \"round\"\n      what it looks like (one of round, square)\n"));
  EXPECT_THAT(docs, HasSubstr("  deadline = \"10m\"\n      when to give up (a duration, at least 1ms)\n"));
  EXPECT_THAT(docs, HasSubstr("[basics.inner]  a section in a section\n"));
  EXPECT_THAT(docs, HasSubstr("  limit = (unset)\n      at most so many (a whole number, at least 1, or unset)\n"));
  EXPECT_THAT(docs, HasSubstr("[[blend]]  a source of data; any number of them\n"));
  EXPECT_THAT(docs, HasSubstr("  path = (must be given)\n"));
  EXPECT_THAT(docs, HasSubstr("\n[basis]  reserved for what stands below the basics\n"));
}

TEST(ConfigWrite, DocsAreMarkdownToo) {
  const std::string docs = config::docs_markdown(config::schema_of<All>());
  EXPECT_THAT(docs, HasSubstr("## `[basics]`\n\none of each\n\n- `"));
  EXPECT_THAT(docs, HasSubstr("\n- `ranks = 1`: how many (a whole number from 1 to 64)\n"));
  EXPECT_THAT(docs, HasSubstr("\n## `[[blend]]`\n"));
  EXPECT_THAT(docs, HasSubstr("\n- `[basis]`: what stands below the basics\n"));
}

}  // namespace
}  // namespace trireme::sample
