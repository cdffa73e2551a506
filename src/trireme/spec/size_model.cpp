#include "trireme/spec/size_model.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/units.h"

namespace trireme::spec {

ModelConfig sized_model(Family family, std::int64_t parameters, std::int64_t vocab_size, std::int64_t max_seq_len) {
  constexpr std::int64_t kWidest = 32768, kUsualAspect = 80;
  ModelConfig best;
  double nearest = std::numeric_limits<double>::infinity();
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t hidden = 32; hidden <= kWidest; hidden += hidden < 256 ? 16 : 64) {
    const std::int64_t head = hidden % 64 == 0 && hidden >= 128 ? 64 : hidden % 32 == 0 && hidden >= 64 ? 32 : 16;
    for (std::int64_t layers = std::max<std::int64_t>(2, hidden / 128);
         layers <= std::max<std::int64_t>(2, hidden / 48); ++layers) {
      ModelConfig config{.family = family};
      config.vocab_size = vocab_size;
      config.max_seq_len = max_seq_len;
      config.hidden_size = hidden;
      config.num_layers = layers;
      config.num_heads = hidden / head;
      const std::int64_t count = count_parameters(*shape_of(config)).total();
      smallest = std::min(smallest, count);
      const double off = std::abs(std::log(static_cast<double>(count) / static_cast<double>(parameters)));
      const double odd = std::abs(std::log(static_cast<double>(hidden) / static_cast<double>(layers * kUsualAspect)));
      if (off + 0.02 * odd >= nearest) continue;  // proportions decide between sizes that are about equally near
      nearest = off + 0.02 * odd;
      best = config;
    }
  }
  if (nearest > std::log(2.0)) {
    throw ConfigError(fmt::format("no model of this family has about {} parameters with a vocabulary of {}",
                                  short_count(static_cast<double>(parameters)), vocab_size),
                      fmt::format("ask for at least {}", short_count(static_cast<double>(smallest))));
  }
  return best;
}

}  // namespace trireme::spec
