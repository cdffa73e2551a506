// Pictures hold what they should: every pass once, idle time, versions, updates.
#include "trireme/schedule/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "trireme/schedule/builders.h"

namespace trireme::schedule {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::size_t times_in(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

template <typename Draw>
auto drawn(const Schedule& schedule, Draw&& draw) {
  const Timing timing = replay(schedule, {.keep_spans = true});
  return draw(Drawing{schedule, timing, "by hand & <carefully>"});
}

TEST(Draw, TheTerminalShowsTheTextbookPicture) {
  const Schedule schedule = build("1f1b", {.ranks = 2, .micros = 2});
  EXPECT_EQ(drawn(schedule, [](const Drawing& it) { return to_terminal(it, 100, false); }),
            "1f1b, 2 ranks, 2 micros: takes 9, idle 33.3 %\n"
            "by hand & <carefully>\n"
            "rank 0: F0 F1 ......B0    ...B1\n"
            "rank 1: ...F0 B0    F1 B1    ......\n");
}

TEST(Draw, ANarrowTerminalShowsLettersOnly) {
  const Schedule schedule = build("zb-h1", {.ranks = 4, .micros = 40});
  const std::string text = drawn(schedule, [](const Drawing& it) { return to_terminal(it, 60, false); });
  EXPECT_THAT(text, HasSubstr("too narrow for the indices of micros"));
  for (std::size_t begin = text.find("rank 0:"); begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 61u);
    begin = end + 1;
  }
}

TEST(Draw, ColorsAreGivenBack) {
  const Schedule schedule = build("1f1b", {.ranks = 2, .micros = 2});
  const std::string text = drawn(schedule, [](const Drawing& it) { return to_terminal(it, 100, true); });
  EXPECT_THAT(text, HasSubstr("\033[0;30;44mF0 "));
  EXPECT_EQ(text.substr(text.size() - 4 - 6 - 1), "\033[0m......\n");
}

TEST(Draw, EveryKindHasEveryPassInItsSvg) {
  for (const Kind& kind : kinds()) {
    const Schedule schedule = build(kind.name, {.ranks = 4, .micros = 8, .chunks_per_rank = kind.default_chunks});
    const std::string svg = drawn(schedule, to_svg);
    const auto cells = static_cast<std::size_t>(schedule.chunks() * schedule.micros);
    EXPECT_EQ(times_in(svg, "<title>forward of micro") * static_cast<std::size_t>(micros_of_forward(schedule)), cells)
        << kind.name;
    EXPECT_EQ(times_in(svg, "<title>backward of micro") + times_in(svg, "<title>backward of inputs of micro"), cells)
        << kind.name;
    EXPECT_EQ(times_in(svg, "<text"), times_in(svg, "</text>"));
    EXPECT_THAT(svg, AllOf(HasSubstr("by hand &amp; &lt;carefully&gt;"), HasSubstr("url(#idle)"),
                           HasSubstr(">update</text>"), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
    EXPECT_EQ(times_in(svg, "weights of version") > 0, kind.asynchronous) << kind.name;
  }
}

TEST(Draw, TheTraceIsJsonWithEveryPassAndEveryMessage) {
  for (const Kind& kind : kinds()) {
    const Schedule schedule = build(kind.name, {.ranks = 4, .micros = 8, .chunks_per_rank = kind.default_chunks});
    const auto trace = nlohmann::json::parse(drawn(schedule, to_chrome_trace));
    std::map<std::string, int> phases;
    int forwards = 0;
    for (const auto& event : trace.at("traceEvents")) {
      ++phases[event.at("ph").get<std::string>()];
      forwards += event.value("cat", "") == "forward";
    }
    EXPECT_EQ(forwards * micros_of_forward(schedule), schedule.chunks() * schedule.micros) << kind.name;
    int messages = 0;
    for (int micro = 0; micro < schedule.micros; ++micro) {
      for (int chunk = 0; chunk < schedule.last_chunk(); ++chunk)
        messages += schedule.rank_of(chunk, micro) != schedule.rank_of(chunk + 1, micro);
    }
    EXPECT_EQ(phases["s"], 2 * messages) << kind.name;
    EXPECT_EQ(phases["f"], 2 * messages) << kind.name;
  }
}

}  // namespace
}  // namespace trireme::schedule
