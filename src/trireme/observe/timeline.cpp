#include "trireme/observe/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "trireme/base/wall_clock.h"

namespace trireme::observe {

Timeline::Timeline(std::filesystem::path file, std::string who) : who_(std::move(who)) {
  for (const TimelineEvent& event : read_timeline(file)) hear(event.clock);
  descriptor_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

Timeline::~Timeline() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Timeline::tell(std::string_view event) noexcept { tell(event, Json::object()); }

void Timeline::tell(std::string_view event, const Json& fields) noexcept {
  try {
    Json line{{"clock", ++clock_}, {"who", who_}, {"event", event}, {"time", wall_seconds()}};
    line.update(fields);
    const std::string text = line.dump() + "\n";
    if (descriptor_ >= 0) [[maybe_unused]]
      const auto ignored = ::write(descriptor_, text.data(), text.size());
  } catch (...) {  // it is told elsewhere too
  }
}

std::vector<TimelineEvent> read_timeline(const std::filesystem::path& file) {
  std::vector<TimelineEvent> events;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("clock") || !json["clock"].is_number_integer()) continue;
    events.push_back({.clock = json["clock"].get<std::int64_t>(),
                      .who = json.value("who", ""),
                      .event = json.value("event", ""),
                      .time = json.value("time", 0.0)});
  }
  std::ranges::stable_sort(events, [](const TimelineEvent& a, const TimelineEvent& b) {
    return std::tie(a.clock, a.who) < std::tie(b.clock, b.who);
  });
  return events;
}

}  // namespace trireme::observe
