#include "trireme/nn/flops.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::nn {
namespace {

/// Keys in [begin, end) of positions that a query at `position` sees.
struct KeyRange {
  std::int64_t begin, end;
};
KeyRange range_of(const Visibility& visibility, std::int64_t position, std::int64_t first, std::int64_t length) {
  KeyRange range{first, first + length};
  if (visibility.causal) range.end = std::min(range.end, position + 1);
  if (visibility.window > 0) {
    range.begin = std::max(range.begin, position - visibility.window + 1);
    if (!visibility.causal) range.end = std::min(range.end, position + visibility.window);
  }
  range.begin = std::min(range.begin, first + length);
  range.end = std::max(range.begin, range.end);
  return range;
}

}  // namespace

double visible_pairs(const Visibility& visibility, const TokenSpan& queries, const TokenSpan& keys,
                     std::int64_t batch) {
  const std::int64_t query_length = queries.count, key_length = keys.count;
  const bool documents = queries.documents.defined() && keys.documents.defined();
  if (!documents) {
    double pairs = 0;
    for (std::int64_t i = 0; i < query_length; ++i) {
      const KeyRange range = range_of(visibility, queries.first + i, keys.first, key_length);
      pairs += static_cast<double>(range.end - range.begin);
    }
    return pairs * static_cast<double>(batch);
  }
  const at::Tensor query_documents = queries.documents.contiguous();
  const at::Tensor key_documents = keys.documents.contiguous();
  TRIREME_CHECK(query_documents.scalar_type() == at::kInt && key_documents.scalar_type() == at::kInt,
                "document ids are int32");
  const auto* q = query_documents.const_data_ptr<std::int32_t>();
  const auto* k = key_documents.const_data_ptr<std::int32_t>();
  std::int64_t pairs = 0;
  for (std::int64_t row = 0; row < batch; ++row, q += query_length, k += key_length) {
    if (std::is_sorted(q, q + query_length) && std::is_sorted(k, k + key_length)) {
      // Packed one after the other: a document is a stretch, and the stretches move along with the queries.
      std::int64_t begin = 0, end = 0;
      for (std::int64_t i = 0; i < query_length; ++i) {
        while (begin < key_length && k[begin] < q[i]) ++begin;
        end = std::max(end, begin);
        while (end < key_length && k[end] == q[i]) ++end;
        KeyRange range = range_of(visibility, queries.first + i, keys.first, key_length);
        range.begin = std::max(range.begin, keys.first + begin);
        range.end = std::min(range.end, keys.first + end);
        pairs += std::max<std::int64_t>(0, range.end - range.begin);
      }
    } else {
      for (std::int64_t i = 0; i < query_length; ++i) {
        const KeyRange range = range_of(visibility, queries.first + i, keys.first, key_length);
        pairs += std::count(k + (range.begin - keys.first), k + (range.end - keys.first), q[i]);
      }
    }
  }
  return static_cast<double>(pairs);
}

}  // namespace trireme::nn
