#include "trireme/observe/records.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"

namespace trireme::observe {
namespace {

const Json& field(const Json& line, const char* name) {
  if (!line.is_object()) throw IoError("is no JSON object");
  const auto at = line.find(name);
  if (at == line.end()) throw IoError(fmt::format("has no field \"{}\"", name));
  return *at;
}

[[noreturn]] void wrong_type(const char* name, std::string_view wanted, const Json& value) {
  throw IoError(fmt::format("field \"{}\" must be {}, but is {}", name, wanted, line_of(value)));
}

double real(const Json& line, const char* name) {
  const Json& value = field(line, name);
  if (const auto number = as_number(value)) return *number;
  wrong_type(name, "a number", value);
}

std::int64_t integer(const Json& line, const char* name) {
  const Json& value = field(line, name);
  if (!value.is_number_integer()) wrong_type(name, "a whole number", value);
  return value.get<std::int64_t>();
}

std::int64_t step_of(const Json& line) {
  const std::int64_t step = integer(line, "step");
  if (step < 0) wrong_type("step", "0 or more", step);
  return step;
}

std::uint64_t bits_in(const char* name, const Json& value) {
  const auto bits = value.is_string() ? parse_hex(value.get_ref<const std::string&>()) : std::nullopt;
  if (!bits) wrong_type(name, "a text of 16 hexadecimal digits", value);
  return *bits;
}

}  // namespace

Json to_json(const StepRecord& record) {
  const Breakdown& parts = record.breakdown;
  Json line{{"step", record.step},
            {"loss", number(record.loss)},
            {"grad_norm", number(record.grad_norm)},
            {"lr", number(record.lr)},
            {"tokens", record.tokens},
            {"tokens_per_s", number(record.tokens_per_s)},
            {"mfu", record.mfu ? number(*record.mfu) : Json()},
            {"memory", record.memory},
            {"seconds", number(record.seconds)},
            {"breakdown",
             {{"compute", number(parts.compute)},
              {"data", number(parts.data)},
              {"comm", number(parts.comm)},
              {"overhead", number(parts.overhead)}}}};
  if (record.hash) line["hash"] = *record.hash;
  for (const NamedLoss& term : record.losses) {
    line["losses"][term.name] = {{"mean", number(term.mean)}, {"weight", number(term.weight)}};
  }
  for (const NamedQueue& queue : record.queues) {
    const QueueReading& reading = queue.reading;
    line["queues"][queue.name] = {{"arrivals", reading.arrivals},       {"departures", reading.departures},
                                  {"seconds", number(reading.seconds)}, {"occupancy", number(reading.occupancy)},
                                  {"sojourn", number(reading.sojourn)}, {"blocked", number(reading.blocked)}};
  }
  for (const LayerLoad& layer : record.experts) {
    line["experts"][layer.layer] = layer.tokens;
    if (!layer.ranks.empty()) line["expert_rank_tokens"][layer.layer] = layer.ranks;
    if (layer.cost_ms > 0) line["expert_cost_ms"][layer.layer] = number(layer.cost_ms);
  }
  if (!record.experts.empty()) line["expert_ranks"] = record.expert_ranks;
  if (const auto& moved = record.experts_moved) {
    line["experts_moved"] = {{"experts", moved->experts},
                             {"bytes", moved->bytes},
                             {"seconds", number(moved->seconds)},
                             {"busiest_before", number(moved->busiest_before)},
                             {"busiest_after", number(moved->busiest_after)}};
  }
  if (record.noise_scale) line["noise_scale"] = number(*record.noise_scale);
  if (record.staleness) line["staleness"] = number(*record.staleness);
  for (const LayerNoise& layer : record.noise_scales) line["noise_scales"][layer.layer] = number(layer.scale);
  return line;
}

std::vector<std::int64_t> counts_from(const char* key, const Json& list) {
  if (!list.is_array()) wrong_type(key, "lists of whole numbers", list);
  std::vector<std::int64_t> counts;
  for (const Json& count : list) {
    if (!count.is_number_integer()) wrong_type(key, "lists of whole numbers", count);
    counts.push_back(count.get<std::int64_t>());
  }
  return counts;
}

StepRecord step_from(const Json& line) {
  StepRecord record;
  record.step = step_of(line);
  record.loss = real(line, "loss");
  record.grad_norm = real(line, "grad_norm");
  record.lr = real(line, "lr");
  record.tokens = integer(line, "tokens");
  record.tokens_per_s = real(line, "tokens_per_s");
  if (!field(line, "mfu").is_null()) record.mfu = real(line, "mfu");
  record.memory = integer(line, "memory");
  record.seconds = real(line, "seconds");
  const Json& parts = field(line, "breakdown");
  record.breakdown = {.compute = real(parts, "compute"),
                      .data = real(parts, "data"),
                      .comm = real(parts, "comm"),
                      .overhead = real(parts, "overhead")};
  if (const auto hash = line.find("hash"); hash != line.end()) {
    if (!hash->is_string()) wrong_type("hash", "a text", *hash);
    record.hash = hash->get<std::string>();
  }
  if (const auto losses = line.find("losses"); losses != line.end()) {
    if (!losses->is_object()) wrong_type("losses", "an object", *losses);
    for (const auto& [name, term] : losses->items()) {
      record.losses.push_back({.name = name, .mean = real(term, "mean"), .weight = real(term, "weight")});
    }
  }
  if (const auto queues = line.find("queues"); queues != line.end()) {
    if (!queues->is_object()) wrong_type("queues", "an object", *queues);
    for (const auto& [name, queue] : queues->items()) {
      record.queues.push_back({.name = name,
                               .reading = {.arrivals = integer(queue, "arrivals"),
                                           .departures = integer(queue, "departures"),
                                           .seconds = real(queue, "seconds"),
                                           .occupancy = real(queue, "occupancy"),
                                           .sojourn = real(queue, "sojourn"),
                                           .blocked = real(queue, "blocked")}});
    }
  }
  if (const auto moved = line.find("experts_moved"); moved != line.end()) {
    record.experts_moved = {.experts = integer(*moved, "experts"),
                            .bytes = integer(*moved, "bytes"),
                            .seconds = real(*moved, "seconds"),
                            .busiest_before = real(*moved, "busiest_before"),
                            .busiest_after = real(*moved, "busiest_after")};
  }
  if (line.contains("noise_scale")) record.noise_scale = real(line, "noise_scale");
  if (line.contains("staleness")) record.staleness = real(line, "staleness");
  if (const auto scales = line.find("noise_scales"); scales != line.end()) {
    if (!scales->is_object()) wrong_type("noise_scales", "an object", *scales);
    for (const auto& [name, scale] : scales->items())
      record.noise_scales.push_back({.layer = name, .scale = real(*scales, name.c_str())});
  }
  if (const auto experts = line.find("experts"); experts != line.end()) {
    if (!experts->is_object()) wrong_type("experts", "an object", *experts);
    for (const auto& [name, tokens] : experts->items()) {
      LayerLoad& layer =
          record.experts.emplace_back(LayerLoad{.layer = name, .tokens = counts_from("experts", tokens)});
      if (const auto ranks = line.find("expert_rank_tokens"); ranks != line.end() && ranks->contains(name))
        layer.ranks = counts_from("expert_rank_tokens", ranks->at(name));
      if (const auto cost = line.find("expert_cost_ms"); cost != line.end() && cost->contains(name))
        layer.cost_ms = real(*cost, name.c_str());
    }
    record.expert_ranks = static_cast<int>(std::clamp<std::int64_t>(integer(line, "expert_ranks"), 1, 1 << 20));
  }
  return record;
}

RankRecord rank_from(const Json& line) {
  RankRecord record{.step = step_of(line), .metrics = {}};
  const Json& metrics = field(line, "metrics");
  if (!metrics.is_object()) wrong_type("metrics", "an object", metrics);
  for (const auto& [name, value] : metrics.items()) record.metrics[name] = real(metrics, name.c_str());
  return record;
}

HashRecord hashes_from(const Json& line) {
  HashRecord record{.step = step_of(line), .total = bits_in("total", field(line, "total")), .tensors = {}};
  const Json& tensors = field(line, "tensors");
  if (!tensors.is_object()) wrong_type("tensors", "an object", tensors);
  for (const auto& [name, value] : tensors.items()) record.tensors.emplace(name, bits_in(name.c_str(), value));
  return record;
}

EventRecord event_from(const Json& line) {
  const Json& kind = field(line, "event");
  if (!kind.is_string()) wrong_type("event", "a text", kind);
  return {.kind = kind.get<std::string>(), .time = real(line, "time"), .fields = JsonValue(line)};
}

std::optional<double> EventRecord::number_of(std::string_view name) const {
  const auto at = fields->find(name);
  return at == fields->end() ? std::nullopt : as_number(*at);
}

std::optional<std::string> EventRecord::text_of(std::string_view name) const {
  const auto at = fields->find(name);
  if (at == fields->end() || !at->is_string()) return std::nullopt;
  return at->get<std::string>();
}

std::optional<std::int64_t> EventRecord::step() const {
  const auto at = fields->find("step");
  if (at == fields->end() || !at->is_number_integer()) return std::nullopt;
  return at->get<std::int64_t>();
}

}  // namespace trireme::observe
