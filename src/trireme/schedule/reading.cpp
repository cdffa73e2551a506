#include "trireme/schedule/reading.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::schedule {

namespace {

std::string known_mnemonics() {
  std::vector<std::string> names;
  for (const OpInfo& op : op_table()) names.emplace_back(op.mnemonic);
  return listed(names);
}

}  // namespace

std::optional<int> read_number(std::string_view text, int most) {
  int value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size() || value < 0 || value > most) return std::nullopt;
  return value;
}

WeightChoice read_weights(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& law : enum_names(std::type_identity<WeightChoice>{})) {
    if (law.name == name) return law.value;
    names.emplace_back(law.name);
  }
  throw ConfigError(fmt::format("weights: \"{}\" is unknown{}", name, did_you_mean(name, names)),
                    fmt::format("one of {}", listed(names)));
}

void check_header(const Schedule& schedule) {
  if (schedule.micros < 1 || schedule.micros > kMostMicros)
    throw ConfigError(fmt::format("micros: {} is not between 1 and {}", schedule.micros, kMostMicros),
                      "a line like \"micros: 8\" comes before the ranks");
  if (schedule.update_every < 0 || schedule.update_every > schedule.micros)
    throw ConfigError(
        fmt::format("update-every: {} is not between 0 and the {} micros", schedule.update_every, schedule.micros),
        "leave it out where all micros make one optimizer step");
  if (schedule.micro_parts < 1 || schedule.micros % schedule.micro_parts != 0)
    throw ConfigError(
        fmt::format("micro-parts: {} micros are no micro-batches of {} each", schedule.micros, schedule.micro_parts),
        "leave it out where no micro-batch is cut");
  if (schedule.clock_distance != 0 && schedule.weights != WeightChoice::kWaves)
    throw ConfigError(fmt::format("clock-distance: {} stands in a schedule without waves", schedule.clock_distance),
                      "leave it out, or write \"weights: waves\"");
  if (schedule.chunks() < 1 || schedule.chunks() > kMostChunks)
    throw ConfigError(fmt::format("chunks: {} chunks are placed; 1 to {} can be", schedule.chunks(), kMostChunks),
                      "a line like \"chunks: 0 1 2 3\" names the rank of each chunk, before the ranks");
  if (!schedule.mixtures.empty() && static_cast<int>(schedule.mixtures.size()) != schedule.chunks())
    throw ConfigError(fmt::format("mixtures: {} are given for {} chunks", schedule.mixtures.size(), schedule.chunks()),
                      "a number for each chunk, 0 where it has none; or leave the line out");
  if (long{schedule.micros} * schedule.chunks() > kMostCells)
    throw ConfigError(
        fmt::format("{} micros x {} chunks are more than {}", schedule.micros, schedule.chunks(), kMostCells));
  for (const auto& route : schedule.routes) {
    if (route.size() != schedule.routes.front().size())
      throw ConfigError(
          fmt::format("chunks: one route has {} chunks, another {}", schedule.routes.front().size(), route.size()));
  }
  const int routes = static_cast<int>(schedule.routes.size());
  if (!schedule.route_of.empty() && static_cast<int>(schedule.route_of.size()) != schedule.micros)
    throw ConfigError(fmt::format("routes: {} are given for {} micros", schedule.route_of.size(), schedule.micros));
  for (const int route : schedule.route_of) {
    if (route < 0 || route >= routes) throw ConfigError(fmt::format("routes: there is no route {}", route));
  }
}

void check_placement(const Schedule& schedule) {
  const int ranks = static_cast<int>(schedule.ranks.size());
  for (const auto& route : schedule.routes) {
    for (const int rank : route) {
      if (rank < 0 || rank >= ranks)
        throw ConfigError(fmt::format("chunks: a chunk is placed on rank {}, but there are {} ranks", rank, ranks));
    }
  }
}

InstructionReader::InstructionReader(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {
  const auto held = chunks_of(schedule, rank);
  if (held.size() == 1) only_chunk_ = held.front();
}

Instruction InstructionReader::read(std::string_view token, std::size_t position) {
  token_ = token;
  position_ = position;
  const auto plus = token.find('+');
  if (plus == std::string_view::npos) return single(token);
  const Instruction forward = single(token.substr(0, plus)), backward = single(token.substr(plus + 1));
  if (forward.op != Op::kForward || backward.op != Op::kBackward)
    fail("only a forward and a whole backward overlap", "write it like F3+B1");
  return make_pair(forward.chunk, forward.micro, backward.chunk, backward.micro);
}

void InstructionReader::fail(const std::string& why, const std::string& hint) const {
  throw ConfigError(fmt::format("rank {}, position {}: \"{}\": {}", rank_, position_, token_, why), hint);
}

Instruction InstructionReader::single(std::string_view text) const {
  const auto letters_end = std::ranges::find_if_not(text, [](char c) { return c >= 'A' && c <= 'Z'; });
  const auto letters = text.substr(0, static_cast<std::size_t>(letters_end - text.begin()));
  const auto op = std::ranges::find(op_table(), letters, &OpInfo::mnemonic);
  if (op == op_table().end()) fail("no such instruction", "instructions are " + known_mnemonics());
  std::string_view rest = text.substr(letters.size());
  if (op->operands == Operands::kNone) {
    if (!rest.empty()) fail("does not take a number", fmt::format("write {}", op->mnemonic));
    return make(op->op, -1, -1);
  }
  const auto dot = rest.find('.');
  const int chunk = dot == std::string_view::npos ? implied_chunk() : chunk_in(rest.substr(dot + 1));
  rest = rest.substr(0, dot);
  if (op->operands == Operands::kChunk) {
    if (!rest.empty()) fail("takes a chunk but no micro", fmt::format("write {}.{}", op->mnemonic, chunk));
    return make(op->op, chunk, -1);
  }
  return make(op->op, chunk, micro_in(rest, *op));
}

int InstructionReader::implied_chunk() const {
  if (only_chunk_ < 0)
    fail("the rank does not hold exactly one chunk, so the chunk must be named", "write it like F3.1");
  return only_chunk_;
}

int InstructionReader::chunk_in(std::string_view text) const {
  const auto chunk = read_number(text, schedule_.last_chunk());
  if (!chunk) fail(fmt::format("\"{}\" is no chunk", text), fmt::format("chunks are 0 to {}", schedule_.last_chunk()));
  return *chunk;
}

int InstructionReader::micro_in(std::string_view text, const OpInfo& op) const {
  // A prediction may aim beyond the last update of the table.
  const bool version = op.operands == Operands::kVersionAndChunk;
  const int most = version ? kMostMicros : schedule_.micros - 1;
  const auto micro = read_number(text, most);
  const std::string_view word = version ? "version" : "micro";
  if (!micro) fail(fmt::format("\"{}\" is no {}", text, word), fmt::format("{}s are 0 to {}", word, most));
  return *micro;
}

}  // namespace trireme::schedule
