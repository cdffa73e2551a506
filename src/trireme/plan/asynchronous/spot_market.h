// plan/asynchronous/spot_market.h -- prices of machines that may be taken away: a trace as data, made from a seed or
// read from a CSV file, and what its past says of an offer.
//
// The rules are those that Proteus met (Harlap, dissertation, chapter 4): one bids; while the market price is at most
// the bid, the machine runs and each hour costs the price at its begin; when the price exceeds the bid the machine is
// taken, and the hour that it was taken in is free.
// Depends on: base.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::plan {

struct PriceTrace {
  double on_demand = 1;  ///< dollars a machine and hour
  double step_seconds = 300;
  std::vector<double> prices;  ///< one for each step
  double seconds() const { return step_seconds * static_cast<double>(prices.size()); }
  /// The first and the last price go on for ever.
  double at(double time) const;
  /// When the price first exceeds `bid` from `time` on; infinite where it never does.
  double exceeds(double bid, double time) const;
};

/// Low most of the time with spikes above the on-demand price, as published traces are: a mean-reverting walk in the
/// logarithm, and spikes that come by chance and last for minutes to hours.
PriceTrace make_price_trace(double days, double on_demand, std::uint64_t seed);
/// Lines "seconds,price" after an optional heading, ascending; kept at steps of five minutes. ConfigError naming the
/// line.
PriceTrace read_price_trace(std::string_view csv, double on_demand);

/// What the past of a trace says of bids.
class BidHistory {
 public:
  /// Of the trace before `until`.
  BidHistory(const PriceTrace& trace, double until);
  struct Outlook {
    double evicted = 0;            ///< probability within an hour
    double useful_seconds = 3600;  ///< expected in an hour, until it is taken or the hour is over
  };
  /// Of a bid of so many dollars above the price at that time.
  Outlook of(double above_price) const;

 private:
  const PriceTrace& trace_;
  double until_;
};

}  // namespace trireme::plan
