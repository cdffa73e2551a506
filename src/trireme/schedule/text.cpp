// Schedules as text: written, and read back with errors that say where.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/schedule/reading.h"
#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

namespace {

std::vector<std::string> words_of(std::string text) {
  std::ranges::replace(text, '\t', ' ');
  std::vector<std::string> words = split(text, ' ');
  std::erase_if(words, [](const std::string& word) { return word.empty(); });
  return words;
}

std::vector<int> numbers_of(std::string_view text, std::string_view key, int most) {
  std::vector<int> values;
  for (const std::string& word : words_of(std::string(text))) {
    const auto value = read_number(word, most);
    if (!value) throw ConfigError(fmt::format("{}: \"{}\" is not a number from 0 to {}", key, word, most));
    values.push_back(*value);
  }
  return values;
}

int number_of(std::string_view text, std::string_view key) {
  const auto value = read_number(text, kMostMicros);
  if (!value) throw ConfigError(fmt::format("{}: \"{}\" is not a number from 1 to {}", key, text, kMostMicros));
  return *value;
}

void read_header(Schedule& schedule, std::string_view key, std::string_view value) {
  if (key == "name") {
    schedule.name = value;
  } else if (key == "micros") {
    schedule.micros = number_of(value, key);
  } else if (key == "update-every") {
    schedule.update_every = number_of(value, key);
  } else if (key == "micro-parts") {
    schedule.micro_parts = number_of(value, key);
  } else if (key == "clock-distance") {
    schedule.clock_distance = number_of(value, key);
  } else if (key == "weights") {
    schedule.weights = read_weights(value);
  } else if (key == "chunks") {
    schedule.routes.clear();
    for (const std::string& route : split(value, '|'))
      schedule.routes.push_back(numbers_of(route, "chunks", kMostChunks));
  } else if (key == "mixtures") {
    schedule.mixtures = numbers_of(value, "mixtures", kMostMixtures);
  } else if (key == "routes") {
    schedule.route_of = numbers_of(value, "routes", kMostChunks);
  } else {
    const std::string keys[] = {"name",           "micros", "update-every", "micro-parts", "weights",
                                "clock-distance", "chunks", "routes",       "mixtures"};
    throw ConfigError(fmt::format("\"{}\" is no line of a schedule{}", key, did_you_mean(key, keys)),
                      fmt::format("lines are {}:, and rank N: below them", fmt::join(keys, ":, ")));
  }
}

}  // namespace

std::string to_text(const Instruction& instruction, bool with_chunk) {
  const OpInfo& op = info(instruction.op);
  const auto chunk = [&](int index) { return with_chunk ? fmt::format(".{}", index) : std::string(); };
  switch (op.operands) {
    case Operands::kNone:
      return std::string(op.mnemonic);
    case Operands::kChunk:
      return fmt::format("{}{}", op.mnemonic, chunk(instruction.chunk));
    case Operands::kPair:
      return fmt::format("F{}{}+B{}{}", instruction.micro, chunk(instruction.chunk), instruction.back_micro,
                         chunk(instruction.back_chunk));
    default:
      return fmt::format("{}{}{}", op.mnemonic, instruction.micro, chunk(instruction.chunk));
  }
}

std::string ranks_text(const Schedule& schedule) {
  std::string text;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const bool with_chunk = chunks_of(schedule, static_cast<int>(rank)).size() != 1;
    text += fmt::format("rank {}:", rank);
    for (const Instruction& instruction : schedule.ranks[rank]) text += ' ' + to_text(instruction, with_chunk);
    text += '\n';
  }
  return text;
}

std::string to_text(const Schedule& schedule) {
  std::string text = fmt::format("name: {}\nmicros: {}\n", schedule.name, schedule.micros);
  if (schedule.update_every != 0) text += fmt::format("update-every: {}\n", schedule.update_every);
  if (schedule.micro_parts != 1) text += fmt::format("micro-parts: {}\n", schedule.micro_parts);
  if (schedule.weights != WeightChoice::kFlush)
    text += fmt::format("weights: {}\n", name_in(enum_names(std::type_identity<WeightChoice>{}), schedule.weights));
  if (schedule.clock_distance != 0) text += fmt::format("clock-distance: {}\n", schedule.clock_distance);
  text += "chunks: ";
  for (std::size_t route = 0; route < schedule.routes.size(); ++route)
    text += fmt::format("{}{}", route > 0 ? " | " : "", fmt::join(schedule.routes[route], " "));
  if (!schedule.route_of.empty()) text += fmt::format("\nroutes: {}", fmt::join(schedule.route_of, " "));
  if (!schedule.mixtures.empty()) text += fmt::format("\nmixtures: {}", fmt::join(schedule.mixtures, " "));
  return text + '\n' + ranks_text(schedule);
}

Schedule parse(std::string_view text) {
  Schedule schedule;
  for (const std::string& whole : split(text, '\n')) {
    const std::string_view line = trimmed(std::string_view(whole).substr(0, whole.find('#')));
    if (line.empty()) continue;
    const auto colon = line.find(':');
    const std::string_view key = trimmed(line.substr(0, colon));
    if (colon == std::string_view::npos)
      throw ConfigError(fmt::format("\"{}\": a line starts with a key and a colon", line), "like \"rank 0: F0 B0\"");
    const std::string_view value = trimmed(line.substr(colon + 1));
    const int rank = static_cast<int>(schedule.ranks.size());
    if (!key.starts_with("rank ")) {
      if (rank > 0) throw ConfigError(fmt::format("\"{}\" comes after the ranks", key), "put it above \"rank 0:\"");
      read_header(schedule, key, value);
      continue;
    }
    if (key != fmt::format("rank {}", rank))
      throw ConfigError(fmt::format("\"{}\" stands where \"rank {}\" is expected", key, rank), "ranks come in order");
    if (rank == 0) check_header(schedule);
    InstructionReader reader(schedule, rank);
    auto& list = schedule.ranks.emplace_back();
    for (const std::string& token : words_of(std::string(value))) list.push_back(reader.read(token, list.size()));
  }
  check_header(schedule);
  check_placement(schedule);
  return schedule;
}

Schedule read(std::string_view text) { return trimmed(text).starts_with('{') ? from_json(text) : parse(text); }

}  // namespace trireme::schedule
