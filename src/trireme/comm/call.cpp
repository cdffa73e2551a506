#include "trireme/comm/call.h"

#include <fmt/format.h>

namespace trireme::comm {
namespace {

constexpr std::uint64_t mix(std::uint64_t h, std::uint64_t word) {
  h ^= word;
  h *= 0xff51afd7ed558ccdull;
  return h ^ (h >> 32);
}

bool rooted(Op op) { return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter; }

}  // namespace

std::string_view name(Op op) {
  if (op == Op::kSend) return "send";
  if (op == Op::kRecv) return "recv";
  return cost::name(collective_of(op));
}

std::string describe(const CallKey& key) {
  std::string details;
  const auto add = [&](const std::string& detail) { details += (details.empty() ? "" : ", ") + detail; };
  if (reduces(key.op)) add(std::string(name(key.reduce)));
  if (rooted(key.op)) add(fmt::format("root {}", key.root));
  if (key.counts_hash != 0) add("uneven blocks");
  if (key.place == DeviceKind::kCuda) add("on a GPU");
  if (key.algorithm != Algorithm::kAuto) add(std::string(cost::name(key.algorithm)));
  std::string text(name(key.op));
  if (key.op != Op::kBarrier) text += fmt::format(" of {} x {}", key.count, name(key.type));
  return details.empty() ? text : text + " (" + details + ")";
}

std::string difference(const CallKey& mine, const CallKey& theirs) {
  std::string out;
  const auto add = [&](std::string_view what, auto a, auto b) {
    if (a != b) out += fmt::format("{}{} {} and {}", out.empty() ? "" : ", ", what, a, b);
  };
  add("operations", name(mine.op), name(theirs.op));
  add("counts", mine.count, theirs.count);
  add("types", name(mine.type), name(theirs.type));
  const auto place = [](const CallKey& key) { return key.place == DeviceKind::kCuda ? "a GPU" : "the host"; };
  add("memory of", std::string_view(place(mine)), std::string_view(place(theirs)));
  if (reduces(mine.op)) add("reductions", name(mine.reduce), name(theirs.reduce));
  if (rooted(mine.op)) add("roots", mine.root, theirs.root);
  add("algorithms", cost::name(mine.algorithm), cost::name(theirs.algorithm));
  if (out.empty() && mine.counts_hash != theirs.counts_hash) return "the sizes of the blocks differ";
  if (out.empty() && mine.history != theirs.history) return "an earlier call of this group differed";
  return out;
}

std::uint64_t next_history(const CallKey& key) {
  const std::uint64_t head = std::uint64_t{static_cast<std::uint8_t>(key.op)} |
                             std::uint64_t{static_cast<std::uint8_t>(key.type)} << 8 |
                             std::uint64_t{static_cast<std::uint8_t>(key.reduce)} << 16 |
                             std::uint64_t{static_cast<std::uint8_t>(key.place)} << 24 |
                             std::uint64_t{static_cast<std::uint32_t>(key.root)} << 32;
  return mix(mix(mix(key.history + 0x9e3779b97f4a7c15ull, head), key.count), key.counts_hash);
}

std::uint64_t hash_counts(std::span<const std::size_t> counts) {
  std::uint64_t h = 0x2545f4914f6cdd1dull;
  for (const std::size_t count : counts) h = mix(h, count + 0x9e3779b97f4a7c15ull);
  return h | 1;  // never 0, which means "equal blocks"
}

}  // namespace trireme::comm
