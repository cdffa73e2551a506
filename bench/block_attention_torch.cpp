// bench/block_attention_torch.cpp -- block-sparse attention beside dense attention: time for a block of 16 x 16 that is
// computed, of the fixed pattern, on this CPU or with --cuda on a GPU.
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bench/arguments.h"
#include "trireme/device/cuda.h"
#include "trireme/kernels/attention.h"
#include "trireme/kernels/sparse/block_layout.h"
#include "trireme/spec/sparse_attention.h"

namespace {

using namespace trireme;

struct Times {
  double forward = 1e300, backward = 1e300;
};

Times times_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& dout,
               const kernels::Attention& options, int calls) {
  Times best;
  auto [out, lse] = kernels::attention_forward(q, k, v, options);
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  const auto seconds = [&](const auto& call, const at::Tensor& last) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    last.flatten()[0].item<double>();  // waits for a GPU
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
  };
  for (int round = 0; round < 5; ++round) {
    best.forward =
        std::min(best.forward, seconds([&] { kernels::attention_forward(out, lse, q, k, v, options); }, out));
    best.backward = std::min(
        best.backward, seconds([&] { kernels::attention_backward(dq, dk, dv, dout, q, k, v, out, lse, options); }, dv));
  }
  return best;
}

}  // namespace

int main(int count, char** words) {
  bool cuda = false;
  bench::Arguments app("Block-sparse attention beside dense attention, per pair of a query and a key that is computed");
  app.add_flag("--cuda", cuda, "on a GPU");
  if (const auto status = app.parse(count, words)) return *status;
  const at::TensorOptions type = cuda ? at::TensorOptions(at::kBFloat16).device(device::use_cuda(0)) : at::kFloat;
  const std::int64_t batch = cuda ? 4 : 1, tokens = cuda ? 8192 : 4096, heads = cuda ? 16 : 4, size = 64;
  const int calls = cuda ? 20 : 1;
  const auto normal = [&] { return at::randn({batch, tokens, heads, size}, type); };
  const at::Tensor q = normal(), k = normal(), v = normal(), dout = normal();
  kernels::Attention options{.scale = 0.125, .causal = true};
  const Times dense = times_of(q, k, v, dout, options, calls);
  const double all = spec::sparse_pairs(spec::sparse_lists({.mode = spec::SparseMode::kDense}, 1, tokens, true), true);
  fmt::print("dense causal: forward {:.3f} ms, backward {:.3f} ms; {} tokens, {} heads of {}, {} threads\n",
             1e3 * dense.forward, 1e3 * dense.backward, tokens, heads, size, at::get_num_threads());
  for (const std::int64_t block : {16, 32, 64, 128}) {
    spec::SparseAttention sparse = spec::sparse_defaults(spec::SparseMode::kFixed);
    sparse.block = block;
    spec::SparseLists lists = spec::sparse_lists(sparse, heads, tokens, true);
    const double share = spec::sparse_pairs(lists, true) / all;
    const kernels::BlockLayout layout({.tokens = tokens,
                                       .block = block,
                                       .heads = heads,
                                       .begin = std::move(lists.begin),
                                       .columns = std::move(lists.columns)});
    options.blocks = &layout;
    const Times found = times_of(q, k, v, dout, options, calls);
    fmt::print(
        "fixed, blocks of {:>3}: {:.1f} % of pairs, forward {:.3f} ms, backward {:.3f} ms; per pair {:.0f} % and "
        "{:.0f} % of dense speed\n",
        block, 100 * share, 1e3 * found.forward, 1e3 * found.backward, 100 * share * dense.forward / found.forward,
        100 * share * dense.backward / found.backward);
  }
}
