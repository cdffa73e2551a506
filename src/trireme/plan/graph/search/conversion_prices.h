// plan/graph/search/conversion_prices.h -- prices of conversions, each looked up once: layers repeat.
//
// Depends on: pricing.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "trireme/plan/graph/pricing.h"

namespace trireme::plan::graph {

/// Shardings get numbers; a conversion is known by the tensor's bytes and two of them.
class ConversionPrices {
 public:
  explicit ConversionPrices(const Pricing& pricing) : pricing_(pricing) {}

  int id_of(const Sharding& sharding) {
    std::string key;
    for (const MeshAxes& axes : sharding.dims) {
      for (const int axis : axes) key += static_cast<char>('0' + axis);
      key += ',';
    }
    for (const int axis : sharding.partial) key += static_cast<char>('0' + axis);
    const auto [place, is_new] = ids_.try_emplace(std::move(key), static_cast<int>(shardings_.size()));
    if (is_new) shardings_.push_back(sharding);
    return place->second;
  }
  double seconds(double bytes, int from, int to, bool is_update) {
    if (from == to) return 0;
    const Key key{bytes, (static_cast<std::uint64_t>(from) << 33) | (static_cast<std::uint64_t>(to) << 1) | is_update};
    const auto [place, is_new] = prices_.try_emplace(key, 0.0);
    if (is_new) {
      for (const Step& step :
           convert(pricing_.mesh(), bytes, shardings_[std::size_t(from)], shardings_[std::size_t(to)]))
        place->second += is_update ? pricing_.reduction_seconds(step) : pricing_.seconds(step);
    }
    return place->second;
  }

 private:
  struct Key {
    double bytes;
    std::uint64_t ends;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return std::hash<double>{}(key.bytes) * 0x9E3779B97F4A7C15u + key.ends * 0xD1B54A32D192ED03u;
    }
  };
  const Pricing& pricing_;
  std::unordered_map<std::string, int> ids_;
  std::vector<Sharding> shardings_;
  std::unordered_map<Key, double, Hash> prices_;
};

}  // namespace trireme::plan::graph
