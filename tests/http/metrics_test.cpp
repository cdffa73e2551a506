#include "trireme/http/metrics.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <thread>

#include "trireme/base/error.h"

namespace trireme::http {
namespace {

using ::testing::HasSubstr;

TEST(PrometheusText, HasEachFamilyOnceWithHelpAndType) {
  Metrics metrics;
  metrics.gauge("trireme_loss", "Loss of the last step", {{"run", "b"}}).set(2.5);
  metrics.counter("trireme_tokens_total", "Tokens trained on").add(1e9);
  metrics.gauge("trireme_loss", "Loss of the last step", {{"run", "a"}}).set(-0.125);
  metrics.counter("trireme_tokens_total", "Tokens trained on").add();
  EXPECT_EQ(metrics.text(),
            "# HELP trireme_loss Loss of the last step\n"
            "# TYPE trireme_loss gauge\n"
            "trireme_loss{run=\"a\"} -0.125\n"
            "trireme_loss{run=\"b\"} 2.5\n"
            "# HELP trireme_tokens_total Tokens trained on\n"
            "# TYPE trireme_tokens_total counter\n"
            "trireme_tokens_total 1000000001\n");
}

TEST(PrometheusText, HistogramsAreCumulative) {
  Metrics metrics;
  Histogram& times = metrics.histogram("step_seconds", "Time of a step", {0.1, 1, 10}, {{"rank", "0"}});
  for (const double value : {0.05, 0.1, 0.5, 10.0, 11.0}) times.observe(value);
  EXPECT_EQ(metrics.text(),
            "# HELP step_seconds Time of a step\n"
            "# TYPE step_seconds histogram\n"
            "step_seconds_bucket{rank=\"0\",le=\"0.1\"} 2\n"
            "step_seconds_bucket{rank=\"0\",le=\"1\"} 3\n"
            "step_seconds_bucket{rank=\"0\",le=\"10\"} 4\n"
            "step_seconds_bucket{rank=\"0\",le=\"+Inf\"} 5\n"
            "step_seconds_sum{rank=\"0\"} 21.65\n"
            "step_seconds_count{rank=\"0\"} 5\n");
  times.observe(std::nan(""));
  EXPECT_THAT(metrics.text(), HasSubstr("step_seconds_sum{rank=\"0\"} 21.65\n"));
}

TEST(PrometheusText, EscapesWhatWouldEndALine) {
  Metrics metrics;
  metrics.gauge("g", "a \\ b\nc \"d\"", {{"name", "a \\ b\nc \"d\""}, {"run", "<script>"}}).set(1);
  EXPECT_EQ(metrics.text(),
            "# HELP g a \\\\ b\\nc \"d\"\n"
            "# TYPE g gauge\n"
            "g{name=\"a \\\\ b\\nc \\\"d\\\"\",run=\"<script>\"} 1\n");
}

TEST(PrometheusText, SpellsWhatIsNotFinite) {
  Metrics metrics;
  Gauge& gauge = metrics.gauge("g", "h");
  const double inf = std::numeric_limits<double>::infinity();
  for (const auto& [value, text] :
       {std::pair(std::nan(""), "NaN"), {inf, "+Inf"}, {-inf, "-Inf"}, {1e300, "1e+300"}, {0.1, "0.1"}}) {
    gauge.set(value);
    EXPECT_THAT(metrics.text(), HasSubstr(fmt::format("\ng {}\n", text)));
  }
}

TEST(PrometheusText, CollectorsTellWhatComesAndGoes) {
  Metrics metrics;
  std::vector<std::string> trials{"1", "2"};
  metrics.gauge("a_first", "x").set(0);
  metrics.gauge("z_last", "x").set(0);
  metrics.add_collector([&](Samples& samples) {
    for (const std::string& trial : trials) samples.gauge("trial_state", "State of a trial", {{"trial", trial}}, 1);
  });
  EXPECT_THAT(metrics.text(), HasSubstr("a_first 0\n"
                                        "# HELP trial_state State of a trial\n"
                                        "# TYPE trial_state gauge\n"
                                        "trial_state{trial=\"1\"} 1\n"
                                        "trial_state{trial=\"2\"} 1\n"
                                        "# HELP z_last"));
  trials = {"2"};
  EXPECT_THAT(metrics.text(), ::testing::Not(HasSubstr("trial=\"1\"")));
  metrics.add_collector([](Samples& samples) { samples.counter("z_last", "x", {}, 1); });
  EXPECT_THROW(metrics.text(), InternalError);
}

TEST(PrometheusText, HasTheSumsOfQueues) {
  Metrics metrics;
  metrics.add_collector([](Samples& samples) {
    samples.queue("a", {.arrivals = 3, .departures = 2, .seconds = 9, .occupancy = 4.5, .sojourn = 2.5});
    samples.queue("b", {});
  });
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("# TYPE trireme_queue_arrivals_total counter\n"
                              "trireme_queue_arrivals_total{queue=\"a\"} 3\n"
                              "trireme_queue_arrivals_total{queue=\"b\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("trireme_queue_departures_total{queue=\"a\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("trireme_queue_occupancy_seconds_total{queue=\"a\"} 4.5\n"));
  EXPECT_THAT(text, HasSubstr("trireme_queue_wait_seconds_total{queue=\"a\"} 2.5\n"));
}

TEST(PrometheusMetrics, RefuseNamesAndTypesThatAScraperWould) {
  Metrics metrics;
  metrics.counter("c_total", "help");
  EXPECT_THROW(metrics.counter("", "h"), InternalError);
  EXPECT_THROW(metrics.counter("1c", "h"), InternalError);
  EXPECT_THROW(metrics.counter("a-b", "h"), InternalError);
  EXPECT_THROW(metrics.counter("c", "h", {{"a:b", ""}}), InternalError);
  EXPECT_THROW(metrics.counter("c", "h", {{"__name__", ""}}), InternalError);
  EXPECT_THROW(metrics.histogram("h", "h", {1}, {{"le", ""}}), InternalError);
  EXPECT_THROW(metrics.histogram("h", "h", {1, 1}), InternalError);
  EXPECT_THROW(metrics.gauge("c_total", "help"), InternalError);
  EXPECT_THROW(metrics.counter("c_total", "another help"), InternalError);
  EXPECT_THROW(metrics.counter("c_total", "help").add(-1), InternalError);
}

TEST(PrometheusMetrics, AreCountedByManyThreadsWhileTheyAreRead) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&metrics, t] {
      for (int i = 0; i < 1000; ++i) {
        metrics.counter("c_total", "h", {{"thread", std::to_string(t % 2)}}).add();
        metrics.histogram("h", "h", {0.5}).observe(i % 2);
      }
    });
  }
  for (int i = 0; i < 20; ++i) metrics.text();
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(metrics.text(), HasSubstr("c_total{thread=\"0\"} 2000\nc_total{thread=\"1\"} 2000\n"));
  EXPECT_THAT(metrics.text(),
              HasSubstr("h_bucket{le=\"0.5\"} 2000\nh_bucket{le=\"+Inf\"} 4000\nh_sum 2000\nh_count 4000\n"));
}

}  // namespace
}  // namespace trireme::http
