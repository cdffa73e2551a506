// http/metrics.h -- counters, gauges and histograms, and their text for Prometheus (format 0.0.4).
//
//   Counter& tokens = metrics.counter("trireme_tokens_total", "Tokens generated", {{"model", name}});
//   tokens.add(17);
//
// Any thread may count while another one writes the text. What comes and goes, such as the state of each trial, is
// told by a collector, which is asked when somebody scrapes.
// Depends on: base.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/queue_meter.h"

namespace trireme::http {

using Labels = std::vector<std::pair<std::string, std::string>>;  // in the order in which they are shown

class Counter {
 public:
  /// `by` is not negative.
  void add(double by = 1);
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0;
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double by) { value_.fetch_add(by, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0;
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  /// One for each bound and one for what is above all, each bucket by itself.
  std::vector<std::uint64_t> counts() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;  // rising; a bucket holds what is at most its bound
  std::vector<std::atomic<std::uint64_t>> counts_;
  std::atomic<double> sum_ = 0;
};

/// 0.5 ms to 30 s, for the time that a request takes.
std::vector<double> time_bounds();

enum class MetricType : std::uint8_t { kCounter, kGauge, kHistogram };

/// What a collector tells: single values, of names that may not be those of registered metrics.
class Samples {
 public:
  void counter(std::string_view name, std::string_view help, Labels labels, double value);
  void gauge(std::string_view name, std::string_view help, Labels labels, double value);
  /// trireme_queue_*{queue="NAME"}: sums that grow, from which any two scrapes give L, lambda and W of the time between
  /// them (Little's law).
  void queue(std::string_view name, const QueueReading& reading);

 private:
  friend class Metrics;
  struct Family {
    std::string help;
    MetricType type;
    std::vector<std::pair<Labels, double>> values;
  };
  void add(std::string_view name, std::string_view help, MetricType type, Labels labels, double value);
  std::map<std::string, Family, std::less<>> families_;
};

class Metrics {
 public:
  /// The one of this name and these labels, made at the first call; it lives as long as this object. InternalError for
  /// names that Prometheus does not take, and for a name that has had another type, help or other bounds.
  Counter& counter(std::string_view name, std::string_view help, Labels labels = {});
  Gauge& gauge(std::string_view name, std::string_view help, Labels labels = {});
  Histogram& histogram(std::string_view name, std::string_view help, std::vector<double> bounds, Labels labels = {});

  /// `collect` is called for every text(), one at a time; it must not use this object.
  void add_collector(std::function<void(Samples&)> collect);

  /// Families by name, in each the labels in order.
  std::string text() const;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Family {
    std::string help;
    MetricType type;
    std::map<Labels, std::unique_ptr<Counter>> counters;
    std::map<Labels, std::unique_ptr<Gauge>> gauges;
    std::map<Labels, std::unique_ptr<Histogram>> histograms;
  };
  Family& family(std::string_view name, std::string_view help, MetricType type, const Labels& labels);

  mutable std::mutex mutex_;
  std::map<std::string, Family, std::less<>> families_;
  std::vector<std::function<void(Samples&)>> collectors_;
};

}  // namespace trireme::http
