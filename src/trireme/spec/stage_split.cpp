#include "trireme/spec/stage_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

std::vector<ChunkShare> even_shares(const ModelShape& shape, int chunks) {
  const std::vector<std::string> chain = chain_entries(shape, RecomputeKind::kNone);
  std::vector<bool> blocks;
  for (const std::string& entry : chain) blocks.push_back(entry.find("layers.") != std::string::npos);
  std::vector<std::size_t> starts = even_starts(blocks, chunks);
  starts.push_back(chain.size());
  std::vector<ChunkShare> shares(static_cast<std::size_t>(chunks));
  for (std::size_t chunk = 0; chunk < shares.size(); ++chunk) {
    for (std::size_t at = starts[chunk]; at < starts[chunk + 1]; ++at) {
      shares[chunk].layers += blocks[at] ? 1 : 0;
      shares[chunk].encoders += chain[at].starts_with("encoder.layers.") ? 1 : 0;
      shares[chunk].embedding |= chain[at].ends_with("embedding");
      shares[chunk].head |= chain[at] == "head";
    }
  }
  return shares;
}

/// The layer that an entry of a list names: the number of "layers.7", all of them for what comes after the last.
int layer_named(const ModelShape& shape, const std::string& entry) {
  constexpr std::string_view kLayers = "layers.";
  if (entry == "norm" || entry == "mtp" || entry == "head" || entry.starts_with("head."))
    return static_cast<int>(shape.num_layers);
  int layer = -1;
  if (entry.starts_with(kLayers)) std::from_chars(entry.data() + kLayers.size(), entry.data() + entry.size(), layer);
  if (layer < 0 || layer >= shape.num_layers)
    throw ConfigError(fmt::format("pipeline.split: no chunk can begin at \"{}\"", entry),
                      fmt::format("its entries are layers.0 to layers.{}, norm and head", shape.num_layers - 1));
  return layer;
}

std::vector<ChunkShare> listed_shares(const ModelShape& shape, const std::string& list, int chunks) {
  std::vector<int> starts{0};
  for (const std::string& entry : split_entries(list)) starts.push_back(layer_named(shape, entry));
  if (static_cast<int>(starts.size()) != chunks)
    throw ConfigError(
        fmt::format("pipeline.split = \"{}\" makes {} chunks, but {} are needed", list, starts.size(), chunks),
        fmt::format("name {} entries: the first chunk begins by itself", chunks - 1));
  starts.push_back(static_cast<int>(shape.num_layers));
  std::vector<ChunkShare> shares;
  for (std::size_t chunk = 0; chunk + 1 < starts.size(); ++chunk)
    shares.push_back({.layers = std::max(0, starts[chunk + 1] - starts[chunk])});
  shares.front().embedding = shares.back().head = true;
  return shares;
}

}  // namespace

std::vector<std::size_t> even_starts(const std::vector<bool>& is_block, int chunks) {
  std::vector<std::size_t> blocks;
  for (std::size_t at = 0; at < is_block.size(); ++at) {
    if (is_block[at]) blocks.push_back(at);
  }
  const auto parts = static_cast<std::size_t>(chunks);
  const bool by_block = blocks.size() >= parts;
  std::vector<std::size_t> starts{0};
  for (std::size_t part = 1; part < parts; ++part)
    starts.push_back(by_block ? blocks[blocks.size() * part / parts] : is_block.size() * part / parts);
  return starts;
}

namespace {

/// Chunk c takes floor(bound x speed - fixed) layers within a bound; the least bound with room for all, then what is
/// too much off the chunk that takes longest.
std::vector<ChunkShare> shares_by_speed(int layers, const std::vector<double>& fixed,
                                        const std::vector<double>& speeds) {
  const auto room_of = [&](std::size_t chunk, double bound) {
    return std::max<std::int64_t>(0, std::llround(std::floor(bound * speeds[chunk] - fixed[chunk] + 1e-9)));
  };
  const auto room = [&](double bound) {
    std::int64_t sum = 0;
    for (std::size_t chunk = 0; chunk < fixed.size(); ++chunk) sum += room_of(chunk, bound);
    return sum;
  };
  double least = 0, bound = std::numeric_limits<double>::infinity();
  for (std::size_t chunk = 0; chunk < fixed.size(); ++chunk) least = std::max(least, fixed[chunk] / speeds[chunk]);
  for (std::size_t chunk = 0; chunk < fixed.size(); ++chunk) {
    for (int whole = 0; whole <= layers; ++whole) {
      const double here = std::max(least, (fixed[chunk] + whole) / speeds[chunk]);
      if (here < bound && room(here) >= layers) bound = here;
    }
  }
  std::vector<ChunkShare> shares;
  for (std::size_t chunk = 0; chunk < fixed.size(); ++chunk)
    shares.push_back({.layers = static_cast<int>(room_of(chunk, bound))});
  for (std::int64_t surplus = room(bound) - layers; surplus > 0; --surplus) {
    const auto slowest = std::ranges::max_element(shares, {}, [&](const ChunkShare& one) {
      const auto chunk = static_cast<std::size_t>(&one - shares.data());
      return one.layers == 0 ? -1.0 : (one.layers + fixed[chunk]) / speeds[chunk];
    });
    --slowest->layers;
  }
  shares.front().embedding = shares.back().head = true;
  return shares;
}

}  // namespace

std::vector<ChunkShare> balanced_shares(int layers, int chunks, double embedding_cost, double head_cost,
                                        const std::vector<double>& speeds) {
  std::vector<double> fixed(static_cast<std::size_t>(chunks), 0);
  fixed.front() += embedding_cost;
  fixed.back() += head_cost;
  if (!speeds.empty()) return shares_by_speed(layers, fixed, speeds);
  // Within a bound of B layers' cost a chunk takes floor(B - fixed) layers; bounds worth trying are whole layers beside
  // one of the three fixed costs.
  const auto room = [&](double bound) {
    std::int64_t sum = 0;
    for (const double cost : fixed) sum += std::max<std::int64_t>(0, std::llround(std::floor(bound - cost + 1e-9)));
    return sum;
  };
  double bound = std::max({embedding_cost, head_cost, static_cast<double>(layers) + embedding_cost + head_cost});
  for (const double cost : {0.0, fixed.front(), fixed.back()}) {
    for (int whole = 0; whole <= layers; ++whole) {
      const double here = cost + whole;
      if (here < bound && here + 1e-9 >= std::max(fixed.front(), fixed.back()) && room(here) >= layers) bound = here;
    }
  }
  std::vector<ChunkShare> shares;
  for (const double cost : fixed)
    shares.push_back({.layers = static_cast<int>(std::max(0.0, std::floor(bound - cost + 1e-9)))});
  std::int64_t surplus = room(bound) - layers;
  // What is too much comes off the ends first, which hold something beside.
  while (surplus > 0) {
    const auto fullest = std::ranges::max_element(shares, {}, [&](const ChunkShare& one) {
      const double own = fixed[static_cast<std::size_t>(&one - shares.data())];
      return one.layers == 0 ? -1.0 : one.layers + own;
    });
    --fullest->layers;
    --surplus;
  }
  shares.front().embedding = shares.back().head = true;
  return shares;
}

std::vector<ChunkShare> chunk_shares(const ModelShape& shape, const PipelineConfig& pipeline, int chunks, int worker) {
  const std::string split = split_of_worker(pipeline.split, worker);
  if (split == "count" || shape.num_encoder_layers > 0) return even_shares(shape, chunks);
  const int layers = static_cast<int>(shape.num_layers);
  const auto [how, speeds] = split_speeds(split);
  if (how == "size") {
    const ParameterCount count = count_parameters(shape);
    const double layer = static_cast<double>(count.layers) / layers;
    return balanced_shares(layers, chunks, static_cast<double>(count.embedding) / layer,
                           static_cast<double>(count.mtp + count.head) / layer, speeds);
  }
  if (how == "time" || how == "pipedream") {
    const FlopCount flops = count_flops(shape, shape.max_seq_len);
    return balanced_shares(layers, chunks, 0, (flops.mtp + flops.head) * layers / (flops.projections + flops.attention),
                           speeds);
  }
  return listed_shares(shape, split, chunks);
}

std::string to_split(const std::vector<ChunkShare>& shares) {
  int layer = 0, layers = 0;
  for (const ChunkShare& share : shares) layers += share.layers;
  std::string text;
  for (std::size_t chunk = 0; chunk + 1 < shares.size(); ++chunk) {
    layer += shares[chunk].layers;
    text += fmt::format("{}{}", chunk == 0 ? "" : ",", layer < layers ? fmt::format("layers.{}", layer) : "norm");
  }
  return text;
}

}  // namespace trireme::spec
