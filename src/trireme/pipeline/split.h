// pipeline/split.h -- a model's chain of entries cut into chunks: by count, where one says, or by cost.
//
// A split is a value: for each chunk the stretch of the chain that it holds. Every entry is in exactly one chunk, which
// check_split() proves; no chunk is empty.
// Depends on: base, spec. No tensors.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace trireme::pipeline {

struct LayerRange {
  std::size_t begin = 0, end = 0;  ///< entries of the chain: [begin, end)
  bool operator==(const LayerRange&) const = default;
};
using Split = std::vector<LayerRange>;  // by chunk

/// Equal numbers of blocks (entries named "...layers.N") for every chunk, as far as they go round; what comes before
/// the first block is the first chunk's, what comes after the last the last chunk's. With more chunks than blocks,
/// equal numbers of entries. ConfigError where there are fewer entries than chunks.
Split split_by_count(std::span<const std::string> names, int chunks);

/// A chunk begins at each of these entries, and one at the chain's begin. ConfigError naming an entry that is not there
/// or stands before the one listed before it.
Split split_at(std::span<const std::string> names, std::span<const std::string> starts);

/// The split whose costliest chunk is cheapest (torchgpipe's balance), exactly; of several the one whose chunks are
/// cheapest in the sum of squares, then the one that cuts earliest.
Split split_by_cost(std::span<const double> costs, int chunks);

/// The same for stages of unequal speed: chunk c costs the sum of its entries by speeds[c]. Ties as above.
Split split_by_cost(std::span<const double> costs, std::span<const double> speeds);

double cost_of(const LayerRange& stretch, std::span<const double> costs);

/// A ConfigError that names the first entry that is in no chunk or in two, or the chunk that is empty.
void check_split(const Split& split, std::span<const std::string> names);

/// "0: embedding .. layers.1 | 1: layers.2 .. head".
std::string to_text(const Split& split, std::span<const std::string> names);

}  // namespace trireme::pipeline
