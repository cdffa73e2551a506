// Which tensors go past chunks, found in the layers of a chain.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/nn/layer.h"
#include "trireme/pipeline/stage.h"

namespace trireme::pipeline {

std::vector<Skip> find_skips(
    std::span<const nn::Layer* const> chain, const Split& split,
    const std::function<BoundaryTensor(const std::string& name, const Micro& micro)>& boundary) {
  struct Given {
    std::string name;
    int chunk;
    bool taken = false;
  };
  std::vector<Given> given;
  std::vector<Skip> skips;
  for (int chunk = 0; chunk < static_cast<int>(split.size()); ++chunk) {
    const auto [begin, end] = split[static_cast<std::size_t>(chunk)];
    for (std::size_t i = begin; i < end; ++i) {
      const auto* layer = dynamic_cast<const nn::SkipLayer*>(chain[i]);
      if (layer == nullptr) continue;
      for (const std::string& name : layer->takes()) {
        const auto found = std::ranges::find(given, name, &Given::name);
        if (found == given.end() || found->taken) {
          throw ConfigError(fmt::format("entry {} of the model takes skip \"{}\", which {}", i, name,
                                        found == given.end() ? "no entry before it gives" : "another takes already"),
                            "each skip is given by one layer and taken by one later layer");
        }
        found->taken = true;
        if (found->chunk == chunk) continue;  // stays on its rank
        skips.push_back(
            {.name = name, .from = found->chunk, .to = chunk, .boundary = [boundary, name](const Micro& micro) {
               return boundary(name, micro);
             }});
      }
      for (const std::string& name : layer->gives()) {
        if (std::ranges::find(given, name, &Given::name) != given.end()) {
          throw ConfigError(fmt::format("two entries of the model give skip \"{}\"", name),
                            "give each a name of its own");
        }
        given.push_back({name, chunk});
      }
    }
  }
  const auto lost = std::ranges::find(given, false, &Given::taken);
  if (lost != given.end()) {
    throw ConfigError(fmt::format("skip \"{}\" is given, but no later entry of the model takes it", lost->name),
                      "take it in a layer behind the one that gives it");
  }
  return skips;
}

}  // namespace trireme::pipeline
