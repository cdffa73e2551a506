// Schedules as JSON: the same keys and the same words for instructions as in the text, for programs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/schedule/reading.h"
#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

namespace {

void check_keys(const nlohmann::json& json) {
  const std::vector<std::string> known{"name",           "micros", "update-every", "micro-parts", "weights",
                                       "clock-distance", "chunks", "routes",       "mixtures",    "ranks"};
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(known, key) == known.end())
      throw ConfigError(fmt::format("\"{}\" is no key of a schedule{}", key, did_you_mean(key, known)),
                        fmt::format("keys are {}", listed(known)));
  }
}

}  // namespace

std::string to_json(const Schedule& schedule) {
  nlohmann::ordered_json json = {{"name", schedule.name}, {"micros", schedule.micros}};
  if (schedule.update_every != 0) json["update-every"] = schedule.update_every;
  if (schedule.micro_parts != 1) json["micro-parts"] = schedule.micro_parts;
  if (schedule.weights != WeightChoice::kFlush)
    json["weights"] = name_in(enum_names(std::type_identity<WeightChoice>{}), schedule.weights);
  if (schedule.clock_distance != 0) json["clock-distance"] = schedule.clock_distance;
  json["chunks"] = schedule.routes;
  if (!schedule.route_of.empty()) json["routes"] = schedule.route_of;
  if (!schedule.mixtures.empty()) json["mixtures"] = schedule.mixtures;
  auto& ranks = json["ranks"] = nlohmann::ordered_json::array();
  for (const auto& list : schedule.ranks) {
    auto& row = ranks.emplace_back(nlohmann::ordered_json::array());
    for (const Instruction& instruction : list) row.push_back(to_text(instruction, true));
  }
  // A name read from a file may hold any bytes.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

Schedule from_json(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    check_keys(json);
    Schedule schedule;
    schedule.name = json.value("name", "");
    schedule.micros = json.at("micros").get<int>();
    schedule.update_every = json.value("update-every", 0);
    schedule.micro_parts = json.value("micro-parts", 1);
    schedule.weights = read_weights(json.value("weights", "flush"));
    schedule.clock_distance = json.value("clock-distance", 0);
    schedule.routes = json.at("chunks").get<std::vector<std::vector<int>>>();
    if (json.contains("routes")) schedule.route_of = json.at("routes").get<std::vector<int>>();
    if (json.contains("mixtures")) schedule.mixtures = json.at("mixtures").get<std::vector<int>>();
    check_header(schedule);
    for (const auto& row : json.at("ranks")) {
      InstructionReader reader(schedule, static_cast<int>(schedule.ranks.size()));
      auto& list = schedule.ranks.emplace_back();
      for (const auto& token : row) {
        const auto word = token.get<std::string>();
        list.push_back(reader.read(word, list.size()));
      }
    }
    check_placement(schedule);
    return schedule;
  } catch (const nlohmann::json::exception& failure) {
    throw ConfigError(fmt::format("this is no schedule in JSON: {}", failure.what()),
                      "it has micros, chunks (a list for each route) and ranks (a list of texts for each rank)");
  }
}

}  // namespace trireme::schedule
