#include "trireme/http/metrics.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme::http {
namespace {

std::string_view type_name(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

bool is_name(std::string_view name, bool colons) {
  const auto letter = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colons && c == ':');
  };
  const auto fits = [&](char c) { return letter(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && letter(name.front()) && std::ranges::all_of(name, fits);
}

void check_names(std::string_view name, MetricType type, const Labels& labels) {
  TRIREME_CHECK(is_name(name, true), "\"{}\" is no name of a metric", name);
  for (const auto& [label, value] : labels) {
    const bool reserved = label.starts_with("__") || (type == MetricType::kHistogram && label == "le");
    TRIREME_CHECK(is_name(label, false) && !reserved, "\"{}\" is no label for the metric {}", label, name);
  }
}

void append_escaped(std::string& out, std::string_view text, bool quotes) {
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\\' || (quotes && c == '"')) {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

void append_sample(std::string& out, std::string_view name, const Labels& labels, std::string_view value) {
  out += name;
  char separator = '{';
  for (const auto& [label, text] : labels) {
    out += separator;
    out += label;
    out += "=\"";
    append_escaped(out, text, true);
    out += '"';
    separator = ',';
  }
  if (!labels.empty()) out += '}';
  out += ' ';
  out += value;
  out += '\n';
}

void append_intro(std::string& out, std::string_view name, std::string_view help, MetricType type) {
  out += fmt::format("# HELP {} ", name);
  append_escaped(out, help, false);
  out += fmt::format("\n# TYPE {} {}\n", name, type_name(type));
}

void append_histogram(std::string& out, const std::string& name, const Labels& labels, const Histogram& histogram) {
  // The total is that of the counts that are shown, whatever is counted meanwhile.
  std::uint64_t total = 0;
  const std::vector<std::uint64_t> counts = histogram.counts();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    total += counts[i];
    Labels with_bound = labels;
    with_bound.emplace_back("le", i < histogram.bounds().size() ? number_text(histogram.bounds()[i]) : "+Inf");
    append_sample(out, name + "_bucket", with_bound, std::to_string(total));
  }
  append_sample(out, name + "_sum", labels, number_text(histogram.sum()));
  append_sample(out, name + "_count", labels, std::to_string(total));
}

}  // namespace

void Counter::add(double by) {
  TRIREME_CHECK(by >= 0, "a counter cannot fall by {}", -by);
  value_.fetch_add(by, std::memory_order_relaxed);
}

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  const auto not_rising = [](double a, double b) { return !(a < b); };
  TRIREME_CHECK(std::ranges::adjacent_find(bounds_, not_rising) == bounds_.end() &&
                    std::ranges::all_of(bounds_, [](double bound) { return std::isfinite(bound); }),
                "the bounds of a histogram must be finite and rise");
}

void Histogram::observe(double value) {
  if (std::isnan(value)) return;  // it would be in no bucket, and make the sum useless for good
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::vector<std::uint64_t> Histogram::counts() const {
  std::vector<std::uint64_t> out;
  for (const auto& count : counts_) out.push_back(count.load(std::memory_order_relaxed));
  return out;
}

std::vector<double> time_bounds() {
  return {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30};
}

void Samples::add(std::string_view name, std::string_view help, MetricType type, Labels labels, double value) {
  check_names(name, type, labels);
  const auto [entry, fresh] = families_.try_emplace(std::string(name), Family{std::string(help), type, {}});
  TRIREME_CHECK(fresh || entry->second.type == type, "the metric {} is registered as two types", name);
  entry->second.values.emplace_back(std::move(labels), value);
}

void Samples::counter(std::string_view name, std::string_view help, Labels labels, double value) {
  add(name, help, MetricType::kCounter, std::move(labels), value);
}

void Samples::gauge(std::string_view name, std::string_view help, Labels labels, double value) {
  add(name, help, MetricType::kGauge, std::move(labels), value);
}

void Samples::queue(std::string_view name, const QueueReading& reading) {
  const Labels labels = {{"queue", std::string(name)}};
  counter("trireme_queue_arrivals_total", "What has come into a queue", labels, static_cast<double>(reading.arrivals));
  counter("trireme_queue_departures_total", "What has left it", labels, static_cast<double>(reading.departures));
  counter("trireme_queue_occupancy_seconds_total", "Its length, integrated over time: its rate is the mean length",
          labels, reading.occupancy);
  counter("trireme_queue_wait_seconds_total", "Seconds from arrival to departure, of all that has left", labels,
          reading.sojourn);
}

Metrics::Family& Metrics::family(std::string_view name, std::string_view help, MetricType type, const Labels& labels) {
  check_names(name, type, labels);
  auto found = families_.find(name);
  if (found == families_.end())
    found = families_.emplace(std::string(name), Family{std::string(help), type, {}, {}, {}}).first;
  TRIREME_CHECK(found->second.type == type && found->second.help == help,
                "the metric {} is there already as a {} with the help \"{}\"", name, type_name(found->second.type),
                found->second.help);
  return found->second;
}

Counter& Metrics::counter(std::string_view name, std::string_view help, Labels labels) {
  const std::lock_guard lock(mutex_);
  auto& metric = family(name, help, MetricType::kCounter, labels).counters[std::move(labels)];
  if (!metric) metric = std::make_unique<Counter>();
  return *metric;
}

Gauge& Metrics::gauge(std::string_view name, std::string_view help, Labels labels) {
  const std::lock_guard lock(mutex_);
  auto& metric = family(name, help, MetricType::kGauge, labels).gauges[std::move(labels)];
  if (!metric) metric = std::make_unique<Gauge>();
  return *metric;
}

Histogram& Metrics::histogram(std::string_view name, std::string_view help, std::vector<double> bounds, Labels labels) {
  const std::lock_guard lock(mutex_);
  Family& same_name = family(name, help, MetricType::kHistogram, labels);
  if (!same_name.histograms.empty())
    TRIREME_CHECK(same_name.histograms.begin()->second->bounds() == bounds, "the histogram {} has other bounds", name);
  auto& metric = same_name.histograms[std::move(labels)];
  if (!metric) metric = std::make_unique<Histogram>(std::move(bounds));
  return *metric;
}

void Metrics::add_collector(std::function<void(Samples&)> collect) {
  const std::lock_guard lock(mutex_);
  collectors_.push_back(std::move(collect));
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  Samples samples;
  for (const auto& collect : collectors_) collect(samples);
  std::map<std::string, std::string, std::less<>> texts;  // by the name of the family
  for (const auto& [name, family] : families_) {
    std::string& out = texts[name];
    append_intro(out, name, family.help, family.type);
    for (const auto& [labels, counter] : family.counters)
      append_sample(out, name, labels, number_text(counter->value()));
    for (const auto& [labels, gauge] : family.gauges) append_sample(out, name, labels, number_text(gauge->value()));
    for (const auto& [labels, histogram] : family.histograms) append_histogram(out, name, labels, *histogram);
  }
  for (const auto& [name, family] : samples.families_) {
    TRIREME_CHECK(!texts.contains(name), "a collector emits the metric {}, which is registered", name);
    std::string& out = texts[name];
    append_intro(out, name, family.help, family.type);
    for (const auto& [labels, value] : family.values) append_sample(out, name, labels, number_text(value));
  }
  std::string out;
  for (const auto& [name, text] : texts) out += text;
  return out;
}

}  // namespace trireme::http
