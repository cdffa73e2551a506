#include "trireme/kernels/attention_cuda.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <set>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/kernels/attention_cudnn.h"
#include "trireme/kernels/autotune.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/sparse/block_layout.h"
#include "trireme/kernels/sparse/cuda_blocks.h"

namespace trireme::kernels {
namespace {

bool has_documents(const Attention& options) {
  return options.query_documents != nullptr && options.query_documents->defined();
}
bool drops(const Attention& options) { return options.dropout != nullptr && options.dropout->p != 0; }

/// A window that leaves everything visible is none.
bool has_window(const at::Tensor& q, const at::Tensor& k, const Attention& options) {
  if (options.window <= 0) return false;
  const std::int64_t back = options.query_position + q.size(1) - 1 - options.key_position;
  const std::int64_t ahead = options.key_position + k.size(1) - 1 - options.query_position;
  return options.window <= std::max(back, options.causal ? 0 : ahead);
}

/// Where all keys stand before all queries, as in most blocks of a ring, a causal mask hides nothing.
Attention as_seen(const at::Tensor& q, const at::Tensor& k, Attention options) {
  if (!has_window(q, k, options) && options.key_position + k.size(1) <= options.query_position + 1) {
    options.causal = false;
  }
  return options;
}

// ---- ATen's flash kernel, which wants [batch, seq_len, heads, size], or with documents [tokens, heads, size]

struct Windows {
  std::optional<std::int64_t> left, right;
};
Windows windows_of(const at::Tensor& q, const at::Tensor& k, const Attention& o) {
  if (!has_window(q, k, o)) return {};
  return {o.window - 1, o.causal ? 0 : o.window - 1};
}

/// Where documents begin among all tokens of the batch, and their number at the end: int32 on the device.
at::Tensor document_starts(const at::Tensor& documents) {
  // The layers of a model ask for the same again and again.
  thread_local at::Tensor last, last_starts;
  thread_local std::uint32_t last_version = 0;
  if (last.defined() && last.is_same(documents) && last_version == documents._version()) return last_starts;
  at::Tensor begins = at::full(documents.sizes(), true, documents.options().dtype(at::kBool));
  if (documents.size(1) > 1) {
    const std::int64_t rest = documents.size(1) - 1;
    begins.narrow(1, 1, rest).copy_(documents.narrow(1, 1, rest).ne(documents.narrow(1, 0, rest)));
  }
  const at::Tensor starts = at::nonzero(begins.view({-1})).view({-1});
  const at::Tensor end = at::full({1}, documents.numel(), starts.options());
  last = documents;
  last_version = documents._version();
  last_starts = at::cat({starts, end}).to(at::kInt);
  return last_starts;
}

at::Tensor all_tokens(const at::Tensor& x) { return x.reshape({-1, x.size(2), x.size(3)}); }

AttentionResult flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Attention& o) {
  const auto [left, right] = windows_of(q, k, o);
  if (has_documents(o)) {
    const at::Tensor starts = document_starts(*o.query_documents);
    auto result = at::_flash_attention_forward(all_tokens(q), all_tokens(k), all_tokens(v), starts, starts, q.size(1),
                                               k.size(1), 0.0, o.causal, false, o.scale, left, right);
    const at::Tensor lse = std::get<1>(result).view({q.size(2), q.size(0), q.size(1)}).transpose(0, 1).contiguous();
    return {std::get<0>(result).view(q.sizes()), lse};
  }
  auto result = at::_flash_attention_forward(q, k, v, std::nullopt, std::nullopt, q.size(1), k.size(1), 0.0, o.causal,
                                             false, o.scale, left, right);
  return {std::get<0>(result), std::get<1>(result)};
}

std::array<at::Tensor, 3> flash_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                         const Attention& o) {
  const auto [left, right] = windows_of(q, k, o);
  const at::Tensor seed = at::zeros({2}, q.options().dtype(at::kUInt64)), unused;
  if (has_documents(o)) {
    const at::Tensor starts = document_starts(*o.query_documents);
    auto [dq, dk, dv] =
        at::_flash_attention_backward(all_tokens(dout), all_tokens(q), all_tokens(k), all_tokens(v), all_tokens(out),
                                      lse.transpose(0, 1).reshape({q.size(2), -1}).contiguous(), starts, starts,
                                      q.size(1), k.size(1), 0.0, o.causal, seed, unused, o.scale, left, right);
    return {dq.view(q.sizes()), dk.view(k.sizes()), dv.view(v.sizes())};
  }
  auto [dq, dk, dv] = at::_flash_attention_backward(dout, q, k, v, out, lse.contiguous(), unused, unused, q.size(1),
                                                    k.size(1), 0.0, o.causal, seed, unused, o.scale, left, right);
  return {dq, dk, dv};
}

/// While one lives, ATen's flash kernel adds up in a fixed order. The switch is the whole process's: ranks that are
/// threads may hold it at the same time, and the last to go turns it back.
class FixedOrder {
 public:
  explicit FixedOrder(bool on) : on_(on) {
    if (!on_) return;
    const std::scoped_lock lock(mutex());
    if (holders()++ > 0) return;
    at::Context& context = at::globalContext();
    before() = {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(),
                context.deterministicFillUninitializedMemory()};
    context.setDeterministicFillUninitializedMemory(false);
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~FixedOrder() {
    if (!on_) return;
    const std::scoped_lock lock(mutex());
    if (--holders() > 0) return;
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(before().algorithms, before().warns);
    context.setDeterministicFillUninitializedMemory(before().fills);
  }
  FixedOrder(const FixedOrder&) = delete;
  FixedOrder& operator=(const FixedOrder&) = delete;

 private:
  struct Before {
    bool algorithms = false, warns = false, fills = false;
  };
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static int& holders() {
    static int count = 0;
    return count;
  }
  static Before& before() {
    static Before state;
    return state;
  }
  bool on_;
};

// ---- our own

/// A call of the plain kernel, and the streams of draws that it points to.
struct Plain {
  CudaAttention call{};
  at::Tensor dropout_rng;

  Plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Attention& o) {
    call = attention_call(q, k, v, o);
    if (has_documents(o)) {
      call.query_documents = o.query_documents->const_data_ptr<std::int32_t>();
      call.key_documents = o.key_documents->const_data_ptr<std::int32_t>();
      call.query_document_stride = o.query_documents->stride(0);
      call.key_document_stride = o.key_documents->stride(0);
    }
    if (drops(o)) draw(*o.dropout, q);
  }

 private:
  void draw(const AttentionDropout& dropout, const at::Tensor& q) {
    const at::Tensor samples = dropout.samples->cpu().contiguous();
    std::vector<std::int32_t> words;
    for (std::int64_t b = 0; b < q.size(0); ++b) {
      const auto sample = static_cast<std::uint64_t>(samples.const_data_ptr<std::int64_t>()[b]);
      for (std::int64_t h = 0; h < q.size(2); ++h) {
        for (const std::uint32_t word : dropout.stream.block(Random::Purpose::kAttention, sample,
                                                             static_cast<std::uint32_t>(dropout.first_head + h))) {
          words.push_back(static_cast<std::int32_t>(word));
        }
      }
    }
    dropout_rng = at::from_blob(words.data(), {static_cast<std::int64_t>(words.size())}, at::kInt).to(q.device());
    call.dropout_rng = static_cast<const std::uint32_t*>(dropout_rng.const_data_ptr());
    call.threshold = dropout_threshold(dropout.p);
    call.dropout_scale = 1 / (1 - dropout.p);
  }
};

/// Rows in steps of 16 bytes: what the copies of the tensor cores' kernel ask for.
bool in_steps(std::initializer_list<const at::Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor* t) {
    bool even = reinterpret_cast<std::uintptr_t>(t->const_data_ptr()) % 16 == 0;
    for (int i = 0; i < 3; ++i) even = even && t->stride(i) * t->element_size() % 16 == 0;
    return even;
  });
}

CudaBlocks cuda_blocks(const at::Tensor& q, const Attention& o, std::initializer_list<const at::Tensor*> tensors) {
  const BlockLayout::OnDevice& lists = o.blocks->on(q.device());
  const std::int64_t rows = o.blocks->lists().rows(), first = o.first_layout_head * rows;
  CudaBlocks blocks{.row_begin = lists.row_begin.const_data_ptr<std::int32_t>() + first,
                    .columns = lists.columns.const_data_ptr<std::int32_t>(),
                    .column_begin = lists.column_begin.const_data_ptr<std::int32_t>() + first,
                    .rows = lists.rows.const_data_ptr<std::int32_t>(),
                    .block = o.blocks->lists().block,
                    .block_rows = rows};
  // The tensor cores' kernels take whole rows.
  if (o.blocks->of_whole_rows() && in_steps(tensors)) {
    const std::int64_t first_tiles = o.first_layout_head * lists.tile_rows;
    blocks.row_tile_begin = lists.row_tile_begin.const_data_ptr<std::int32_t>() + first_tiles;
    blocks.row_tiles = lists.row_tiles.const_data_ptr<std::int32_t>();
    blocks.column_tile_begin = lists.column_tile_begin.const_data_ptr<std::int32_t>() + first_tiles;
    blocks.column_tiles = lists.column_tiles.const_data_ptr<std::int32_t>();
    blocks.tile_rows = lists.tile_rows;
  }
  return blocks;
}

void plain_forward(const AttentionResult& result, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const Attention& options) {
  Plain plain(q, k, v, options);
  plain.call.out = result.out.mutable_data_ptr();
  set_attention_strides(plain.call.out_strides, result.out);
  plain.call.lse = result.lse.mutable_data_ptr();
  if (options.blocks != nullptr) {
    const CudaBlocks blocks = cuda_blocks(q, options, {&q, &k, &v, &result.out});
    check_cuda(cuda_block_kernels().forward(plain.call, blocks, attention_element(q), cuda_stream()),
               "block attention");
    return;
  }
  check_cuda(cuda().attention_forward(plain.call, attention_element(q), cuda_stream()), "attention_forward");
}

void plain_backward(const AttentionGradients& into, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, const Attention& options) {
  Plain plain(q, k, v, options);
  CudaAttention& call = plain.call;
  const at::Tensor lse_rows = lse.contiguous(), delta = at::empty(lse_rows.sizes(), lse_rows.options());
  call.out_read = out.const_data_ptr(), call.dout = dout.const_data_ptr();
  set_attention_strides(call.out_strides, out), set_attention_strides(call.dout_strides, dout);
  call.lse = const_cast<void*>(lse_rows.const_data_ptr()), call.delta = delta.mutable_data_ptr();
  call.dq = into.dq.mutable_data_ptr(), call.dk = into.dk.mutable_data_ptr(), call.dv = into.dv.mutable_data_ptr();
  set_attention_strides(call.dq_strides, into.dq), set_attention_strides(call.dk_strides, into.dk),
      set_attention_strides(call.dv_strides, into.dv);
  if (options.blocks != nullptr) {
    const CudaBlocks blocks = cuda_blocks(q, options, {&q, &k, &v, &out, &dout, &into.dq, &into.dk, &into.dv});
    check_cuda(cuda_block_kernels().backward(call, blocks, attention_element(q), cuda_stream()),
               "block attention backward");
    return;
  }
  check_cuda(cuda().attention_backward(call, attention_element(q), cuda_stream()), "attention_backward");
}

/// The one tensor that the three lie in side by side, as gradients of a fused projection do; undefined where they do
/// not.
at::Tensor fused(const AttentionGradients& into) {
  const at::Tensor &q = into.dq, &k = into.dk, &v = into.dv;
  const std::int64_t size = q.size(3), heads = q.size(2) + k.size(2) + v.size(2);
  const auto follows = [](const at::Tensor& a, const at::Tensor& b) {
    return b.storage().is_alias_of(a.storage()) && b.storage_offset() == a.storage_offset() + a.size(2) * a.stride(2) &&
           a.strides() == b.strides();
  };
  if (q.size(1) != k.size(1) || q.stride(2) != size || !follows(q, k) || !follows(k, v)) return {};
  return q.as_strided({q.size(0), q.size(1), heads, size}, q.strides());
}

std::string attention_key(const char* what, const at::Tensor& q, const at::Tensor& k, const Attention& options) {
  return fmt::format("{} {} batch {} queries {} keys {} heads {}/{} size {}{}", what, c10::toString(q.scalar_type()),
                     q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3), options.causal ? " causal" : "");
}

/// "cudnn" or "flash", where both can: timed for each shape of whole rows, as training has them.
std::string faster_kernel(const char* what, const at::Tensor& q, const at::Tensor& k, const Attention& options,
                          const std::function<void()>& cudnn, const std::function<void()>& flash,
                          const std::function<std::vector<at::Tensor>()>& made) {
  if (!gemm_autotune() || q.size(1) != k.size(1)) return "cudnn";
  const auto flash_or_error = [&] {
    try {
      flash();
    } catch (const c10::Error& error) {  // it leaves this way out
      throw Error(error.what_without_backtrace());
    }
  };
  return fastest_variant(attention_key(what, q, k, options), {{"cudnn", cudnn}, {"flash", flash_or_error}}, made);
}

/// From tensors of a library's making to where they are wanted.
void join(const AttentionGradients& into, const std::array<at::Tensor, 3>& gradients) {
  if (at::Tensor whole = fused(into); whole.defined()) {
    at::cat_out(whole, {gradients[0], gradients[1], gradients[2]}, 2);
    return;
  }
  into.dq.copy_(gradients[0]);
  into.dk.copy_(gradients[1]);
  into.dv.copy_(gradients[2]);
}

/// A tensor that nobody else looks at becomes the one that a library made; a view is copied into.
void take(at::Tensor& to, const at::Tensor& made) {
  const bool alone = to.use_count() == 1 && to.storage().use_count() == 1;
  if (alone && to.is_contiguous() && made.is_contiguous()) {
    to = made;
  } else {
    to.copy_(made);
  }
}

bool takes_wide_keys(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Attention& options) {
  const bool narrow = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  const bool square = q.size(1) == k.size(1) && options.query_position == options.key_position;
  return q.is_cuda() && narrow && square && !options.deterministic && !drops(options) && !has_documents(options) &&
         !has_window(q, k, options) && q.size(1) > 1 && q.size(3) % 8 == 0 && v.size(3) % 8 == 0 && q.numel() > 0;
}

/// Runs `call` where it has not failed before for this shape. ATen says by an exception that cuDNN has no plan.
bool by_cudnn_if_possible(const std::string& key, const std::function<void()>& call) {
  static std::mutex mutex;
  static std::set<std::string> impossible;
  {
    const std::scoped_lock lock(mutex);
    if (impossible.contains(key)) return false;
  }
  try {
    call();
    return true;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    log_warn("cuDNN has no {}, and values are filled up to the keys' width: {}", key, error.what_without_backtrace());
  }
  const std::scoped_lock lock(mutex);
  impossible.insert(key);
  return false;
}

}  // namespace

bool wide_keys_forward(AttentionResult& result, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const Attention& options) {
  if (!takes_wide_keys(q, k, v, options)) return false;
  const std::string key = fmt::format("{} values {}", attention_key("attention forward", q, k, options), v.size(3));
  return by_cudnn_if_possible(key, [&] {
    result = cudnn_forward_by_aten(q, k, v, options);
    result.out = result.out.contiguous();
  });
}

bool wide_keys_backward(const AttentionGradients& into, const at::Tensor& dout, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                        const Attention& options) {
  if (!takes_wide_keys(q, k, v, options)) return false;
  const std::string key = fmt::format("{} values {}", attention_key("attention backward", q, k, options), v.size(3));
  return by_cudnn_if_possible(key, [&] {
    const std::array<at::Tensor, 3> made = cudnn_backward(dout, q, k, v, out, lse, options);
    take(into.dq, made[0]), take(into.dk, made[1]), take(into.dv, made[2]);
  });
}

AttentionKernel attention_kernel(const at::Tensor& q, const at::Tensor& k, const Attention& options) {
  const bool narrow = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  const bool square = q.size(1) == k.size(1) && options.query_position == options.key_position;
  if (!narrow || drops(options) || options.blocks != nullptr || q.size(3) % 8 != 0 || q.numel() == 0 ||
      k.numel() == 0) {
    return AttentionKernel::kPlain;
  }
  if (has_documents(options)) {
    // Both sides must be one packing: queries that attend to themselves.
    const bool one = square && options.query_documents->is_same(*options.key_documents);
    return one && q.size(3) <= 256 ? AttentionKernel::kFlash : AttentionKernel::kPlain;
  }
  if (has_window(q, k, options)) return square && q.size(3) <= 256 ? AttentionKernel::kFlash : AttentionKernel::kPlain;
  if (options.causal && !square) return AttentionKernel::kPlain;
  if (q.size(1) == 1 && k.size(1) == 1) return AttentionKernel::kPlain;  // which cuDNN's backward refuses
  // A sentence that is written word by word has other lengths at each: cuDNN would make a plan for every one.
  if (q.size(1) == 1 && q.size(3) <= 256) return AttentionKernel::kFlash;
  return q.size(3) <= 128   ? AttentionKernel::kCudnn
         : q.size(3) <= 256 ? AttentionKernel::kFlash
                            : AttentionKernel::kPlain;
}

CudaAttention attention_call(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Attention& options) {
  CudaAttention call{};
  call.q = q.const_data_ptr(), call.k = k.const_data_ptr(), call.v = v.const_data_ptr();
  set_attention_strides(call.q_strides, q), set_attention_strides(call.k_strides, k);
  set_attention_strides(call.v_strides, v);
  call.batch = q.size(0), call.queries = q.size(1), call.heads = q.size(2), call.head_dim = q.size(3);
  call.keys = k.size(1), call.key_heads = k.size(2);
  call.query_position = options.query_position, call.key_position = options.key_position;
  call.window = options.window, call.causal = options.causal, call.scale = options.scale;
  return call;
}

Element attention_element(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kDouble:
      return Element::kDouble;
    case at::kBFloat16:
      return Element::kBfloat16;
    case at::kHalf:
      return Element::kHalf;
    default:
      return Element::kFloat;
  }
}

void set_attention_strides(std::int64_t (&to)[3], const at::Tensor& x) {
  for (int i = 0; i < 3; ++i) to[i] = x.stride(i);
}

void cuda_attention_forward(AttentionResult& result, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Attention& masked) {
  const Attention options = as_seen(q, k, masked);
  switch (attention_kernel(q, k, options)) {
    case AttentionKernel::kCudnn: {
      const auto cudnn = [&] { cudnn_forward(result, q, k, v, options); };
      const auto flash = [&] { result = flash_forward(q, k, v, options); };
      const auto made = [&] { return std::vector<at::Tensor>{result.out}; };
      return faster_kernel("attention forward", q, k, options, cudnn, flash, made) == "flash" ? flash() : cudnn();
    }
    case AttentionKernel::kFlash:
      result = flash_forward(q, k, v, options);
      return;
    case AttentionKernel::kPlain:
      break;
  }
  if (result.lse.is_contiguous()) return plain_forward(result, q, k, v, options);
  result.lse = at::empty(result.lse.sizes(), result.lse.options());
  plain_forward(result, q, k, v, options);
}

void cuda_attention_backward(const AttentionGradients& into, const at::Tensor& dout, const at::Tensor& q,
                             const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                             const Attention& masked) {
  const Attention options = as_seen(q, k, masked);
  const AttentionKernel kernel = attention_kernel(q, k, options);
  if (kernel == AttentionKernel::kPlain) return plain_backward(into, dout, q, k, v, out, lse, options);
  const auto by_cudnn = [&](bool fixed) {
    return kernel == AttentionKernel::kCudnn && cudnn_backward_into(into, dout, q, k, v, out, lse, options, fixed);
  };
  const auto written = [&] { return std::vector<at::Tensor>{into.dq, into.dk, into.dv}; };
  const auto by_flash = [&] { join(into, flash_backward(dout, q, k, v, out, lse, options)); };
  const auto any_cudnn = [&] {
    if (!by_cudnn(/*fixed=*/false)) join(into, cudnn_backward(dout, q, k, v, out, lse, options));
  };
  const auto usual = [&] {
    const bool cudnn = kernel == AttentionKernel::kCudnn &&
                       faster_kernel("attention backward", q, k, options, any_cudnn, by_flash, written) == "cudnn";
    cudnn ? any_cudnn() : by_flash();
  };
  if (!options.deterministic) return usual();
  // The flash kernel takes cuDNN's lse.
  const auto flash = [&] {
    const FixedOrder order(true);
    by_flash();
  };
  // An Error leaves this way out. Its room may be what does not fit any more, and the other way needs none.
  const auto cudnn = [&] {
    bool done = false;
    try {
      done = by_cudnn(/*fixed=*/true);
    } catch (const c10::OutOfMemoryError& error) {
      log_warn("cuDNN's fixed order of attention does not fit the GPU's memory: {}", error.what_without_backtrace());
    }
    if (!done) throw Error("cuDNN has no fixed order for this");  // the log has said why
  };
  const std::string key = attention_key("attention backward", q, k, options) + " fixed order";
  const std::string way =
      kernel == AttentionKernel::kCudnn ? fastest_variant(key, {{"flash", flash}, {"cudnn", cudnn}}, written) : "flash";
  const auto fixed = [&] {
    // A choice that was made elsewhere may not run here.
    if (way == "cudnn" && by_cudnn(/*fixed=*/true)) return;
    flash();
  };
  const auto us = time_once(key + ", and any", {{"fixed order", fixed}, {"any order", usual}});
  if (!us.empty()) {
    log_info("deterministic attention: backward by {} takes {:.0f} us instead of {:.0f} ({:.2f}x) at {}", way,
             us.at("fixed order"), us.at("any order"), us.at("fixed order") / us.at("any order"), key);
  }
  fixed();
}

void cuda_attention_merge(at::Tensor& out, at::Tensor& lse, const at::Tensor& other_out, const at::Tensor& other_lse) {
  const at::Tensor joined = at::logaddexp(lse, other_lse);
  // Where neither saw a key both weights are 0, not exp(-inf - -inf).
  const auto weight = [&](const at::Tensor& part) {
    return at::exp(part - joined).nan_to_num_(0.0).transpose(1, 2).unsqueeze(-1);
  };
  out.copy_(out.to(lse.scalar_type()) * weight(lse) + other_out.to(lse.scalar_type()) * weight(other_lse));
  lse.copy_(joined);
}

}  // namespace trireme::kernels
