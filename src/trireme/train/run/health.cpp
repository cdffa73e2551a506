#include "trireme/train/run/health.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "trireme/checkpoint/texts.h"
#include "trireme/layout/hash.h"

namespace trireme::train {

void LossWatch::add_state(nn::State& state) {
  state.add_value(
      "health/losses", [this] { return nlohmann::ordered_json(losses_); },
      [this](const nlohmann::ordered_json& value) { losses_ = value.get<std::deque<double>>(); });
}

std::string LossWatch::judge(double loss) {
  const auto count = static_cast<double>(losses_.size());
  if (static_cast<std::int64_t>(losses_.size()) >= config_.spike_window) {
    double mean = 0, squares = 0;
    for (const double one : losses_) mean += one / count;
    for (const double one : losses_) squares += (one - mean) * (one - mean) / count;
    // Losses that hardly differ would make every ripple a spike: deviations count from a thousandth of the mean on.
    const double deviation = std::max(std::sqrt(squares), std::abs(mean) * 1e-3);
    if (loss > mean + config_.spike_deviations * deviation) {
      return fmt::format("a loss of {:.4f} after {:.4f} on average, {:.1f} standard deviations above", loss, mean,
                         (loss - mean) / deviation);
    }
    losses_.pop_front();
  }
  losses_.push_back(loss);
  return {};
}

std::string to_text(const OddCopy& copy) {
  if (copy.most.empty()) return fmt::format("{} differs between ranks {}", copy.tensor, fmt::join(copy.odd, ", "));
  return fmt::format("{} on rank {} differs from ranks {}", copy.tensor, fmt::join(copy.odd, ", "),
                     fmt::join(copy.most, ", "));
}

std::vector<OddCopy> compare_copies(const nn::State& state, comm::Group& world) {
  nlohmann::json mine = nlohmann::json::array();
  for (const nn::StateTensor& entry : state.tensors()) {
    const at::Tensor host = entry.tensor.cpu();
    const auto element = static_cast<std::size_t>(host.element_size());
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes());
    // Which elements it is of: only equal stretches can be compared.
    std::uint64_t place = 0;
    for (const layout::Range& range : layout::held_ranges(entry.placement)) {
      place += layout::mix(range.begin, static_cast<std::uint64_t>(range.end));
    }
    mine.push_back({entry.name, place, layout::tensor_hash(entry.placement, bytes, element)});
  }
  std::map<std::pair<std::string, std::uint64_t>, std::map<std::uint64_t, std::vector<int>>> found;
  const auto texts = checkpoint::all_texts(mine.dump(), world);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto theirs = nlohmann::json::parse(texts[rank]);
    for (const auto& one : theirs) {
      found[{one.at(0).get<std::string>(), one.at(1).get<std::uint64_t>()}][one.at(2).get<std::uint64_t>()].push_back(
          static_cast<int>(rank));
    }
  }
  std::vector<OddCopy> odd;
  for (const auto& [what, by_hash] : found) {
    if (by_hash.size() == 1) continue;
    OddCopy& copy = odd.emplace_back();
    copy.tensor = what.first;
    std::size_t all = 0;
    for (const auto& [hash, ranks] : by_hash) all += ranks.size();
    for (const auto& [hash, ranks] : by_hash) {
      auto& list = 2 * ranks.size() > all ? copy.most : copy.odd;
      list.insert(list.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(copy.odd);
  }
  return odd;
}

}  // namespace trireme::train
