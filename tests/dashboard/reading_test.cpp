// Lines, rows and curves: what the page is made of.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/dashboard/folders.h"
#include "trireme/base/random.h"
#include "trireme/dashboard/line_tail.h"
#include "trireme/dashboard/series.h"
#include "trireme/dashboard/step_row.h"

namespace trireme::dashboard {
namespace {

namespace fs = std::filesystem;

class LineTailTest : public OwnFolder {
 protected:
  std::vector<std::string> new_lines() {
    std::vector<std::string> lines;
    change_ = tail_.read([&] { ++restarts_; }, [&](std::string_view line) { lines.emplace_back(line); });
    return lines;
  }
  void append(const std::string& text) { std::ofstream(folder_ / "file", std::ios::app) << text; }

  LineTail tail_{folder_ / "file"};
  LineTail::Change change_ = LineTail::Change::kNone;
  int restarts_ = 0;
};

TEST_F(LineTailTest, GivesWholeLinesOnceAndLeavesACutOneForLater) {
  EXPECT_TRUE(new_lines().empty());
  append("one\ntwo\nthr");
  EXPECT_EQ(new_lines(), (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(new_lines().empty());
  append("ee\n");
  EXPECT_EQ(new_lines(), std::vector<std::string>{"three"});
  EXPECT_EQ(restarts_, 0);
  std::vector<std::string> again;
  tail_.again([&](std::string_view line) { again.emplace_back(line); });
  EXPECT_EQ(again, (std::vector<std::string>{"one", "two", "three"}));
}

TEST_F(LineTailTest, NoticesAFileThatWasCutBackOrReplacedOrRemoved) {
  append("one\ntwo\nthree\n");
  new_lines();
  fs::resize_file(folder_ / "file", 4);
  EXPECT_EQ(new_lines(), std::vector<std::string>{"one"});
  EXPECT_EQ(restarts_, 1);
  // As a resumed run does it: a new file under the same name, longer than what was read.
  write_all(folder_ / "new", "one\nzwei\ndrei\nvier\n");
  fs::rename(folder_ / "new", folder_ / "file");
  EXPECT_EQ(new_lines(), (std::vector<std::string>{"one", "zwei", "drei", "vier"}));
  EXPECT_EQ(restarts_, 2);
  fs::remove(folder_ / "file");
  EXPECT_TRUE(new_lines().empty());
  EXPECT_EQ(change_, LineTail::Change::kRestarted);
}

TEST_F(LineTailTest, NoticesOtherBytesInTheSameFile) {
  append("aaaa\nbbbb\n");
  new_lines();
  {
    std::fstream file(folder_ / "file", std::ios::in | std::ios::out);
    file << "cccc\ndddd\neeee\n";
  }
  EXPECT_EQ(new_lines(), (std::vector<std::string>{"cccc", "dddd", "eeee"}));
}

TEST_F(LineTailTest, LinesThatCrossBlocksAreWhole) {
  const std::string longest(3 << 20, 'x');
  append("a\n" + longest + "\nb\n");
  const auto lines = new_lines();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1], longest);
  EXPECT_EQ(last_lines(folder_ / "file", 10), std::vector<std::string>{"b"});
}

TEST(StepRow, TheQuickScanReadsWhatTheWriterWrites) {
  const Random random(1, "rows");
  for (std::uint64_t i = 0; i < 300; ++i) {
    observe::StepRecord record =
        step_of_run(static_cast<std::int64_t>(i), 1e-3 * static_cast<double>(random.below(100'000, 4 * i)));
    if (i % 7 == 0) record.loss = NAN;
    if (i % 11 == 0) record.grad_norm = HUGE_VAL;
    if (i % 3 == 0) record.mfu = 0.123456789;
    if (i % 5 == 0) record.losses = {{"main", 1.25, 1}, {"load_balance", 0.5, 0.01}};
    record.queues = {{"prefetch", {}}};
    const std::string line = observe::line_of(observe::to_json(record));
    const auto row = scan_row(line);
    ASSERT_TRUE(row) << line;
    EXPECT_EQ(row->step, record.step);
    EXPECT_EQ(std::isnan(row->loss), std::isnan(record.loss));
    if (std::isfinite(record.loss)) {
      EXPECT_EQ(row->loss, record.loss);
    }
    EXPECT_EQ(row->grad_norm, record.grad_norm);
    EXPECT_EQ(std::isnan(row->mfu), !record.mfu);
    if (record.mfu) {
      EXPECT_EQ(row->mfu, *record.mfu);
    }
    EXPECT_EQ(row->overhead, record.breakdown.overhead);
    EXPECT_EQ(row->losses.size(), record.losses.size());
    EXPECT_EQ(scan_loss(line)->first, record.step);
  }
}

TEST(StepRow, FieldsInAnotherOrderAreReadAndWhatIsNoRowIsNot) {
  nlohmann::json line = nlohmann::json::parse(observe::line_of(observe::to_json(step_of_run(7, 2.5))));
  const auto row = scan_row(line.dump());  // sorted by name
  ASSERT_TRUE(row);
  EXPECT_EQ(row->step, 7);
  EXPECT_EQ(row->loss, 2.5);
  for (const char* wrong : {"", "{", "{\"step\":1}", "[1,2]", "{\"step\":\"x\",\"loss\":1}"})
    EXPECT_FALSE(scan_row(wrong)) << wrong;
}

TEST(Series, KeepsExtremesEndsAndGapsOfALongCurve) {
  Series series(64);
  for (int i = 0; i <= 100'000; ++i)
    series.add(i, i == 31'415 ? 1e6 : i == 27'182 ? -1e6 : i == 55'555 ? NAN : std::sin(i * 1e-3));
  const observe::Curve points = series.points();
  EXPECT_LE(points.size(), 3 * 64 + 2U);
  EXPECT_EQ(points.front().x, 0);
  EXPECT_EQ(points.back().x, 100'000);
  const auto has = [&](double x, double y) { return std::ranges::find(points, observe::Point{x, y}) != points.end(); };
  EXPECT_TRUE(has(31'415, 1e6));
  EXPECT_TRUE(has(27'182, -1e6));
  EXPECT_TRUE(std::ranges::any_of(points, [](const observe::Point& p) { return p.x == 55'555 && std::isnan(p.y); }));
  EXPECT_TRUE(std::ranges::is_sorted(points, {}, &observe::Point::x));
}

TEST(Series, MeansAreThoseOfTheStretches) {
  Series series(4);
  for (int i = 0; i < 16; ++i) series.add(i, i);
  const observe::Curve means = series.means();
  ASSERT_EQ(means.size(), 4U);
  EXPECT_EQ(means[1].y, 5.5);
  EXPECT_EQ(means.front().x, 0);
  EXPECT_EQ(means.back().x, 15);
}

TEST(Series, AShortCurveIsKeptWhole) {
  Series series(64);
  for (int i = 0; i < 50; ++i) series.add(i, i * i);
  EXPECT_EQ(series.points().size(), 50U);
}

}  // namespace
}  // namespace trireme::dashboard
