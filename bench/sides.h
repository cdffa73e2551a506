// bench/sides.h -- sides that took turns: what each took, and how fast one was beside another in the same turn.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/times.h"
#include "trireme/base/text.h"

namespace trireme::bench {

inline nlohmann::ordered_json json_of(const Times& times) {
  return {{"median", times.median()}, {"q25", times.quantile(0.25)}, {"q75", times.quantile(0.75)}};
}

/// A ratio with what it should be at least; 0: there to be looked at.
struct Ratio {
  std::string name;
  double goal = 0;
  Times values;  ///< one a round
};

class Sides {
 public:
  /// A sample of each side in each round: `work` done in `seconds`.
  void add(const std::string& name, double work, double seconds) {
    if (!sides_.contains(name)) order_.push_back(name);
    Side& side = sides_[name];
    side.seconds.seconds.push_back(seconds);
    side.rates.seconds.push_back(work / seconds);
  }

  /// The rate of one over `factor` times that of the other, round by round: what disturbs a round disturbs both.
  void compare(const std::string& name, const std::string& one, const std::string& other, double goal,
               double factor = 1) {
    if (!sides_.contains(one) || !sides_.contains(other)) return;
    Ratio ratio{.name = name, .goal = goal, .values = {}};
    const auto &a = sides_[one].rates.seconds, &b = sides_[other].rates.seconds;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
      ratio.values.seconds.push_back(a[i] / (factor * b[i]));
    }
    ratios_.push_back(std::move(ratio));
  }

  std::string text(const std::string& unit) const {
    TextTable table({{"side"}, {"ms"}, {"quartiles"}, {unit}});
    for (const std::string& name : order_) {
      const Side& side = sides_.at(name);
      table.add({name, fmt::format("{:.2f}", side.seconds.median() * 1e3),
                 fmt::format("{:.2f}-{:.2f}", side.seconds.quantile(0.25) * 1e3, side.seconds.quantile(0.75) * 1e3),
                 fmt::format("{:.{}f}", side.rates.median(), side.rates.median() < 100 ? 1 : 0)});
    }
    TextTable ratios({{"ratio"}, {"median"}, {"quartiles"}, {"goal"}, {"met"}});
    for (const Ratio& ratio : ratios_) {
      const bool judged = ratio.goal > 0;
      ratios.add({ratio.name, fmt::format("{:.3f}", ratio.values.median()),
                  fmt::format("{:.3f}-{:.3f}", ratio.values.quantile(0.25), ratio.values.quantile(0.75)),
                  judged ? fmt::format("{:.2f}", ratio.goal) : "-",
                  !judged                               ? "-"
                  : ratio.values.median() >= ratio.goal ? "yes"
                                                        : "no"});
    }
    return table.text("  ") + "\n" + (ratios.rows() > 0 ? ratios.text("  ") + "\n" : "");
  }

  nlohmann::ordered_json json() const {
    nlohmann::ordered_json out{{"sides", nlohmann::ordered_json::array()}, {"ratios", nlohmann::ordered_json::array()}};
    for (const std::string& name : order_) {
      const Side& side = sides_.at(name);
      out["sides"].push_back({{"name", name}, {"seconds", json_of(side.seconds)}, {"rate", json_of(side.rates)}});
    }
    for (const Ratio& ratio : ratios_) {
      nlohmann::ordered_json entry{{"name", ratio.name}, {"value", json_of(ratio.values)}};
      if (ratio.goal > 0) entry["goal"] = ratio.goal, entry["met"] = ratio.values.median() >= ratio.goal;
      out["ratios"].push_back(std::move(entry));
    }
    return out;
  }

 private:
  struct Side {
    Times seconds, rates;
  };
  std::map<std::string, Side> sides_;
  std::vector<std::string> order_;
  std::vector<Ratio> ratios_;
};

}  // namespace trireme::bench
