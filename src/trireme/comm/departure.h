// comm/departure.h -- how far a rank had come in each of its groups when it left in good order.
//
// A rank may do its part of a call and leave before others arrive; that is no failure. One that left without having
// begun a call will never come: those who wait for it learn so at once.
// Depends on: std.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace trireme::comm {

struct Departure {
  std::map<std::uint32_t, std::uint64_t> calls;  // collectives begun, by channel
  std::map<std::pair<std::uint32_t, int>, std::uint64_t>
      sends;  // by channel and rank sent to; none where there were none

  bool operator==(const Departure&) const = default;
};

/// One line an entry; what does not read back gives nothing.
std::string to_text(const Departure& departure);
std::optional<Departure> parse_departure(const std::string& text);

}  // namespace trireme::comm
