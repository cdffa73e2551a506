#include "trireme/kernels/gemm_plans.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/timing.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kWorkspace = std::int64_t{64} << 20;  // the most that a plan may want
constexpr int kPlans = 12;                                   // that are looked at
constexpr std::size_t kFinalists = 4;                        // that are timed with care
constexpr const char* kNone = "none: the tensor library's";

std::optional<CudaGemm::Type> type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return CudaGemm::kFloat;
    case at::kHalf:
      return CudaGemm::kHalf;
    case at::kBFloat16:
      return CudaGemm::kBfloat16;
    case at::kFloat8_e4m3fn:
      return CudaGemm::kE4m3;
    case at::kFloat8_e5m2:
      return CudaGemm::kE5m2;
    default:
      return std::nullopt;
  }
}
const char* name_of(CudaGemm::Type type) {
  constexpr std::array kNames{"fp32", "fp16", "bf16", "e4m3", "e5m2"};
  return kNames.at(static_cast<std::size_t>(type));
}

/// A matrix as it is stored: by rows, or turned.
struct Stored {
  bool transposed = false;
  std::int64_t stride = 0;
};
std::optional<Stored> stored(const at::Tensor& x, std::int64_t grain) {
  // A dimension of one has any stride.
  const bool by_rows = x.stride(1) == 1 && (x.stride(0) >= x.size(1) || x.size(0) == 1);
  const bool by_columns = x.stride(0) == 1 && (x.stride(1) >= x.size(0) || x.size(1) == 1);
  if (!by_rows && !by_columns) return std::nullopt;
  Stored out{.transposed = !by_rows, .stride = by_rows ? x.stride(0) : x.stride(1)};
  out.stride = std::max(out.stride, by_rows ? x.size(1) : x.size(0));
  if (out.stride % grain != 0) return std::nullopt;
  return out;
}

std::int64_t grain_of(CudaGemm::Type type) {
  return type == CudaGemm::kFloat ? 4 : type == CudaGemm::kHalf || type == CudaGemm::kBfloat16 ? 8 : 16;
}
bool narrow8(CudaGemm::Type type) { return type == CudaGemm::kE4m3 || type == CudaGemm::kE5m2; }

bool types_go_together(const CudaGemm& p) {
  if (narrow8(p.a_type) || narrow8(p.b_type)) {
    const bool both = narrow8(p.a_type) && narrow8(p.b_type);
    return both && !(p.a_type == CudaGemm::kE5m2 && p.b_type == CudaGemm::kE5m2) &&
           (p.d_type == CudaGemm::kFloat || p.d_type == CudaGemm::kBfloat16) && !p.transpose_a && p.transpose_b;
  }
  return p.a_type == p.b_type && !narrow8(p.d_type) && (p.d_type == p.a_type || p.d_type == CudaGemm::kFloat);
}

CudaGemm::Epilogue epilogue_of(GemmExtras::Kind kind) {
  switch (kind) {
    case GemmExtras::Kind::kNone:
      return CudaGemm::kPlain;
    case GemmExtras::Kind::kBias:
      return CudaGemm::kBias;
    case GemmExtras::Kind::kGelu:
      return CudaGemm::kGelu;
    case GemmExtras::Kind::kGeluSlope:
      return CudaGemm::kGeluSlope;
    case GemmExtras::Kind::kGeluSlopeSum:
      return CudaGemm::kGeluSlopeSum;
    case GemmExtras::Kind::kSum:
      break;
  }
  return CudaGemm::kSum;
}

/// What a plan depends on; the same as product_key(), in numbers.
auto ground_of(const CudaGemm& p) {
  return std::tuple{p.a_type,    p.b_type,          p.d_type,       p.epilogue,   p.m,           p.n,           p.k,
                    p.a_stride,  p.b_stride,        p.d_stride,     p.aux_stride, p.transpose_a, p.transpose_b, p.fast,
                    p.alignment, p.bias != nullptr, p.c != nullptr, p.c_stride};
}
using Ground = decltype(ground_of(CudaGemm{}));

at::Tensor workspace_of(const CudaGemmPlan& plan, const at::Tensor& like) {
  // Out of the tensor library's memory, in the stream's order: two streams never share one, and a recording keeps its
  // own.
  return plan.workspace > 0 ? at::empty({plan.workspace}, like.options().dtype(at::kByte)) : at::Tensor();
}

void start(const CudaGemm& call, const CudaGemmPlan& plan, const at::Tensor& like) {
  const at::Tensor room = workspace_of(plan, like);
  check_cuda(cuda().product(call, plan, room.defined() ? room.mutable_data_ptr() : nullptr, cuda_stream()),
             product_key(call));
}

GemmPlan to_choice(const CudaGemmPlan& plan) {
  GemmPlan out{.workspace = plan.workspace, .described = describe_plan(plan)};
  std::copy(std::begin(plan.words), std::end(plan.words), out.words.begin());
  return out;
}
CudaGemmPlan from_choice(const GemmPlan& choice) {
  CudaGemmPlan plan{.workspace = choice.workspace};
  std::copy(choice.words.begin(), choice.words.end(), std::begin(plan.words));
  return plan;
}

/// The fastest of the plans, in two rounds: once through all, then the best of them in turns.
GemmPlan time_plans(CudaGemm call, std::vector<CudaGemmPlan> plans, const at::Tensor& out) {
  at::Tensor scratch;
  if (call.add && call.c == nullptr) {  // what is in `out` counts
    scratch = at::empty_strided(out.sizes(), out.strides(), out.options());
    call.d = scratch.mutable_data_ptr();
    call.add = false;
  }
  Stopwatch watch;
  struct Timed {
    CudaGemmPlan plan;
    bool favourite;
    double us;
  };
  std::vector<Timed> timed;
  for (const CudaGemmPlan& plan : plans) {
    try {
      start(call, plan, out);
      timed.push_back({plan, timed.empty(), watch.us(2, [&] { start(call, plan, out); })});
    } catch (const Error&) {  // a plan that the library offers and refuses
    }
  }
  if (timed.empty()) return {.described = kNone, .tried = static_cast<int>(plans.size())};
  const int tried = static_cast<int>(timed.size());
  std::stable_sort(timed.begin() + 1, timed.end(), [](const Timed& a, const Timed& b) { return a.us < b.us; });
  timed.resize(std::min(timed.size(), kFinalists + 1));
  std::vector<std::vector<double>> turns(timed.size());
  for (int turn = 0; turn < 5; ++turn) {
    for (std::size_t i = 0; i < timed.size(); ++i) {
      turns[i].push_back(watch.us(3, [&] { start(call, timed[i].plan, out); }));
    }
  }
  std::size_t best = 0;
  for (std::size_t i = 0; i < timed.size(); ++i) {
    timed[i].us = median(turns[i]);
    const double least = best == 0 ? timed[0].us * 0.99 : timed[best].us;
    if (timed[i].us < least) best = i;
  }
  GemmPlan choice = to_choice(timed[best].plan);
  choice.us = timed[best].us;
  choice.favourite_us = timed[0].us;
  choice.tried = tried;
  return choice;
}

std::optional<CudaGemmPlan> find_plan(Choices& choices, const CudaGemm& call, const at::Tensor& out) {
  const std::string key = product_key(call);
  if (const GemmPlan* choice = choices.product(key)) {
    if (choice->described == kNone) return std::nullopt;
    bool fits = false;
    check_cuda(cuda().product_fits(call, from_choice(*choice), &fits), key);
    if (fits) return from_choice(*choice);
    log_warn("the plan chosen for {} does not run here: it is timed again", key);
    choices.drop_product(key);
  }
  std::vector<CudaGemmPlan> plans(kPlans);
  int found = 0;
  check_cuda(cuda().product_plans(call, kWorkspace, plans.data(), kPlans, &found), key);
  plans.resize(static_cast<std::size_t>(found));
  GemmPlan choice{.described = kNone};
  if (!plans.empty()) {
    // While a step is recorded nothing can be timed: the library's favourite then, and again from now on.
    choice = cuda_capturing() ? to_choice(plans[0]) : time_plans(call, std::move(plans), out);
  }
  const GemmPlan& kept = choices.add_product(key, std::move(choice));
  if (kept.described == kNone) return std::nullopt;
  return from_choice(kept);
}

/// Plans that were found, or that there is none: of the whole process, as the choices are.
std::optional<CudaGemmPlan> plan_for(const CudaGemm& call, const at::Tensor& out) {
  static std::mutex mutex;
  static std::map<Ground, std::optional<CudaGemmPlan>> ready;
  const Ground ground = ground_of(call);
  const std::scoped_lock lock(mutex);
  if (const auto found = ready.find(ground); found != ready.end()) return found->second;
  std::optional<CudaGemmPlan> plan;
  with_choices([&](Choices& choices) { plan = find_plan(choices, call, out); });
  return ready.emplace(ground, plan).first->second;
}

}  // namespace

std::optional<CudaGemm> product_call(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add,
                                     const GemmExtras& extras) {
  TRIREME_CHECK(a.dim() == 2 && b.dim() == 2 && out.dim() == 2 && a.size(0) == out.size(0) &&
                    b.size(1) == out.size(1) && a.size(1) == b.size(0),
                "a GEMM of {}x{} and {}x{} into {}x{}", a.size(0), a.size(1), b.size(0), b.size(1), out.size(0),
                out.size(1));
  const auto a_type = type_of(a), b_type = type_of(b), d_type = type_of(out);
  if (!a_type || !b_type || !d_type || out.numel() == 0 || a.size(1) == 0) return std::nullopt;
  const auto a_stored = stored(a, grain_of(*a_type)), b_stored = stored(b, grain_of(*b_type)),
             d_stored = stored(out, grain_of(*d_type));
  if (!a_stored || !b_stored || !d_stored || d_stored->transposed) return std::nullopt;
  CudaGemm p{.a_type = *a_type, .b_type = *b_type, .d_type = *d_type, .epilogue = epilogue_of(extras.kind)};
  p.m = out.size(0), p.n = out.size(1), p.k = a.size(1);
  p.a_stride = a_stored->stride, p.b_stride = b_stored->stride, p.d_stride = d_stored->stride;
  p.transpose_a = a_stored->transposed, p.transpose_b = b_stored->transposed;
  p.add = add, p.fast = extras.fast;
  p.a = a.const_data_ptr(), p.b = b.const_data_ptr(), p.d = out.mutable_data_ptr();
  if (!types_go_together(p)) return std::nullopt;
  if (extras.bias.defined()) {
    const std::int64_t length = extras.kind == GemmExtras::Kind::kSum ? p.m : p.n;
    TRIREME_CHECK(extras.kind != GemmExtras::Kind::kNone && extras.bias.numel() == length,
                  "a bias of {} numbers for a GEMM of {} x {}", extras.bias.numel(), p.m, p.n);
    if (extras.bias.scalar_type() != out.scalar_type() || extras.bias.stride(0) != 1) return std::nullopt;
    p.bias = extras.bias.mutable_data_ptr();
  } else if (extras.kind != GemmExtras::Kind::kNone && extras.kind != GemmExtras::Kind::kGelu &&
             extras.kind != GemmExtras::Kind::kGeluSlope) {
    return std::nullopt;
  }
  if (extras.inner.defined()) {
    TRIREME_CHECK(extras.inner.sizes() == out.sizes(), "what enters GELU is as large as what leaves it");
    const auto aux = stored(extras.inner, 8);
    if (extras.inner.scalar_type() != out.scalar_type() || !aux || aux->transposed) return std::nullopt;
    p.aux = extras.inner.mutable_data_ptr();
    p.aux_stride = aux->stride;
  }
  if (extras.onto.defined()) {
    TRIREME_CHECK(add && extras.onto.sizes() == out.sizes(), "what a GEMM is added to is as large as its result");
    const auto onto = stored(extras.onto, grain_of(*d_type));
    if (extras.onto.scalar_type() != out.scalar_type() || !onto || onto->transposed) return std::nullopt;
    p.c = extras.onto.const_data_ptr();
    p.c_stride = onto->stride;
  }
  if (extras.a_scale.defined()) p.a_scale = extras.a_scale.const_data_ptr<float>();
  if (extras.b_scale.defined()) p.b_scale = extras.b_scale.const_data_ptr<float>();
  std::uintptr_t places = 256;
  for (const void* place : {p.a, p.b, p.c, static_cast<const void*>(p.d), static_cast<const void*>(p.bias),
                            static_cast<const void*>(p.aux)}) {
    places |= reinterpret_cast<std::uintptr_t>(place);
  }
  if (places % 16 != 0) return std::nullopt;
  p.alignment = places % 256 == 0 ? 256 : 16;
  return p;
}

std::string product_key(const CudaGemm& p) {
  constexpr std::array kExtras{"", " bias", " gelu", " gelu-slope", " gelu-slope-sum", " sum"};
  std::string key = fmt::format("{} {} -> {} {}x{}x{} {}{}{}", name_of(p.a_type), name_of(p.b_type), name_of(p.d_type),
                                p.m, p.n, p.k, p.transpose_a ? 't' : 'n', p.transpose_b ? 't' : 'n',
                                kExtras.at(static_cast<std::size_t>(p.epilogue)));
  if (p.epilogue == CudaGemm::kGelu && p.bias != nullptr) key += " bias";
  if (p.fast) key += " fast";
  if (p.c != nullptr) key += " onto";
  // Strides where rows have gaps, and addresses that are less than even.
  const std::int64_t a_width = p.transpose_a ? p.m : p.k, b_width = p.transpose_b ? p.k : p.n;
  if (p.a_stride != a_width) key += fmt::format(" a/{}", p.a_stride);
  if (p.b_stride != b_width) key += fmt::format(" b/{}", p.b_stride);
  if (p.d_stride != p.n) key += fmt::format(" d/{}", p.d_stride);
  if (p.c != nullptr && p.c_stride != p.n) key += fmt::format(" onto/{}", p.c_stride);
  if (p.aux != nullptr && p.aux_stride != p.n) key += fmt::format(" inner/{}", p.aux_stride);
  if (p.alignment != 256) key += fmt::format(" at {}", p.alignment);
  return key;
}

std::string describe_plan(const CudaGemmPlan& plan) {
  return fmt::format("algorithm {} tile {} stages {} split {} reduction {} swizzle {} custom {} inner {} cluster {}",
                     plan.algorithm, plan.tile, plan.stages, plan.split_k, plan.reduction, plan.swizzle, plan.custom,
                     plan.inner, plan.cluster);
}

bool has_plan(const CudaGemm& call, const at::Tensor& out) { return plan_for(call, out).has_value(); }

void run_product(const CudaGemm& call, const at::Tensor& out) {
  const auto plan = plan_for(call, out);
  TRIREME_CHECK(plan, "no plan for {}", product_key(call));
  start(call, *plan, out);
}

}  // namespace trireme::kernels
