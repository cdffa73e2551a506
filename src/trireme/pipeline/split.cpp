#include "trireme/pipeline/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/spec/stage_split.h"

namespace trireme::pipeline {
namespace {

void require_chunks(std::size_t entries, int chunks) {
  if (chunks >= 1 && static_cast<std::size_t>(chunks) <= entries) return;
  throw ConfigError(
      fmt::format("a model of {} entries cannot be cut into {} chunks", entries, chunks),
      fmt::format("take at most {} chunks (pipeline ranks x virtual stages), or a model with more layers", entries));
}

bool is_block(const std::string& name) { return name.find("layers.") != std::string::npos; }

/// Costs of stretches in constant time.
class Sums {
 public:
  explicit Sums(std::span<const double> costs) : sums_(1, 0.0) {
    for (const double cost : costs) sums_.push_back(sums_.back() + cost);
  }
  double of(std::size_t begin, std::size_t end) const { return sums_[end] - sums_[begin]; }

 private:
  std::vector<double> sums_;
};

}  // namespace

Split split_by_count(std::span<const std::string> names, int chunks) {
  require_chunks(names.size(), chunks);
  std::vector<bool> blocks;
  for (const std::string& name : names) blocks.push_back(is_block(name));
  std::vector<std::size_t> starts = spec::even_starts(blocks, chunks);
  starts.push_back(names.size());
  Split split;
  for (std::size_t chunk = 0; chunk + 1 < starts.size(); ++chunk) split.push_back({starts[chunk], starts[chunk + 1]});
  return split;
}

Split split_at(std::span<const std::string> names, std::span<const std::string> starts) {
  Split split{{0, 0}};
  for (const std::string& start : starts) {
    const auto found = std::ranges::find(names, start);
    if (found == names.end()) {
      throw ConfigError(fmt::format("no chunk can begin at \"{}\": the model has no such entry{}", start,
                                    did_you_mean(start, std::vector<std::string>(names.begin(), names.end()))),
                        fmt::format("its entries are {} .. {}", names.front(), names.back()));
    }
    const auto at = static_cast<std::size_t>(found - names.begin());
    if (at <= split.back().begin) {
      throw ConfigError(fmt::format("a chunk cannot begin at \"{}\": the chunk before it begins at \"{}\"", start,
                                    names[split.back().begin]),
                        "list the entries in the order of the model; the first chunk begins by itself");
    }
    split.back().end = at;
    split.push_back({at, at});
  }
  split.back().end = names.size();
  return split;
}

Split split_by_cost(std::span<const double> costs, int chunks) {
  return split_by_cost(costs, std::vector<double>(static_cast<std::size_t>(std::max(0, chunks)), 1.0));
}

Split split_by_cost(std::span<const double> costs, std::span<const double> speeds) {
  const auto chunks = static_cast<int>(speeds.size());
  for (const double speed : speeds) TRIREME_CHECK(speed > 0, "a stage has speed {}", speed);
  const std::size_t entries = costs.size();
  require_chunks(entries, chunks);
  for (const double cost : costs) TRIREME_CHECK(cost >= 0, "an entry costs {}", cost);
  const Sums sums(costs);
  // best[k][j]: of the first j entries in k chunks, the costliest chunk and the sum of squares.
  struct Best {
    double largest = std::numeric_limits<double>::infinity(), squares = largest;
    std::size_t begin = 0;  // of the last chunk
    bool better_than(const Best& other) const {
      return largest != other.largest ? largest < other.largest : squares < other.squares;
    }
  };
  // The least possible largest decides alone; squares only order splits that reach it. So two tables: one for the
  // bound, one that minimises squares among splits within it.
  const auto solve = [&](double bound) {
    std::vector<std::vector<Best>> best(static_cast<std::size_t>(chunks) + 1, std::vector<Best>(entries + 1));
    best[0][0] = {0, 0, 0};
    for (std::size_t k = 1; k < best.size(); ++k) {
      for (std::size_t j = k; j <= entries; ++j) {
        for (std::size_t i = k - 1; i < j; ++i) {
          if (best[k - 1][i].largest == std::numeric_limits<double>::infinity()) continue;
          const double cost = sums.of(i, j) / speeds[k - 1];
          if (cost > bound) continue;
          Best here{std::max(best[k - 1][i].largest, cost), best[k - 1][i].squares + cost * cost, i};
          if (bound < std::numeric_limits<double>::infinity()) here.largest = 0;  // all within it are alike
          if (here.better_than(best[k][j])) best[k][j] = here;
        }
      }
    }
    return best;
  };
  const double least = solve(std::numeric_limits<double>::infinity()).back().back().largest;
  const auto best = solve(least);
  Split split(static_cast<std::size_t>(chunks));
  std::size_t end = entries;
  for (std::size_t k = split.size(); k > 0; --k) {
    split[k - 1] = {best[k][end].begin, end};
    end = best[k][end].begin;
  }
  return split;
}

double cost_of(const LayerRange& stretch, std::span<const double> costs) {
  double sum = 0;
  for (std::size_t i = stretch.begin; i < stretch.end; ++i) sum += costs[i];
  return sum;
}

void check_split(const Split& split, std::span<const std::string> names) {
  std::size_t at = 0;
  for (std::size_t chunk = 0; chunk < split.size(); ++chunk) {
    const auto [begin, end] = split[chunk];
    if (begin >= end || end > names.size()) {
      throw ConfigError(fmt::format("chunk {} is the stretch [{}, {}) of {} entries", chunk, begin, end, names.size()),
                        "give every chunk at least one entry of the model");
    }
    if (begin > at) throw ConfigError(fmt::format("{} is in no chunk", names[at]), "every entry belongs to one chunk");
    if (begin < at) {
      throw ConfigError(fmt::format("{} is in chunk {} and again in chunk {}", names[begin], chunk - 1, chunk),
                        "every entry belongs to one chunk");
    }
    at = end;
  }
  if (at != names.size()) {
    throw ConfigError(fmt::format("{} is in no chunk", names[at]), "every entry belongs to one chunk");
  }
}

std::string to_text(const Split& split, std::span<const std::string> names) {
  std::string text;
  for (std::size_t chunk = 0; chunk < split.size(); ++chunk) {
    const auto [begin, end] = split[chunk];
    text += fmt::format("{}{}: {}", chunk == 0 ? "" : " | ", chunk, names[begin]);
    if (end - begin > 1) text += " .. " + names[end - 1];
  }
  return text;
}

}  // namespace trireme::pipeline
