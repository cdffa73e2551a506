// A configuration with every type of key, for the tests of base/config.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/config.h"

namespace trireme::sample {

using namespace std::chrono_literals;

enum class Shape { kRound, kSquare };
inline std::span<const Named<Shape>> enum_names(std::type_identity<Shape>) {
  static constexpr Named<Shape> kNames[] = {{"round", Shape::kRound}, {"square", Shape::kSquare}};
  return kNames;
}

struct Inner {
  std::optional<int> limit;
  std::vector<std::string> tags = {"a"};
  bool operator==(const Inner&) const = default;
};
inline void describe(config::Section<Inner>& section) {
  section.meaning("a section in a section");
  section.field("limit", &Inner::limit, "at most so many").at_least(1);
  section.field("tags", &Inner::tags, "words");
}

struct Basics {
  bool on = false;
  int ranks = 1;
  std::int64_t steps = 10'000;
  std::int64_t buffer = 64 << 20;
  std::int64_t link = 10'000'000'000;
  double rate = 0.1;
  std::string name = "plain";
  Shape shape = Shape::kRound;
  std::vector<Shape> shapes = {};
  std::chrono::nanoseconds deadline = 10min;
  std::vector<std::int64_t> sizes = {1, 2};
  Inner inner;
  bool operator==(const Basics&) const = default;
};
inline void describe(config::Section<Basics>& section) {
  section.meaning("one of each");
  section.field("on", &Basics::on, "a switch");
  section.field("ranks", &Basics::ranks, "how many").range(1, 64);
  section.field("steps", &Basics::steps, "how long").unit(Unit::kCount).at_least(0);
  section.field("buffer", &Basics::buffer, "how large").unit(Unit::kBytes);
  section.field("link", &Basics::link, "how fast").unit(Unit::kBandwidth);
  section.field("rate", &Basics::rate, "how much").above(0).at_most(1);
  section.field("name", &Basics::name, "what it is called");
  section.retired("speed", "rate");
  section.field("shape", &Basics::shape, "what it looks like");
  section.field("shapes", &Basics::shapes, "what else it looks like");
  section.field("deadline", &Basics::deadline, "when to give up").at_least(1ms);
  section.field("sizes", &Basics::sizes, "how large each").at_least(0);
  section.section("inner", &Basics::inner);
}

struct Entry {
  std::string path;
  double weight = 1;
  bool operator==(const Entry&) const = default;
};
inline void describe(config::Section<Entry>& section) {
  section.meaning("a source of data; any number of them");
  section.field("path", &Entry::path, "where it is").required();
  section.field("weight", &Entry::weight, "its share").at_least(0);
}

struct All {
  Basics basics;
  std::vector<Entry> blend;
  bool operator==(const All&) const = default;
};
inline void describe(config::Section<All>& section) {
  section.section("basics", &All::basics);
  section.tables("blend", &All::blend);
  section.retired("mixture", "blend");
  section.reserved("basis", "what stands below the basics");
}
inline std::vector<config::Problem> find_problems(const All& all) {
  if (all.basics.ranks <= static_cast<int>(all.basics.sizes.size()) * 32) return {};
  return {{.key = "basics.ranks", .reason = "more than 32 for each of basics.sizes", .hint = "set basics.ranks = 32"}};
}

inline constexpr const char* kText = R"([basics]
on = true
ranks = 4
steps = "20k"
buffer = "1.5G"
link = "100 Gbit/s"
rate = 0.5
name = "a \"b\" \\ c"
shape = "square"
shapes = ["round", "square"]
deadline = "1h30m"
sizes = [3, 4, 5]

[basics.inner]
limit = 7
tags = ["x", "y"]

[[blend]]
path = "one"

[[blend]]
path = "two"
weight = 0.25
)";

}  // namespace trireme::sample
