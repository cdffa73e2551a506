#include "trireme/kernels/attention_cudnn.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "trireme/base/log.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

/// The most that a fixed order may work in: cuDNN's keeps the scores of all heads at once, which grow with the square
/// of the sequence.
constexpr std::int64_t kMostFixed = std::int64_t{1} << 30;

std::atomic<bool> direct{true};

/// A stride over a single element may be anything; plans are told one that follows from the others. [batch, row, head].
void settle(std::int64_t (&strides)[3], std::int64_t batch, std::int64_t rows, std::int64_t heads, std::int64_t size) {
  if (heads == 1) strides[2] = size;
  if (rows == 1) strides[1] = heads * strides[2];
  if (batch == 1) strides[0] = rows * strides[1];
}

void settle_inputs(CudaAttention& c) {
  settle(c.q_strides, c.batch, c.queries, c.heads, c.head_dim);
  settle(c.k_strides, c.batch, c.keys, c.key_heads, c.head_dim);
  settle(c.v_strides, c.batch, c.keys, c.key_heads, c.head_dim);
  settle(c.out_strides, c.batch, c.queries, c.heads, c.head_dim);
}

struct CudnnPlan {
  void* plan = nullptr;
  std::int64_t workspace = 0;
};

/// The library tells everything that it tried, over many lines.
std::string first_words(std::string_view reason) {
  constexpr std::size_t kMost = 400;
  std::string out(reason.substr(0, kMost));
  for (char& c : out) {
    if (c == '\n') c = ' ';
  }
  return reason.size() > kMost ? out + " ..." : out;
}

/// Nothing, with a word in the log, where there is none.
std::optional<CudnnPlan> make_plan(const CudnnCall& call) {
  CudnnPlan plan;
  const bool fixed = call.pass == CudnnPass::kFixedBackward;
  const char* const instead = fixed ? "ATen's flash kernel takes its place" : "it is asked through ATen";
  if (const CudaError why = cuda().cudnn_plan(call.attention, call.element, call.pass, &plan.plan, &plan.workspace)) {
    log_warn("cuDNN has no plan for {}, and {}: {}", cudnn_text(call), instead, first_words(why));
    return std::nullopt;
  }
  if (fixed && plan.workspace > kMostFixed) {
    log_info("cuDNN would take {:.1f} GiB to work in for {}, and {}", static_cast<double>(plan.workspace) / 0x1p30,
             cudnn_text(call), instead);
    return std::nullopt;
  }
  return plan;
}

/// Plans of this thread: cuDNN does not promise that one may run on two threads at a time.
const std::optional<CudnnPlan>& plan_for(const CudnnCall& call, int gpu) {
  static thread_local std::map<CudnnKey, std::optional<CudnnPlan>> ready;
  const CudnnKey key = cudnn_key(call, gpu);
  const auto found = ready.find(key);
  return found != ready.end() ? found->second : ready.emplace(key, make_plan(call)).first->second;
}

bool callable() {
  static const bool ready = [] {
    const CudaError why = cuda().cudnn_ready();
    if (why != nullptr) {
      log_warn("attention asks cuDNN through ATen, which joins gradients in a pass of its own: {}", why);
    }
    return why == nullptr;
  }();
  return ready && direct.load(std::memory_order_relaxed);
}

/// False where cuDNN cannot be called directly.
bool run(const CudnnCall& call, const at::Tensor& like) {
  if (!cudnn_aligned(call)) {
    static std::once_flag warned;
    std::call_once(warned, [&] {
      log_info("{} is asked through ATen and copied: it goes to addresses or strides that are no multiples of 16 bytes",
               cudnn_text(call));
    });
    return false;
  }
  const std::optional<CudnnPlan>& plan = plan_for(call, like.device().index());
  if (!plan) return false;
  // Out of the tensor library's memory, in the stream's order: two streams never share one, and a CUDA graph keeps its
  // own.
  at::Tensor room;
  if (plan->workspace > 0) room = at::empty({plan->workspace}, like.options().dtype(at::kByte));
  void* const workspace = room.defined() ? room.mutable_data_ptr() : nullptr;
  if (const CudaError error = cuda().cudnn_run(plan->plan, call.attention, workspace, cuda_stream())) {
    check_cuda(error, cudnn_text(call));
  }
  return true;
}

/// cuDNN reads 16 bytes at once from its inputs, and wrong ones where they begin elsewhere.
at::Tensor even(const at::Tensor& x) {
  bool fits = reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
  for (int i = 0; i < 3; ++i) fits = fits && (x.size(i) == 1 || x.stride(i) % 8 == 0);
  return fits ? x : x.clone(at::MemoryFormat::Contiguous);
}

// ---- through ATen, which wants [batch, heads, sequence, size] and takes any strides

at::Tensor heads_first(const at::Tensor& x) { return x.transpose(1, 2); }

}  // namespace

AttentionResult cudnn_forward_by_aten(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const Attention& o) {
  auto result =
      at::_scaled_dot_product_cudnn_attention(heads_first(even(q)), heads_first(even(k)), heads_first(even(v)),
                                              /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true,
                                              /*dropout_p=*/0.0, o.causal, /*return_debug_mask=*/false, o.scale);
  return {std::get<0>(result).transpose(1, 2), std::get<1>(result).view({q.size(0), q.size(2), q.size(1)})};
}

CudnnCall cudnn_forward_call(const AttentionResult& into, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const Attention& options) {
  CudnnCall call{.attention = attention_call(q, k, v, options), .element = attention_element(q)};
  call.attention.out = into.out.mutable_data_ptr();
  set_attention_strides(call.attention.out_strides, into.out);
  call.attention.lse = into.lse.mutable_data_ptr();
  settle_inputs(call.attention);
  return call;
}

CudnnCall cudnn_backward_call(const AttentionGradients& into, const at::Tensor& dout, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                              const Attention& options, bool fixed) {
  CudnnCall call{.attention = attention_call(q, k, v, options),
                 .element = attention_element(q),
                 .pass = fixed ? CudnnPass::kFixedBackward : CudnnPass::kBackward};
  CudaAttention& c = call.attention;
  c.out_read = out.const_data_ptr(), c.dout = dout.const_data_ptr();
  c.lse = const_cast<void*>(lse.const_data_ptr());  // read
  c.dq = into.dq.mutable_data_ptr(), c.dk = into.dk.mutable_data_ptr(), c.dv = into.dv.mutable_data_ptr();
  set_attention_strides(c.out_strides, out), set_attention_strides(c.dout_strides, dout);
  set_attention_strides(c.dq_strides, into.dq), set_attention_strides(c.dk_strides, into.dk);
  set_attention_strides(c.dv_strides, into.dv);
  settle_inputs(c);
  settle(c.dout_strides, c.batch, c.queries, c.heads, c.head_dim);
  settle(c.dq_strides, c.batch, c.queries, c.heads, c.head_dim);
  settle(c.dk_strides, c.batch, c.keys, c.key_heads, c.head_dim);
  settle(c.dv_strides, c.batch, c.keys, c.key_heads, c.head_dim);
  return call;
}

bool cudnn_aligned(const CudnnCall& call) {
  const CudaAttention& c = call.attention;
  std::uintptr_t places = 0;
  for (const void* place :
       {c.q, c.k, c.v, c.dout, c.out_read, static_cast<const void*>(c.out), static_cast<const void*>(c.dq),
        static_cast<const void*>(c.dk), static_cast<const void*>(c.dv)}) {
    places |= reinterpret_cast<std::uintptr_t>(place);
  }
  std::uint64_t elements = static_cast<std::uint64_t>(c.head_dim);  // of two bytes each
  for (const auto* strides : {&c.q_strides, &c.k_strides, &c.v_strides, &c.out_strides, &c.dout_strides, &c.dq_strides,
                              &c.dk_strides, &c.dv_strides}) {
    for (const std::int64_t stride : *strides) elements |= static_cast<std::uint64_t>(stride);
  }
  return places % 16 == 0 && elements % 8 == 0;
}

CudnnKey cudnn_key(const CudnnCall& call, int gpu) {
  const CudaAttention& c = call.attention;
  CudnnKey key{gpu,
               static_cast<std::int64_t>(call.pass),
               static_cast<std::int64_t>(call.element),
               c.batch,
               c.queries,
               c.keys,
               c.heads,
               c.key_heads,
               c.head_dim,
               c.causal,
               std::bit_cast<std::int64_t>(c.scale)};
  std::size_t next = 11;
  for (const auto* strides : {&c.q_strides, &c.k_strides, &c.v_strides, &c.out_strides, &c.dout_strides, &c.dq_strides,
                              &c.dk_strides, &c.dv_strides}) {
    for (const std::int64_t stride : *strides) key.at(next++) = stride;
  }
  return key;
}

std::string cudnn_text(const CudnnCall& call) {
  const CudaAttention& c = call.attention;
  return fmt::format("attention {} {}, batch {}, queries {}, keys {}, heads {}/{}, size {}{}{}",
                     call.pass == CudnnPass::kForward ? "forward" : "backward",
                     call.element == Element::kHalf ? "fp16" : "bf16", c.batch, c.queries, c.keys, c.heads, c.key_heads,
                     c.head_dim, c.causal ? ", causal" : "",
                     call.pass == CudnnPass::kFixedBackward ? ", fixed order" : "");
}

void set_direct_cudnn(bool on) { direct = on; }

void cudnn_forward(AttentionResult& result, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const Attention& options) {
  const at::Tensor eq = even(q), ek = even(k), ev = even(v);
  if (callable() && result.lse.is_contiguous() && run(cudnn_forward_call(result, eq, ek, ev, options), q)) return;
  result = cudnn_forward_by_aten(eq, ek, ev, options);
}

bool cudnn_backward_into(const AttentionGradients& into, const at::Tensor& dout, const at::Tensor& q,
                         const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                         const Attention& options, bool fixed) {
  if (!callable()) return false;
  const at::Tensor edout = even(dout), eq = even(q), ek = even(k), ev = even(v), eout = even(out);
  return run(cudnn_backward_call(into, edout, eq, ek, ev, eout, lse.contiguous(), options, fixed), q);
}

std::array<at::Tensor, 3> cudnn_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                         const Attention& o) {
  const at::Tensor none, seed = at::empty({}, q.options().dtype(at::kLong));
  auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      heads_first(even(dout)), heads_first(even(q)), heads_first(even(k)), heads_first(even(v)), heads_first(even(out)),
      lse.unsqueeze(-1), seed, seed, none, none, none, q.size(1), k.size(1), /*dropout_p=*/0.0, o.causal, o.scale);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

}  // namespace trireme::kernels
