#include "trireme/observe/report/report.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/observe/run_folder.h"
#include "trireme/base/html.h"
#include "trireme/observe/report/axis.h"
#include "trireme/observe/report/chart.h"
#include "trireme/observe/report/facts.h"
#include "trireme/observe/report/time_to_loss.h"
#include "trireme/observe/run_log.h"

namespace trireme::observe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> labels(const Axis& axis) {
  std::vector<std::string> out;
  for (const auto& tick : axis.ticks) out.push_back(tick.label);
  return out;
}

TEST(ReportAxis, HasTicksAtOneTwoOrFiveTimesAPowerOfTen) {
  EXPECT_THAT(labels(make_axis(0, 5000, Quantity::kCount, 5, false)), ElementsAre("0", "1k", "2k", "3k", "4k", "5k"));
  EXPECT_THAT(labels(make_axis(2.83, 3.41, Quantity::kPlain, 5, true)), ElementsAre("2.8", "3.0", "3.2", "3.4", "3.6"));
  EXPECT_THAT(labels(make_axis(0, 6e-4, Quantity::kPlain, 5, true)), ElementsAre("0", "2e-4", "4e-4", "6e-4"));
  EXPECT_THAT(labels(make_axis(0, 0x1p30 * 6.1, Quantity::kBytes, 5, true)), ElementsAre("0", "2", "4", "6", "8"));
  EXPECT_EQ(make_axis(0, 0x1p30 * 6.1, Quantity::kBytes, 5, true).unit, "GiB");
  EXPECT_THAT(labels(make_axis(0, 0.42, Quantity::kSeconds, 5, true)),
              ElementsAre("0", "100", "200", "300", "400", "500"));
  EXPECT_EQ(make_axis(0, 0.42, Quantity::kSeconds, 5, true).unit, "ms");
  EXPECT_THAT(labels(make_axis(0, 0.41, Quantity::kFraction, 5, true)), ElementsAre("0", "10", "20", "30", "40", "50"));
  EXPECT_THAT(labels(make_axis(-1.5, 1.5, Quantity::kPlain, 3, true)), ElementsAre("-2", "-1", "0", "1", "2"));
}

TEST(ReportAxis, IsThereForEveryRange) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::pair<double, double> ranges[] = {
      {0, 0},        {3, 3}, {-2, -2},       {1e-300, 1e-300}, {1e300, 1e300}, {std::nan(""), 1},
      {-kInf, kInf}, {5, 1}, {1, 1 + 1e-15}, {0, 1e-12},       {-1e15, 1e15},  {0.1, 1e9}};
  for (const auto& [low, high] : ranges) {
    for (const auto quantity :
         {Quantity::kPlain, Quantity::kCount, Quantity::kBytes, Quantity::kSeconds, Quantity::kFraction}) {
      const Axis axis = make_axis(low, high, quantity, 5, true);
      EXPECT_LT(axis.low, axis.high) << low << ' ' << high;
      EXPECT_GE(axis.ticks.size(), 2U) << low << ' ' << high;
      EXPECT_LE(axis.ticks.size(), 9U) << low << ' ' << high;
      const auto texts = labels(axis);
      EXPECT_EQ(std::set(texts.begin(), texts.end()).size(), texts.size())
          << "neighbours must differ: " << ::testing::PrintToString(texts);
    }
  }
}

TEST(ReportCurve, ThinningKeepsExtremesEndsAndGaps) {
  Curve curve;
  for (int i = 0; i < 100'000; ++i) curve.push_back({static_cast<double>(i), std::sin(i / 1000.0)});
  curve[12'345].y = 50;
  curve[54'321].y = -70;
  curve[77'777].y = std::nan("");
  const Curve few = thinned(curve, 1000);
  EXPECT_LE(few.size(), 1001U) << "one more for the gap";
  EXPECT_GE(few.size(), 900U);
  EXPECT_THAT(few, ::testing::Contains(curve[12'345]));
  EXPECT_THAT(few, ::testing::Contains(curve[54'321]));
  EXPECT_EQ(std::ranges::count_if(few, [](const Point& point) { return std::isnan(point.y); }), 1);
  EXPECT_EQ(few.front(), curve.front());
  EXPECT_EQ(few.back(), curve.back());
  EXPECT_TRUE(std::ranges::is_sorted(few, {}, &Point::x));
  EXPECT_EQ(thinned(Curve(curve.begin(), curve.begin() + 7), 1000).size(), 7U) << "few points stay";
}

TEST(ReportCurve, SmoothingKeepsAStraightLineAndTakesNoiseAway) {
  Curve line, noisy;
  for (int i = 0; i <= 1000; ++i) {
    line.push_back({static_cast<double>(i), 2.0 * i});
    noisy.push_back({static_cast<double>(i), i % 2 == 0 ? 1.0 : -1.0});
  }
  const Curve straight = smoothed(line, 10), quiet = smoothed(noisy, 10);
  for (std::size_t i = 0; i <= 970; ++i) ASSERT_NEAR(straight[i].y, line[i].y, 1e-9) << i;
  for (std::size_t i = 120; i <= 970; ++i) ASSERT_LT(std::abs(quiet[i].y), 0.06) << i;
  noisy[500].y = std::nan("");
  const Curve gap = smoothed(noisy, 10);
  EXPECT_TRUE(std::isnan(gap[500].y));
  EXPECT_TRUE(std::isfinite(gap[501].y));
}

TEST(ReportCurve, AveragesAddUpWhereTheirCurvesDo) {
  Curve a, b;
  for (int i = 0; i < 1003; ++i) {
    a.push_back({static_cast<double>(i), std::cos(i)});
    b.push_back({static_cast<double>(i), 1 - std::cos(i)});
  }
  const auto few = averaged({a, b}, 100);
  ASSERT_EQ(few[0].size(), 100U);
  for (std::size_t i = 0; i < 100; ++i) ASSERT_NEAR(few[0][i].y + few[1][i].y, 1, 1e-12);
  EXPECT_EQ(few[0].back().x, 1002);
}

TEST(ReportChart, DoesNotLetOnePeakHideTheRest) {
  Chart chart;
  chart.x_high = 1000;
  Series series;
  for (int i = 0; i < 1000; ++i) series.points.push_back({static_cast<double>(i), 1 + i / 1000.0});
  chart.series = {series};
  EXPECT_FALSE(range_of(chart).above);
  chart.series[0].points[17].y = 1000;
  const Range range = range_of(chart);
  EXPECT_LT(range.high, 3);
  EXPECT_EQ(range.above, (Point{17, 1000}));
  EXPECT_THAT(to_html(chart), HasSubstr("the highest is 1000 at step 17"));
  chart.x_name = "tokens";
  EXPECT_THAT(to_html(chart),
              AllOf(HasSubstr("1000 at tokens 17"), HasSubstr("\"of\":\"tokens\""), Not(HasSubstr("step 17"))));
}

/// A first step that takes as long as a hundred others, of which most is the lower area.
TEST(ReportChart, DoesNotLetOnePeakOfAnAreaHideTheRest) {
  Chart chart;
  chart.x_high = 300;
  Series low{.name = "compute", .look = Series::Look::kArea}, high{.name = "data", .look = Series::Look::kArea};
  for (int i = 0; i < 300; ++i) {  // stacked already
    low.points.push_back({static_cast<double>(i), i == 0 ? 100.0 : 1.0});
    high.points.push_back({static_cast<double>(i), i == 0 ? 101.0 : 2.0});
  }
  chart.from_zero = true;
  chart.series = {low, high};
  const Range range = range_of(chart);
  EXPECT_EQ(range.high, 3.0);  // half as much again as the whole usually is
  EXPECT_EQ(range.above, (Point{0, 101}));
}

TEST(ReportChart, BreaksItsLineWhereThereIsNoNumber) {
  Chart chart;
  chart.x_high = 4;
  chart.series = {
      {.name = "a", .color = 3, .look = Series::Look::kLine, .points = {{0, 0}, {1, 1}, {2, std::nan("")}, {3, 1}}}};
  EXPECT_THAT(to_html(chart), HasSubstr(R"(class="line c3" d="M0.0 1000.0L250.0 0.0M750.0 0.0h0")"));
}

TEST(ReportHtml, EscapesWhatFilesSay) {
  EXPECT_EQ(escaped("<a href='x'>&\"\x01"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\xEF\xBF\xBD");
  EXPECT_EQ(script_json("{\"a\":\"</script>\"}"), "{\"a\":\"\\u003c/script>\"}");
}

class Report : public RunFolder {
 protected:
  std::filesystem::path sample_run(const std::string& name, std::int64_t steps) {
    RunLog log(folder_ / name, std::nullopt);
    log.event("start", {{"model", "llama <b>"}, {"parameters", 7e9}, {"ranks", 8}, {"steps", 100}});
    for (std::int64_t step = 1; step <= steps; ++step) log.step(sample_step(step));
    log.event("eval", {{"step", 5}, {"loss", 1.5}});
    log.event("eval", {{"step", 10}, {"loss", 1.75}});
    log.event("stop", {{"why", "finished"}});
    write(folder_ / name / "recipe.toml", "[model]\nfamily = \"llama\" # </pre><script>\n");
    return folder_ / name;
  }
};

TEST_F(Report, FactsAreThoseOfTheFiles) {
  const Facts facts = facts_of(read_run(sample_run("a", 10)));
  EXPECT_EQ(facts.name, "a");
  EXPECT_EQ(facts.model, "llama <b>");
  EXPECT_EQ(facts.parameters, 7e9);
  EXPECT_EQ(facts.ranks, 8);
  EXPECT_EQ(facts.steps, 10);
  EXPECT_EQ(facts.steps_asked, 100);
  EXPECT_EQ(facts.tokens, 10 * 524288);
  EXPECT_EQ(facts.eval_loss, 1.75);
  EXPECT_EQ(facts.best_eval_loss, 1.5);
  EXPECT_EQ(facts.ended, "finished");
  EXPECT_EQ(facts.memory, (std::int64_t{3} << 30) + 10);
  double loss = 0, seconds = 0;
  for (int step = 1; step <= 10; ++step) {
    loss += sample_step(step).loss / 10;
    seconds += sample_step(step).seconds;
  }
  EXPECT_NEAR(facts.loss.value(), loss, 1e-12);
  EXPECT_NEAR(facts.seconds.value(), seconds, 1e-12);
}

TEST_F(Report, FactsOfAResumedRunAreTheLatest) {
  sample_run("a", 10);
  {
    RunLog log(folder_ / "a", 8);
    log.event("resumed", {{"step", 8}, {"steps", 200}, {"ranks", 2}});
    log.step(sample_step(9));
    log.event("diverged", {{"step", 9}, {"why", "the loss is nan"}});
  }
  const Facts facts = facts_of(read_run(folder_ / "a"));
  EXPECT_EQ(facts.resumes, 1U);
  EXPECT_EQ(facts.ranks, 2);
  EXPECT_EQ(facts.steps_asked, 200);
  EXPECT_EQ(facts.model, "llama <b>");
  EXPECT_EQ(facts.steps, 9);
  EXPECT_EQ(facts.ended, "diverged");
  EXPECT_EQ(facts.eval_loss, 1.5) << "the one of step 10 was taken back";
}

TEST_F(Report, IsOnePageThatNeedsNothingElse) {
  const RunFiles runs[] = {read_run(sample_run("one", 60)), read_run(sample_run("two", 40))};
  const std::string page = report_page(runs);
  EXPECT_THAT(page, HasSubstr("name=\"viewport\""));
  for (const char* outside : {"http:", "https:", "src=", "@import", "url("}) EXPECT_THAT(page, Not(HasSubstr(outside)));
  EXPECT_THAT(page, HasSubstr("llama &lt;b&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<b>\"")));
  EXPECT_THAT(page, HasSubstr("# &lt;/pre&gt;&lt;script&gt;"));
  for (const char* title :
       {"Loss", "Loss from step 30 on", "Learning rate", "Gradient norm", "Throughput", "Memory", "Step time: two"}) {
    EXPECT_THAT(page, HasSubstr(fmt::format("<b>{}</b>", title)));
  }
  EXPECT_THAT(page, HasSubstr("<details><summary>Recipe of one</summary>"));
}

TEST_F(Report, ShowsHowFarRunsAreFromTheFirst) {
  sample_run("one", 60);
  {
    RunLog log(folder_ / "dearer", std::nullopt);
    for (std::int64_t step = 1; step <= 60; ++step) {
      StepRecord record = sample_step(step);
      record.loss *= 1.25;
      log.step(record);
    }
  }
  const RunFiles runs[] = {read_run(folder_ / "one"), read_run(folder_ / "dearer")};
  const std::string page = report_page(runs);
  const std::size_t chart = page.find("<b>Loss beside one</b>");
  ASSERT_NE(chart, std::string::npos);
  EXPECT_THAT(page.substr(chart, page.find("</figure>", chart) - chart), HasSubstr("[30,0.25]"));
  const RunFiles alone[] = {read_run(folder_ / "one")};
  EXPECT_THAT(report_page(alone), Not(HasSubstr("Loss beside")));
}

TEST(TimeToLoss, IsThatOfTheSameTokensWhateverAStepIs) {
  // Three runs with the same loss by token: one a second a step, one twice as fast, one with steps of two of them.
  std::vector<StepRecord> first, fast, large;
  const auto loss = [](double tokens) { return 2 + std::exp(-tokens / 4000); };
  for (std::int64_t step = 1; step <= 200; ++step) {
    const std::int64_t tokens = 100 * step;
    const double mean = loss(static_cast<double>(tokens));
    first.push_back({.step = step, .loss = mean, .tokens = tokens, .seconds = 1});
    fast.push_back({.step = step, .loss = mean, .tokens = tokens, .seconds = 0.5});
    if (step % 2 == 0) large.push_back({.step = step / 2, .loss = mean, .tokens = tokens, .seconds = 2});
  }
  const auto times = times_to_loss({first, fast, large});
  ASSERT_EQ(times.size(), 4U);
  for (const TimeToLoss& row : times) {
    EXPECT_DOUBLE_EQ(row.seconds[0], 2 * row.seconds[1]) << row.share;
    EXPECT_NEAR(row.seconds[2], row.seconds[0], 4) << row.share;
  }
  EXPECT_LT(times[0].seconds[0], times[1].seconds[0]);
  EXPECT_NEAR(times[3].seconds[2], 200, 1e-9) << "what all reach is reached by the last at its end";
  // A run that does not come as far sets the loss that is asked for; one with a NaN begins anew.
  std::vector<StepRecord> worse(first.begin(), first.begin() + 100), broken = first;
  EXPECT_NEAR(times_to_loss({first, worse}).back().seconds[0], 100, 2);
  broken[150].loss = std::nan("");
  EXPECT_NEAR(times_to_loss({first, broken}).front().seconds[1], times[0].seconds[0], 2);
  EXPECT_TRUE(times_to_loss({first}).empty());
  EXPECT_TRUE(times_to_loss({first, std::span(first).first(3)}).empty()) << "too few steps to say";
  for (StepRecord& step : broken) step.tokens = 0;
  EXPECT_TRUE(times_to_loss({first, broken}).empty());
}

TEST_F(Report, ComparesTheTimeToALoss) {
  sample_run("one", 60);
  {
    RunLog log(folder_ / "quick", std::nullopt);
    for (std::int64_t step = 1; step <= 60; ++step) {
      StepRecord record = sample_step(step);
      record.seconds /= 2;
      log.step(record);
    }
  }
  const RunFiles runs[] = {read_run(folder_ / "one"), read_run(folder_ / "quick")};
  const std::string page = report_page(runs);
  EXPECT_THAT(page, HasSubstr("<h2>Time to a loss</h2>"));
  EXPECT_THAT(page, HasSubstr("(2.00x as soon)"));
  EXPECT_THAT(page, HasSubstr("<b>Loss by time</b>"));
  const RunFiles alone[] = {read_run(folder_ / "one")};
  EXPECT_THAT(report_page(alone), Not(HasSubstr("Time to a loss")));
}

TEST_F(Report, OfRunsWithoutAnythingIsANoteAndNoFailure) {
  write(folder_ / "empty" / "metrics.jsonl", "");
  write(folder_ / "broken" / "metrics.jsonl", "{<script>\n");
  const RunFiles runs[] = {read_run(folder_ / "empty", Reading::kLenient),
                           read_run(folder_ / "broken", Reading::kLenient)};
  const std::string page = report_page(runs);
  EXPECT_THAT(page, HasSubstr("metrics.jsonl: it is empty"));
  EXPECT_THAT(page, HasSubstr("metrics.jsonl:1: is no JSON"));
  EXPECT_THAT(page, HasSubstr("No step has been written yet"));
}

TEST_F(Report, DrawsEachTermOfALossWithItsWeight) {
  {
    RunLog log(folder_ / "a", std::nullopt);
    for (std::int64_t step = 1; step <= 3; ++step) {
      StepRecord record = sample_step(step);
      record.losses = {{"loss", record.loss, 1}, {"aux <loss>", 0.5, 0.25}};
      log.step(record);
    }
  }
  const std::vector<RunFiles> runs{read_run(folder_ / "a", Reading::kLenient)};
  const std::string page = report_page(runs, {});
  EXPECT_THAT(page, HasSubstr("Loss term: aux &lt;loss&gt;"));
  EXPECT_THAT(page, HasSubstr("weight 0.25 in the total"));
}

TEST_F(Report, TellsFoldersOfOneNameApart) {
  const RunFiles runs[] = {read_run(sample_run("a/run", 3)), read_run(sample_run("b/run", 3))};
  const std::string page = report_page(runs);
  EXPECT_THAT(page, HasSubstr("a/run"));
  EXPECT_THAT(page, HasSubstr("b/run"));
}

TEST_F(Report, SaysWhereTheLossWasNotFinite) {
  {
    RunLog log(folder_, std::nullopt);
    for (std::int64_t step = 1; step <= 50; ++step) {
      StepRecord record = sample_step(step);
      if (step > 40) record.loss = std::nan("");
      log.step(record);
    }
  }
  const RunFiles runs[] = {read_run(folder_)};
  EXPECT_THAT(report_page(runs), HasSubstr("The loss is not finite at 10 steps, the first being step 41."));
}

}  // namespace
}  // namespace trireme::observe
