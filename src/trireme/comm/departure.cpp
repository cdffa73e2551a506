#include "trireme/comm/departure.h"

#include <fmt/format.h>

#include <sstream>

namespace trireme::comm {

std::string to_text(const Departure& departure) {
  std::string text = "left\n";
  for (const auto& [channel, count] : departure.calls) text += fmt::format("calls {} {}\n", channel, count);
  for (const auto& [lane, count] : departure.sends)
    text += fmt::format("sends {} {} {}\n", lane.first, lane.second, count);
  return text;
}

std::optional<Departure> parse_departure(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != "left") return std::nullopt;
  Departure departure;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string what;
    std::uint32_t channel = 0;
    std::uint64_t count = 0;
    int to = 0;
    words >> what >> channel;
    if (what == "sends") words >> to;
    words >> count;
    if (!words || (what != "calls" && what != "sends")) return std::nullopt;
    if (what == "calls") {
      departure.calls[channel] = count;
    } else {
      departure.sends[{channel, to}] = count;
    }
  }
  return departure;
}

}  // namespace trireme::comm
