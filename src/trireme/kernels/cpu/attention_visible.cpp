#include "trireme/kernels/cpu/attention_visible.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "trireme/base/error.h"

namespace trireme::kernels::cpu {
namespace {

struct VisibleRun {
  std::int64_t begin = 0, end = 0;
};

std::unordered_map<std::int32_t, VisibleRun> runs_of(const std::int32_t* documents, std::int64_t count) {
  std::unordered_map<std::int32_t, VisibleRun> runs;
  for (std::int64_t begin = 0; begin < count;) {
    std::int64_t end = begin + 1;
    while (end < count && documents[end] == documents[begin]) ++end;
    const auto [at, is_new] = runs.try_emplace(documents[begin], VisibleRun{begin, end});
    if (!is_new) {
      throw ConfigError(fmt::format("attention: document {} has keys {} to {} and again keys from {}", documents[begin],
                                    at->second.begin, at->second.end - 1, begin),
                        "give each document's tokens neighbouring places, and each document a number of its own");
    }
    begin = end;
  }
  return runs;
}

}  // namespace

void append_visible(VisibleKeys& visible, const AttentionMask& mask, const std::int32_t* query_documents,
                    const std::int32_t* key_documents) {
  std::unordered_map<std::int32_t, VisibleRun> runs;
  if (key_documents != nullptr) runs = runs_of(key_documents, mask.keys);
  VisibleRun document{0, mask.keys};
  for (std::int64_t i = 0; i < mask.queries; ++i) {
    if (query_documents != nullptr && (i == 0 || query_documents[i] != query_documents[i - 1])) {
      const auto at = runs.find(query_documents[i]);
      document = at == runs.end() ? VisibleRun{} : at->second;
    }
    // The key at the query's own position; it may lie outside, where blocks of a longer sequence meet.
    const std::int64_t self = mask.query_position + i - mask.key_position;
    VisibleRun run = document;
    if (mask.causal) run.end = std::min(run.end, self + 1);
    if (mask.window > 0) {
      run.begin = std::max(run.begin, self - mask.window + 1);
      run.end = std::min(run.end, self + mask.window);
    }
    if (run.begin >= run.end) run = {};
    visible.begin.push_back(static_cast<std::int32_t>(run.begin));
    visible.end.push_back(static_cast<std::int32_t>(run.end));
  }
}

}  // namespace trireme::kernels::cpu
