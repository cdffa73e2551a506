#include "trireme/spec/downpour.h"

#include <fmt/format.h>

namespace trireme::spec {
namespace {

constexpr Named<PushEncoding> kEncodings[] = {
    {"none", PushEncoding::kNone}, {"zstd", PushEncoding::kZstd}, {"fixed16", PushEncoding::kFixed16}};

}  // namespace

std::span<const Named<PushEncoding>> enum_names(std::type_identity<PushEncoding>) { return kEncodings; }

void describe(config::Section<DownpourConfig>& section) {
  section.meaning("asynchronous replicas around parameter servers (DistBelief); read where train.mode = \"downpour\"");
  section
      .field(
          "servers", &DownpourConfig::servers,
          "parameter servers; ranks run one each beside their replica, the first ones, or several where there are more")
      .range(1, 4096);
  section
      .field("copies", &DownpourConfig::copies,
             "servers that have each range of keys: with 2 the death of one loses nothing")
      .range(1, 16);
  section
      .field("n_fetch", &DownpourConfig::n_fetch,
             "a replica fetches the weights once in so many parts; in between it goes on with its own steps")
      .at_least(1);
  section.field("n_push", &DownpourConfig::n_push, "a replica pushes the sum of so many parts' gradients at once")
      .at_least(1);
  section
      .field("tau", &DownpourConfig::tau,
             "pushes of a replica that may be on their way when it begins its next part; 0: it waits for each")
      .range(0, 15);
  section
      .field("warm_start", &DownpourConfig::warm_start,
             "steps that the first replica takes alone before the others begin; 0: none")
      .at_least(0);
  section.field("encoding", &DownpourConfig::encoding,
                "how pushed values travel: none, zstd (without loss) or fixed16 (rounded to 16 bits)");
  section
      .field("significant", &DownpourConfig::significant,
             "gradients that are not above this wait, and are added to the next push; 0: all are pushed")
      .at_least(0);
  section
      .field("skip", &DownpourConfig::skip,
             "probability with which a block of 64 gradients waits for the next push, to which it is added")
      .range(0, 0.99);
}

std::vector<config::Problem> find_problems(const DownpourConfig& downpour) {
  if (downpour.copies <= downpour.servers) return {};
  return {
      {.key = "downpour.copies",
       .reason = fmt::format("is {}, but there are only {} servers to hold them", downpour.copies, downpour.servers),
       .hint = fmt::format("set downpour.servers = {}, or downpour.copies = {}", downpour.copies, downpour.servers)}};
}

}  // namespace trireme::spec
