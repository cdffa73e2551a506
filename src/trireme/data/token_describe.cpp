#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/units.h"
#include "trireme/data/token_file.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {

std::string special_text(const SpecialTokens& special) {
  const std::pair<const char*, std::int32_t> all[] = {{"bos", special.bos}, {"eos", special.eos},
                                                      {"pad", special.pad}, {"mask", special.mask},
                                                      {"cls", special.cls}, {"sep", special.sep}};
  std::string text;
  for (const auto& [name, token] : all) {
    if (token >= 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, token);
  }
  return text;
}

std::string tokenizer_text(const ShardInfo& info) {
  if (info.tokenizer.empty() && info.tokenizer_hash == 0) return "unknown";
  const std::string name = info.tokenizer.empty() ? "unnamed" : formats::shown(info.tokenizer);
  return info.tokenizer_hash == 0 ? name : fmt::format("{}, hash {:016x}", name, info.tokenizer_hash);
}

std::vector<std::string> describe(const TokenFile& file, bool verified) {
  const ShardInfo& info = file.info();
  std::vector<std::string> lines;
  const auto add = [&](const char* name, std::string_view text) {
    lines.push_back(fmt::format("{:<11}{}", name, text));
  };
  add("format", fmt::format("{}, {} each", to_string(file.format()), to_string(file.type())));
  add("bytes", fmt::format("{} ({})", file.bytes(), short_bytes(static_cast<double>(file.bytes()))));
  add("tokens", fmt::format("{} ({})", file.tokens(), short_count(static_cast<double>(file.tokens()))));
  add("documents", file.documents() == 0
                       ? std::string("0")
                       : fmt::format("{}{}, {:.1f} tokens each on average", file.documents(),
                                     info.pairs ? " in pairs of source and target" : "",
                                     static_cast<double>(file.tokens()) / static_cast<double>(file.documents())));
  add("vocabulary", info.vocab_size == 0 ? std::string("unknown") : std::to_string(info.vocab_size));
  add("tokenizer", tokenizer_text(info));
  if (const std::string special = special_text(info.special); !special.empty()) add("special", special);
  if (file.has_mask()) add("mask", "says which tokens are learnt");
  const bool has_checksums = file.format() == TokenFormat::kShard;
  add("checksums", !has_checksums
                       ? (verified ? "none in this format; every value is a token id" : "none in this format")
                   : verified ? "all right"
                              : "header and tables are right; tokens are checked as they are read");
  std::vector<std::int32_t> first(static_cast<std::size_t>(std::min<std::int64_t>(file.tokens(), 16)));
  file.read(0, first);
  add("begins", fmt::format("{}{}", fmt::join(first, " "), file.tokens() > 16 ? " ..." : ""));
  return lines;
}

double unigram_entropy(const TokenFile& file) {
  std::vector<std::int64_t> counts;
  std::vector<std::int32_t> part;
  constexpr std::int64_t kPart = 1 << 16;
  for (std::int64_t first = 0; first < file.tokens(); first += kPart) {
    part.resize(static_cast<std::size_t>(std::min(kPart, file.tokens() - first)));
    file.read(first, part);
    for (const std::int32_t token : part) {
      const auto at = static_cast<std::size_t>(token);
      if (at >= counts.size()) counts.resize(at + 1);
      ++counts[at];
    }
  }
  double entropy = 0;
  for (const std::int64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(file.tokens());
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace trireme::data
