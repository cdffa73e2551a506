#include "trireme/observe/gpu_peak.h"

#include <fmt/format.h>

namespace trireme::observe {
namespace {

struct Card {
  std::string_view name;    // part of the driver's
  double narrow, ordinary;  // TFLOP/s of 16-bit products summed in fp32, and of fp32 ones
};

/// The first whose name fits: those that contain another one's stand before it.
constexpr Card kCards[] = {
    {"H200", 989.4, 66.9}, {"H100 PCIe", 756.0, 51.2}, {"H100", 989.4, 66.9},
    {"A100", 312.0, 19.5}, {"GB200", 2500.0, 80.0},    {"B200", 2250.0, 75.0},
    {"L40S", 362.1, 91.6}, {"L4", 121.0, 30.3},        {"GeForce RTX 4090", 165.2, 82.6},
    {"A40", 149.7, 37.4},  {"A10", 125.0, 31.2},
};

}  // namespace

std::optional<Peak> stated_gpu_peak(std::string_view card, std::string_view precision) {
  const bool narrow = precision == "bf16" || precision == "fp16";
  if (!narrow && precision != "fp32") return std::nullopt;
  for (const Card& one : kCards) {
    const std::size_t at = card.find(one.name);
    if (at == std::string_view::npos) continue;
    // A longer name is another card: an A100 is no A10.
    const std::size_t end = at + one.name.size();
    const auto letter = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    };
    if ((end < card.size() && letter(card[end])) || (at > 0 && letter(card[at - 1]))) continue;
    return Peak{
        .flops = (narrow ? one.narrow : one.ordinary) * 1e12, .how = fmt::format("stated of {}", card), .when = {}};
  }
  return std::nullopt;
}

}  // namespace trireme::observe
