#include "trireme/plan/asynchronous/spot_market.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"

namespace trireme::plan {
namespace {

constexpr double kHour = 3600;

double spot_number(std::string_view text, std::size_t line) {
  double value = 0;
  const std::string_view word = trimmed(text);
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (failure != std::errc{} || end != word.data() + word.size() || !(value >= 0))
    throw ConfigError(fmt::format("line {} of the price trace: \"{}\" is not a number from 0 on", line, word),
                      "lines are seconds,price");
  return value;
}

}  // namespace

double PriceTrace::at(double time) const {
  TRIREME_CHECK(!prices.empty(), "a price trace without prices");
  const auto index = static_cast<std::int64_t>(std::floor(time / step_seconds));
  return prices[static_cast<std::size_t>(
      std::clamp<std::int64_t>(index, 0, static_cast<std::int64_t>(prices.size()) - 1))];
}

double PriceTrace::exceeds(double bid, double time) const {
  for (auto index = static_cast<std::size_t>(std::max(0.0, std::floor(time / step_seconds))); index < prices.size();
       ++index) {
    if (prices[index] > bid) return std::max(time, step_seconds * static_cast<double>(index));
  }
  return std::numeric_limits<double>::infinity();
}

PriceTrace make_price_trace(double days, double on_demand, std::uint64_t seed) {
  const Random walk(seed, "spot price"), spikes(seed, "spot spikes");
  PriceTrace trace{.on_demand = on_demand};
  const auto steps = static_cast<std::size_t>(days * 24 * kHour / trace.step_seconds);
  const double usual = std::log(0.25 * on_demand);
  double log_price = usual, spike_until = -1, spike = 1;
  for (std::size_t i = 0; i < steps; ++i) {
    log_price += 0.05 * (usual - log_price) + 0.03 * walk.normal(i);
    const double now = trace.step_seconds * static_cast<double>(i);
    // About two a day, from ten minutes to three hours, up to four times the on-demand price.
    if (now >= spike_until && spikes.uniform(3 * i) < 2.0 * trace.step_seconds / (24 * kHour)) {
      spike_until = now + 600 + spikes.uniform(3 * i + 1) * 10200;
      spike = 1 + 15 * spikes.uniform(3 * i + 2);
    }
    trace.prices.push_back(std::exp(log_price) * (now < spike_until ? spike : 1));
  }
  return trace;
}

PriceTrace read_price_trace(std::string_view csv, double on_demand) {
  PriceTrace trace{.on_demand = on_demand};
  double last_time = -1, last_price = 0, begin = 0;
  std::size_t number = 0;
  for (const std::string& line : split(csv, '\n')) {
    ++number;
    const std::string_view text = trimmed(line);
    if (text.empty()) continue;
    const std::size_t comma = text.find(',');
    const bool heading = number == 1 && text.find_first_not_of("0123456789.,-+eE ") != std::string_view::npos;
    if (heading) continue;
    if (comma == std::string_view::npos)
      throw ConfigError(fmt::format("line {} of the price trace has no comma", number), "lines are seconds,price");
    const double time = spot_number(text.substr(0, comma), number), price = spot_number(text.substr(comma + 1), number);
    if (time <= last_time)
      throw ConfigError(
          fmt::format("line {} of the price trace goes back in time: {} after {}", number, time, last_time),
          "sort the lines by their seconds");
    if (last_time < 0) begin = time;
    while (last_time >= 0 && trace.seconds() < time - begin) trace.prices.push_back(last_price);
    last_time = time;
    last_price = price;
  }
  if (last_time < 0) throw ConfigError("the price trace holds no price", "lines are seconds,price");
  trace.prices.push_back(last_price);
  return trace;
}

BidHistory::BidHistory(const PriceTrace& trace, double until) : trace_(trace), until_(until) {}

BidHistory::Outlook BidHistory::of(double above_price) const {
  double starts = 0, taken = 0, useful = 0;
  for (double time = 0; time + kHour <= until_; time += 2 * trace_.step_seconds) {
    const double end = trace_.exceeds(trace_.at(time) + above_price, time) - time;
    ++starts;
    taken += end < kHour ? 1 : 0;
    useful += std::min(end, kHour);
  }
  if (starts == 0) return {};
  return {.evicted = taken / starts, .useful_seconds = useful / starts};
}

}  // namespace trireme::plan
