// bench/kernels_torch.cpp -- the fused operators beside the ATen operators one would call instead, and beside a loop
// that only moves the same bytes.
//
//   build/release/bench/kernels_torch [--threads 2] [--rounds 9] [--group norms] [--only gelu] [--isa v3] [--best]
//
// Every row is measured in rounds: ours, ATen's, the loop, then again; shown are medians over the rounds. "ATen / ours"
// and "bound / ours" above 1 mean that ours is faster. Small shapes stay in the cache and show arithmetic; large ones
// show memory. ATen's time holds the allocations of its results, as it does in use.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <optional>

#include "bench/arguments.h"
#include "trireme/base/instruction_set.h"
#include "trireme/kernels/activation.h"
#include "trireme/kernels/cross_entropy.h"
#include "trireme/kernels/dropout.h"
#include "trireme/kernels/embedding.h"
#include "trireme/kernels/norm.h"
#include "trireme/kernels/rotary.h"
#include "trireme/kernels/update.h"

namespace {

using namespace trireme;
using namespace trireme::kernels;
using at::Tensor;

enum class Use { kRead, kWrite, kBoth };
struct Moved {
  Tensor tensor;
  Use use;
};

struct Row {
  std::string name;
  std::function<void()> ours, aten;
  std::vector<Moved> moved;
};

/// Goes through all tensors side by side as a fused loop must, in pieces that fit the first-level cache, with as little
/// arithmetic as shows the compiler that the bytes matter.
void move_bytes(const std::vector<Moved>& moved) {
  std::int64_t largest = 0;
  for (const Moved& m : moved) largest = std::max(largest, static_cast<std::int64_t>(m.tensor.nbytes()));
  const std::int64_t pieces = std::max<std::int64_t>(1, largest / 4096);
  at::parallel_for(0, pieces, 4, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t all = 0;
    for (std::int64_t piece = begin; piece < end; ++piece) {
      for (const Moved& m : moved) {
        const auto words = static_cast<std::int64_t>(m.tensor.nbytes() / 8);
        auto* p = static_cast<std::uint64_t*>(m.tensor.data_ptr());
        std::uint64_t* const last = p + words * (piece + 1) / pieces;
        p += words * piece / pieces;
        if (m.use == Use::kRead) {
          for (; p < last; ++p) all ^= *p;
        } else if (m.use == Use::kWrite) {
          for (; p < last; ++p) *p = 0;
        } else {
          for (; p < last; ++p) *p ^= 1;
        }
      }
    }
    asm volatile("" : : "r"(all));
  });
}

/// With one thread its own processor time, which others on the machine do not lengthen; else the wall's.
double now() {
  timespec t;
  clock_gettime(at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double seconds(const std::function<void()>& once, int calls) {
  const double begin = now();
  for (int call = 0; call < calls; ++call) once();
  return (now() - begin) / calls;
}

struct Options {
  int threads = 0, rounds = 9;
  bool best = false;
  std::string only, group, isa;
};

double middle(std::vector<double> values, bool best) {
  std::sort(values.begin(), values.end());
  return values[best ? 0 : values.size() / 2];
}

void measure(const Row& row, const Options& options) {
  row.ours();
  row.aten();
  const double once = seconds(row.ours, 1);
  const int calls = options.best ? 1 : std::max(1, static_cast<int>(0.01 / once));
  std::vector<double> ours, aten, bound;
  for (int round = 0; round < options.rounds; ++round) {
    ours.push_back(seconds(row.ours, calls));
    aten.push_back(seconds(row.aten, calls));
    bound.push_back(seconds([&] { move_bytes(row.moved); }, calls));
  }
  const double o = middle(ours, options.best) * 1e3, a = middle(aten, options.best) * 1e3,
               b = middle(bound, options.best) * 1e3;
  fmt::print("{:<44} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.2f} {:>9.2f}\n", row.name, o, a, b, a / o, b / o);
  std::fflush(stdout);
}

Tensor half(at::IntArrayRef shape) { return at::randn(shape, at::kFloat).to(at::kBFloat16); }
std::string shape(const Tensor& t) { return fmt::format("{}x{}", t.size(0), t.size(1)); }

void norms(std::vector<Row>& rows, std::int64_t n, std::int64_t width) {
  const Tensor x = half({n, width}), w = half({width}), b = half({width}), dy = half({n, width}), none;
  Tensor y = at::empty_like(x), sum = at::empty_like(x), dx = at::empty_like(x), nothing;
  Tensor mean = at::empty({n}), rstd = at::empty({n}), dw = at::zeros({width}), db = at::zeros({width});
  norm_forward({x, none, w, b, y, nothing, mean, rstd}, {});
  rows.push_back({"layer norm forward bf16 " + shape(x),
                  [=]() mutable {
                    norm_forward({x, none, w, b, y, nothing, mean, rstd}, {});
                  },
                  [=] { at::native_layer_norm(x, {x.size(1)}, w, b, 1e-5); },
                  {{x, Use::kRead}, {y, Use::kWrite}}});
  const Tensor their_mean = mean.to(at::kBFloat16),
               their_rstd = rstd.to(at::kBFloat16);  // as their forward leaves them
  rows.push_back(
      {"layer norm backward bf16 " + shape(x),
       [=]() mutable {
         norm_backward({dy, x, w, mean, rstd, none, dx, dw, db}, {});
       },
       [=] {
         at::native_layer_norm_backward(dy, x, {x.size(1)}, their_mean, their_rstd, w, b, {true, true, true});
       },
       {{x, Use::kRead}, {dy, Use::kRead}, {dx, Use::kWrite}}});
  const Norm rms{.kind = NormKind::kRms, .epsilon = 1e-6};
  rows.push_back({"rms norm with residual forward bf16 " + shape(x),
                  [=]() mutable {
                    norm_forward({x, dy, w, none, y, sum, nothing, rstd}, rms);
                  },
                  [=] { at::rms_norm(x.add(dy), {x.size(1)}, w, 1e-6); },
                  {{x, Use::kRead}, {dy, Use::kRead}, {sum, Use::kWrite}, {y, Use::kWrite}}});
}

void activations(std::vector<Row>& rows, std::int64_t n, std::int64_t width) {
  const Tensor x = half({n, width}), dy = half({n, width}), none;
  Tensor y = at::empty_like(x), dx = at::empty_like(x), nothing;
  for (const bool tanh : {true, false}) {
    const auto kind = tanh ? Activation::kGeluTanh : Activation::kGelu;
    const char* mode = tanh ? "tanh" : "none";
    rows.push_back({fmt::format("gelu {} forward bf16 {}", tanh ? "tanh" : "exact", shape(x)),
                    [=]() mutable { activation_forward(y, x, none, kind); },
                    [=] { at::gelu(x, mode); },
                    {{x, Use::kRead}, {y, Use::kWrite}}});
    rows.push_back({fmt::format("gelu {} backward bf16 {}", tanh ? "tanh" : "exact", shape(x)),
                    [=]() mutable { activation_backward(dx, nothing, dy, x, none, kind); },
                    [=] { at::gelu_backward(dy, x, mode); },
                    {{x, Use::kRead}, {dy, Use::kRead}, {dx, Use::kWrite}}});
  }
  const Tensor both = half({n, 2 * width}), gate = both.slice(1, 0, width), up = both.slice(1, width);
  Tensor dboth = at::empty_like(both);
  Tensor dgate = dboth.slice(1, 0, width), dup = dboth.slice(1, width);
  rows.push_back({"swiglu forward bf16 " + shape(x),
                  [=]() mutable { gated_forward(y, gate, up, Activation::kSilu); },
                  [=] { at::silu(gate).mul(up); },
                  {{both, Use::kRead}, {y, Use::kWrite}}});
  rows.push_back({"swiglu backward bf16 " + shape(x),
                  [=]() mutable { gated_backward(dgate, dup, nothing, dy, gate, up, Activation::kSilu); },
                  [=] {
                    at::cat({at::silu_backward(dy.mul(up), gate), dy.mul(at::silu(gate))}, 1);
                  },
                  {{both, Use::kRead}, {dy, Use::kRead}, {dboth, Use::kWrite}}});
}

void tokens(std::vector<Row>& rows, std::int64_t n, std::int64_t width, std::int64_t vocabulary) {
  const Tensor table = half({vocabulary, width}), positions = half({n, width}), none, dy = half({n, width});
  const Tensor ids = at::randint(vocabulary, {n}, at::kLong), numbers = at::arange(n);
  Tensor y = at::empty_like(dy), dtable = at::zeros({vocabulary, width}), nothing;
  rows.push_back({"embedding with positions bf16 " + shape(dy),
                  [=]() mutable {
                    embedding_forward({y, ids, table, numbers, positions});
                  },
                  [=] { at::embedding(table, ids).add(at::embedding(positions, numbers)); },
                  {{positions, Use::kRead}, {dy, Use::kRead}, {y, Use::kWrite}}});
  // ATen's makes a gradient of the table's type that is then added to the one in float.
  const Tensor touched = at::empty({n, width});
  rows.push_back({"embedding backward bf16 " + shape(dy),
                  [=]() mutable { embedding_backward(dtable, ids, dy, 0); },
                  [=]() mutable { dtable.add_(at::embedding_dense_backward(dy, ids, vocabulary, -1, false)); },
                  {{dy, Use::kRead}, {touched, Use::kBoth}}});
  const std::int64_t heads = width / 64;
  Tensor q = half({1, n, heads, 64});
  const Tensor angle = at::randn({n, 32}), cosines = angle.cos(), sines = angle.sin(), where = numbers.unsqueeze(0);
  const Tensor c2 = at::cat({cosines, cosines}, 1).unsqueeze(1).to(at::kBFloat16);
  const Tensor s2 = at::cat({sines, sines}, 1).unsqueeze(1).to(at::kBFloat16);
  rows.push_back({fmt::format("rotary bf16 {}x{}x64", n, heads),
                  [=]() mutable { rotary_(q, cosines, sines, where, RotaryPairs::kHalves, false); },
                  [=] {
                    const Tensor transposed = at::cat({q.slice(3, 32).neg(), q.slice(3, 0, 32)}, 3);
                    q.mul(c2).add(transposed.mul(s2));
                  },
                  {{q, Use::kBoth}}});
  Tensor x = half({n, width});
  const Dropout dropout{Random(1, "bench"), 0.1};
  rows.push_back({"dropout bf16 " + shape(x),
                  [=]() mutable { dropout_(x, dropout, numbers, 0, width); },
                  [=] { at::native_dropout(x, 0.1, true); },
                  {{x, Use::kBoth}}});
  const std::int64_t chunk = n / 2;
  Tensor logits = half({chunk, vocabulary}), losses = at::empty({chunk}), kept = logits.clone();
  const Tensor targets = at::randint(vocabulary, {chunk}, at::kLong), scale = at::full({chunk}, 1e-3);
  rows.push_back({"cross-entropy and gradient bf16 " + shape(logits),
                  [=]() mutable {
                    cross_entropy({logits, targets, scale, losses, nothing, nothing}, {});
                  },
                  [=] {
                    const Tensor log_p = at::_log_softmax(kept, 1, false);
                    const auto [loss, total] = at::nll_loss_forward(log_p, targets, {}, 1, -100);
                    const Tensor d =
                        at::nll_loss_backward(at::ones({}, at::kBFloat16), log_p, targets, {}, 1, -100, total);
                    at::_log_softmax_backward_data(d, log_p, 1, at::kBFloat16);
                  },
                  {{kept, Use::kRead}, {logits, Use::kBoth}}});
}

void updates(std::vector<Row>& rows, std::int64_t n) {
  Tensor w = at::randn({n}), m = at::zeros({n}), v = at::ones({n}), none, low = at::empty({n}, at::kBFloat16);
  const std::string size = fmt::format("{}M", n >> 20);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    Tensor g = at::randn({n}).to(type);
    const Tensor wide = g.to(at::kFloat);
    Tensor step = at::full({}, 3.0, at::kFloat);
    const auto ours = [=]() mutable {
      adamw_update({w, g, low}, m, v, {.learning_rate = 1e-4, .weight_decay = 0.1, .step = 3});
    };
    const auto aten = [=]() mutable {
      std::vector<Tensor> ws{w}, gs{wide}, ms{m}, vs{v}, steps{step};
      at::_fused_adamw_(ws, gs, ms, vs, at::TensorList(), steps, 1e-4, 0.9, 0.999, 0.1, 1e-8, false, false);
      low.copy_(w);
    };
    rows.push_back({fmt::format("adamw {} gradient, bf16 copy, {}", type == at::kFloat ? "f32" : "bf16", size),
                    ours,
                    aten,
                    {{w, Use::kBoth}, {m, Use::kBoth}, {v, Use::kBoth}, {g, Use::kRead}, {low, Use::kWrite}}});
  }
  Tensor g = at::randn({n});
  rows.push_back({"adamw f32, no copy, " + size,
                  [=]() mutable {
                    adamw_update({w, g, none}, m, v, {.learning_rate = 1e-4, .weight_decay = 0.1, .step = 3});
                  },
                  [=]() mutable {
                    std::vector<Tensor> ws{w}, gs{g}, ms{m}, vs{v}, steps{at::full({}, 3.0, at::kFloat)};
                    at::_fused_adamw_(ws, gs, ms, vs, at::TensorList(), steps, 1e-4, 0.9, 0.999, 0.1, 1e-8, false,
                                      false);
                  },
                  {{w, Use::kBoth}, {m, Use::kBoth}, {v, Use::kBoth}, {g, Use::kRead}}});
  rows.push_back({"sum of squares f32, " + size,
                  [=] { sum_of_squares(g); },
                  [=] { at::linalg_vector_norm(g, 2); },
                  {{g, Use::kRead}}});
}

}  // namespace

int main(int argc, char** argv) {
  Options options{.threads = at::get_num_threads()};
  bench::Arguments app("fused operators beside ATen's and beside memory");
  app.add_option("--threads", options.threads);
  app.add_option("--rounds", options.rounds);
  app.add_option("--only", options.only, "rows whose name holds this");
  app.add_option("--group", options.group, "norms, activations, tokens or updates alone");
  app.add_option("--isa", options.isa, "plain, v3, v4 or v4bf16 instead of the machine's");
  app.add_flag("--best", options.best,
               "the shortest single call instead of the median: where others use the machine too");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  at::set_num_threads(options.threads);
  std::optional<UseInstructionSet> use;
  for (const auto set : {InstructionSet::kPlain, InstructionSet::kV3, InstructionSet::kV4, InstructionSet::kV4Bf16}) {
    if (options.isa == to_string(set)) use.emplace(set);
  }
  fmt::print("{} threads, instructions {}, milliseconds\n", at::get_num_threads(), to_string(instruction_set()));
  fmt::print("{:<44} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "", "ours", "ATen", "bound", "ATen/ours", "bound/ours");
  // One group after the other, so that only one holds memory.
  const std::pair<const char*, std::function<void(std::vector<Row>&)>> groups[] = {
      {"norms", [](auto& rows) { norms(rows, 2048, 384), norms(rows, 32768, 1024); }},
      {"activations", [](auto& rows) { activations(rows, 2048, 1536), activations(rows, 16384, 4096); }},
      {"tokens", [](auto& rows) { tokens(rows, 2048, 384, 50304), tokens(rows, 2048, 4096, 50304); }},
      {"updates", [](auto& rows) { updates(rows, std::int64_t{1} << 24); }}};
  for (const auto& [name, add] : groups) {
    if (!options.group.empty() && options.group != name) continue;
    std::vector<Row> rows;
    add(rows);
    for (const Row& row : rows) {
      if (row.name.find(options.only) != std::string::npos) measure(row, options);
    }
  }
  return 0;
}
