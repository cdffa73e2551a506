#include "trireme/kernels/attention_arguments.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <unordered_map>

#include "trireme/base/error.h"
#include "trireme/kernels/sparse/block_layout.h"

namespace trireme::kernels {
namespace {

std::string shape_of(const at::Tensor& t) {
  if (!t.defined()) return "undefined";
  return fmt::format("{} [{}]", c10::toString(t.scalar_type()), fmt::join(t.sizes(), ", "));
}

/// `message` is made where it is needed only: every call of attention comes through here.
template <typename Message>
void require(bool holds, const Message& message, const char* hint = "") {
  if (!holds) throw ConfigError("attention: " + message(), hint);
}

void require_tensor(const at::Tensor& t, const char* name, const at::Tensor& like, at::IntArrayRef sizes) {
  require(t.defined() && t.scalar_type() == like.scalar_type() && t.sizes() == sizes && t.device() == like.device(),
          [&] {
            return fmt::format("{} is {}, but with q {} it must be {} [{}]", name, shape_of(t), shape_of(like),
                               c10::toString(like.scalar_type()), fmt::join(sizes, ", "));
          });
  require(
      t.size(-1) == 1 || t.stride(-1) == 1,
      [&] {
        return fmt::format("{} has strides [{}]; its last dimension must be contiguous", name,
                           fmt::join(t.strides(), ", "));
      },
      "call contiguous() on it");
}

void require_documents(const at::Tensor& q, const at::Tensor& k, const Attention& options) {
  const bool has_query = options.query_documents != nullptr && options.query_documents->defined();
  const bool has_key = options.key_documents != nullptr && options.key_documents->defined();
  require(
      has_query == has_key, [] { return std::string("documents are given for queries or keys only"); },
      "give both, or neither");
  if (!has_query) return;
  const auto require_rows = [batch = q.size(0)](const at::Tensor& t, const char* name, std::int64_t length) {
    require(
        t.scalar_type() == at::kInt && t.sizes() == at::IntArrayRef{batch, length} && (length <= 1 || t.stride(1) == 1),
        [&] {
          return fmt::format("{} is {}; it must be Int [{}, {}] with contiguous rows", name, shape_of(t), batch,
                             length);
        });
  };
  require_rows(*options.query_documents, "query_documents", q.size(1));
  require_rows(*options.key_documents, "key_documents", k.size(1));
}

void require_dropout(const at::Tensor& q, const at::Tensor& k, const Attention& options) {
  if (options.dropout == nullptr || options.dropout->p == 0) return;
  const AttentionDropout& d = *options.dropout;
  const std::int64_t batch = q.size(0);
  require(d.p > 0 && d.p < 1, [&] { return fmt::format("dropout is {}; it must be in [0, 1)", d.p); });
  require(d.samples != nullptr && d.samples->defined() && d.samples->scalar_type() == at::kLong &&
              d.samples->sizes() == at::IntArrayRef{batch},
          [&] {
            return fmt::format("dropout's samples are {}; they must be Long [{}]",
                               d.samples == nullptr ? "null" : shape_of(*d.samples), batch);
          });
  const std::int64_t limit = std::int64_t{1} << 32;
  require(options.query_position >= 0 && options.key_position >= 0 && options.query_position + q.size(1) <= limit &&
              options.key_position + k.size(1) <= limit,
          [&] {
            return fmt::format("dropout draws for positions in [0, 2^32), not for queries from {} and keys from {}",
                               options.query_position, options.key_position);
          });
  require(d.first_head >= 0 && d.first_head + q.size(2) <= (1 << 24),
          [&] { return fmt::format("dropout draws for heads in [0, 2^24), not from {}", d.first_head); });
}

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

cpu::AttentionType attention_type(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return cpu::AttentionType::kFloat;
    case at::kDouble:
      return cpu::AttentionType::kDouble;
    case at::kHalf:
      return cpu::AttentionType::kHalf;
    case at::kBFloat16:
      return cpu::AttentionType::kBfloat16;
    default:
      require(
          false, [&] { return fmt::format("q is {}", shape_of(t)); }, "use float, double, bfloat16 or half");
      std::abort();
  }
}

void require_attention(const AttentionArguments& a, const Attention& options) {
  const at::Tensor &q = a.q, &k = a.k;
  require(q.defined() && k.defined() && q.dim() == 4 && k.dim() == 4, [&] {
    return fmt::format("q is {} and k is {}; both must be [batch, seq_len, heads, head_dim]", shape_of(q), shape_of(k));
  });
  static_cast<void>(attention_type(q));
  require(q.device().is_cpu() || q.is_cuda(),
          [&] { return fmt::format("q is on {}; there are bodies for the CPU and for CUDA", q.device().str()); });
  const std::int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), size = q.size(3);
  const std::int64_t keys = k.size(1), key_heads = k.size(2);
  require(key_heads > 0 && heads > 0 && heads % key_heads == 0, [&] {
    return fmt::format("q has {} heads and k has {}: queries' heads must be a multiple of keys' heads", heads,
                       key_heads);
  });
  require(size > 0, [&] { return fmt::format("q is {}: head_dim must be positive", shape_of(q)); });
  require(
      keys < std::numeric_limits<std::int32_t>::max() - cpu::kAttentionKeyBlock,
      [&] { return fmt::format("k is {}: a block of keys may not exceed 2^31", shape_of(k)); },
      "split the keys and merge");
  require_tensor(q, "q", q, q.sizes());
  require_tensor(k, "k", q, {batch, keys, key_heads, size});
  require_tensor(a.v, "v", q, k.sizes());
  require_tensor(a.out, "out", q, q.sizes());
  if (a.dout != nullptr) {
    require_tensor(*a.dout, "dout", q, q.sizes());
    require_tensor(*a.dq, "dq", q, q.sizes());
    require_tensor(*a.dk, "dk", q, k.sizes());
    require_tensor(*a.dv, "dv", q, k.sizes());
  }
  const at::ScalarType sum_type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  require(a.lse.defined() && a.lse.scalar_type() == sum_type &&
              a.lse.sizes() == at::IntArrayRef{batch, heads, queries} && (queries <= 1 || a.lse.stride(-1) == 1),
          [&] {
            return fmt::format("lse is {}; it must be {} [{}, {}, {}] with its last dimension contiguous",
                               shape_of(a.lse), c10::toString(sum_type), batch, heads, queries);
          });
  require(
      options.window >= 0, [&] { return fmt::format("window is {}; it must not be negative", options.window); },
      "0 means none");
  require_documents(q, k, options);
  require_dropout(q, k, options);
  if (options.blocks != nullptr) {
    const BlockLayout& layout = *options.blocks;
    require(!layout.of_whole_rows() || (queries == keys && options.query_position == 0 && options.key_position == 0),
            [&] {
              return fmt::format("the block layout is of whole rows, not of {} queries from {} and {} keys from {}",
                                 queries, options.query_position, keys, options.key_position);
            });
    require(layout.queries() == queries && layout.keys() == keys && options.first_layout_head + heads <= layout.heads(),
            [&] {
              return fmt::format(
                  "the block layout is of {} queries, {} keys and {} heads; the call has {} queries, {} keys and heads "
                  "{} to {}",
                  layout.queries(), layout.keys(), layout.heads(), queries, keys, options.first_layout_head,
                  options.first_layout_head + heads - 1);
            });
  }
}

void require_mergeable(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& other_out,
                       const at::Tensor& other_lse) {
  require(out.defined() && out.dim() == 4,
          [&] { return fmt::format("out is {}; it must be [batch, seq_len, heads, head_dim]", shape_of(out)); });
  require(out.device().is_cpu() || out.is_cuda(),
          [&] { return fmt::format("out is on {}; there are bodies for the CPU and for CUDA", out.device().str()); });
  require_tensor(out, "out", out, out.sizes());
  require_tensor(other_out, "other_out", out, out.sizes());
  const std::int64_t batch = out.size(0), queries = out.size(1), heads = out.size(2);
  const at::ScalarType sum_type = out.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  for (const at::Tensor* t : {&lse, &other_lse}) {
    require(t->defined() && t->scalar_type() == sum_type && t->sizes() == at::IntArrayRef{batch, heads, queries}, [&] {
      return fmt::format("lse is {}; with out {} it must be {} [{}, {}, {}]", shape_of(*t), shape_of(out),
                         c10::toString(sum_type), batch, heads, queries);
    });
  }
}

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

}  // namespace trireme::kernels
