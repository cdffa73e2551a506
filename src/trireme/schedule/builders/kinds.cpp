// The list of all kinds: what is not here does not exist for tests, recipes and the command line.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/reading.h"

namespace trireme::schedule {

std::span<const Kind> kinds() {
  static const std::array all{
      gpipe(),
      one_f_one_b(),
      interleaved(),
      breadth_first(),
      zb_h1(),
      zb_h2(),
      zb_v(),
      dualpipe(),
      dualpipe_v(),
      chimera(),
      chimera_doubling(),
      chimera_halving(),
      list_scheduled(),
      pipedream(),
      pipedream_vsync(),
      pipedream_2bw(),
      spectrain(),
      xpipe(),
      stale(),
      hetpipe(),
  };
  return all;
}

KindName split_kind_name(std::string_view name) {
  constexpr std::string_view kPrefix = "hetpipe:";
  constexpr int kMostDistance = 1000;
  if (!name.starts_with(kPrefix)) return {name};
  const auto distance = read_number(name.substr(kPrefix.size()), kMostDistance);
  if (!distance)
    throw ConfigError(
        fmt::format("schedule \"{}\": the clock distance is not a number from 0 to {}", name, kMostDistance),
        "write \"hetpipe:2\" for two waves, or \"hetpipe\" for none");
  return {kPrefix.substr(0, kPrefix.size() - 1), *distance};
}

const Kind& find_kind(std::string_view name) {
  const auto found = std::ranges::find(kinds(), split_kind_name(name).kind, &Kind::name);
  if (found != kinds().end()) return *found;
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) names.emplace_back(kind.name);
  throw ConfigError(fmt::format("there is no schedule \"{}\"{}", name, did_you_mean(name, names)),
                    fmt::format("schedules are {}, or file:PATH", listed(names)));
}

namespace {

constexpr std::string_view kFilePrefix = "file:";

Schedule build_from_file(const std::string& path, const Shape& shape) {
  const Schedule written = read_file(path);
  require_fine(written);
  Schedule schedule = has_updates(written) ? written : add_updates(written);
  const int ranks = static_cast<int>(schedule.ranks.size());
  const int micros = (schedule.update_every == 0 ? schedule.micros : schedule.update_every) / schedule.micro_parts;
  if (ranks != shape.ranks || micros != shape.micros)
    throw ConfigError(fmt::format("schedule {} is written for {} ranks and {} micros a step, not for {} and {}", path,
                                  ranks, micros, shape.ranks, shape.micros));
  return schedule;
}

}  // namespace

Schedule build(std::string_view name, const Shape& given) {
  if (name.starts_with(kFilePrefix)) return build_from_file(std::string(name.substr(kFilePrefix.size())), given);
  Shape shape = given;
  shape.clock_distance = std::max(shape.clock_distance, split_kind_name(name).clock_distance);
  const Kind& kind = find_kind(name);
  if (shape.ranks < 1 || shape.micros < 1 || shape.chunks_per_rank < 1 || shape.steps < 1)
    throw ConfigError(
        fmt::format("schedule {}: {} ranks, {} micros, {} chunks a rank and {} steps; each must be at least 1", name,
                    shape.ranks, shape.micros, shape.chunks_per_rank, shape.steps));
  const long chunks = long{shape.ranks} * shape.chunks_per_rank, micros = long{shape.micros} * shape.steps;
  if (chunks > kMostChunks || micros > kMostMicros || chunks * micros > kMostCells)
    throw ConfigError(
        fmt::format("schedule {}: {} chunks and {} micros; at most {} chunks, {} micros and {} passes of a "
                    "micro through a chunk can be",
                    name, chunks, micros, kMostChunks, kMostMicros, kMostCells));
  if (const std::string why = kind.refuses(shape); !why.empty())
    throw ConfigError(fmt::format("schedule {} is not defined on {} ranks, {} micros and {} chunks a rank: {}", name,
                                  shape.ranks, shape.micros, shape.chunks_per_rank, why));
  if (kind.asynchronous) return kind.build(shape);
  const Schedule step = kind.build(shape);
  return repeat(add_updates(shape.recompute ? add_recompute(step) : step), shape.steps);
}

std::string needs_one_chunk(const Shape& shape) {
  if (shape.chunks_per_rank == 1) return "";
  return fmt::format("it has one chunk a rank, not {}; interleaved and breadth-first take more", shape.chunks_per_rank);
}

std::string needs_two_chunks(const Shape& shape) {
  if (shape.chunks_per_rank == 2) return "";
  return fmt::format("it has two chunks a rank, not {}", shape.chunks_per_rank);
}

Schedule looped(std::string_view name, const Shape& shape) {
  Schedule schedule;
  schedule.name = name;
  schedule.micros = shape.micros;
  schedule.ranks.resize(static_cast<std::size_t>(shape.ranks));
  auto& route = schedule.routes.emplace_back();
  for (int chunk = 0; chunk < shape.ranks * shape.chunks_per_rank; ++chunk) route.push_back(chunk % shape.ranks);
  return schedule;
}

Schedule folded(std::string_view name, const Shape& shape) {
  Schedule schedule = looped(name, {.ranks = shape.ranks, .micros = shape.micros, .chunks_per_rank = 1});
  auto& route = schedule.routes.front();
  for (int rank = shape.ranks - 1; rank >= 0; --rank) route.push_back(rank);
  return schedule;
}

Schedule two_way(std::string_view name, const Shape& shape) {
  Schedule schedule = looped(name, {.ranks = shape.ranks, .micros = shape.micros, .chunks_per_rank = 1});
  const std::vector<int> down = schedule.routes.front();
  schedule.routes.emplace_back(down.rbegin(), down.rend());
  schedule.route_of.assign(static_cast<std::size_t>(shape.micros), 0);
  return schedule;
}

std::optional<double> unflushed_in_flight(const Shape& shape) {
  return std::min(shape.ranks, shape.micros * shape.steps);
}

Schedule unflushed(std::string_view name, const Shape& shape, int update_every, WeightChoice weights) {
  Shape whole = shape;
  whole.micros = shape.micros * shape.steps;
  whole.steps = 1;
  Schedule schedule = one_f_one_b().build(whole);
  schedule.name = name;
  schedule.update_every = update_every;
  schedule.weights = weights;
  return add_updates(shape.recompute ? add_recompute(schedule) : schedule);
}

double idle_share(double idle, const Shape& shape, const Times& times) {
  return idle / (idle + shape.micros * (times.forward + times.backward()));
}

}  // namespace trireme::schedule
