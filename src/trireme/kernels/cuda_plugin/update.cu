// The optimizers' updates, four numbers a thread.
#include <initializer_list>

#include "trireme/kernels/cpu/rounding.h"
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"
#include "trireme/kernels/cuda_plugin/many.cuh"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256, kVec = 4, kTurns = 2;
constexpr std::int64_t kPiece = static_cast<std::int64_t>(kThreads) * kVec * kTurns;  // of one block

template <int kN, typename A>
__device__ __forceinline__ void read(const Stream& s, std::int64_t i, A (&to)[kN]) {
  load_any<kN>(s.data, s.element, i, to);
}
template <int kN, typename A>
__device__ __forceinline__ void write(const Stream& s, std::int64_t i, const A (&from)[kN]) {
  store_any<kN>(s.data, s.element, i, from);
}

/// The random bits of kN neighbours, made once for all that is rounded of them; without a key numbers go to the
/// nearest.
template <int kN>
struct Chances {
  bool any;
  std::uint64_t bits[kN];
  __device__ __forceinline__ Chances(std::uint64_t key, std::int64_t i) : any(key != 0) {
    if (!any) return;
#pragma unroll
    for (int k = 0; k < kN; ++k) bits[k] = rounding_bits(key, static_cast<std::uint64_t>(i + k));
  }
  __device__ __forceinline__ float rounded(float x, int k, int chance) const {
    return __uint_as_float(rounded_bits(__float_as_uint(x), static_cast<std::uint32_t>(bits[k] >> chance)));
  }
};

/// Two finite numbers as rounded_bits() rounds each, side by side.
__device__ __forceinline__ std::uint32_t two_by_chance(float a, float b, std::uint64_t bits_a, std::uint64_t bits_b,
                                                       int chance) {
  const std::uint32_t low = __float_as_uint(a) + (static_cast<std::uint32_t>(bits_a >> chance) & 0xffffu);
  const std::uint32_t high = __float_as_uint(b) + (static_cast<std::uint32_t>(bits_b >> chance) & 0xffffu);
  return __byte_perm(low, high, 0x7632);
}

template <int kN, typename A>
__device__ __forceinline__ void write(const Stream& s, std::int64_t i, const A (&from)[kN], const Chances<kN>& chances,
                                      int chance) {
  if constexpr (sizeof(A) == 4) {
    if (chances.any && s.element == Element::kBfloat16) {
      A rounded[kN];
#pragma unroll
      for (int k = 0; k < kN; ++k) rounded[k] = chances.rounded(from[k], k, chance);
      return write(s, i, rounded);
    }
  }
  write(s, i, from);
}

template <int kN, typename A>
__device__ __forceinline__ void read_gradient(const UpdateLoop& c, std::int64_t i, A (&g)[kN]) {
  read(c.gradient, i, g);
#pragma unroll
  for (int k = 0; k < kN; ++k) g[k] *= static_cast<A>(c.gradient_scale);
  if (c.zero_gradient) {
    const A zeros[kN] = {};
    write(c.gradient, i, zeros);
  }
}
template <int kN, typename A>
__device__ __forceinline__ void write_weight(const UpdateLoop& c, std::int64_t i, const A (&w)[kN],
                                             const Chances<kN>& chances = {0, 0}) {
  write(c.weight, i, w, chances, kWeightChance);
  if constexpr (sizeof(A) == 4) {
    if (c.low.data != nullptr) write(c.low, i, w);
  }
}

// Each of these updates the numbers [i, i + kN).

template <typename A>
struct SgdBody {
  UpdateLoop c;
  SgdNumbers n;
  __device__ __forceinline__ void take(const CudaStepScalars& device_scalars) { n.rate = device_scalars.rate; }
  template <int kN>
  __device__ __forceinline__ void run(std::int64_t i) const {
    A g[kN], w[kN], v[kN];
    read_gradient(c, i, g);
    read(c.weight, i, w);
#pragma unroll
    for (int k = 0; k < kN; ++k) g[k] += static_cast<A>(n.decay) * w[k];
    if (c.first.data != nullptr) {
      if (!n.start) read(c.first, i, v);
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        v[k] = n.start ? g[k] : static_cast<A>(n.momentum) * v[k] + static_cast<A>(n.undamped) * g[k];
        g[k] = n.nesterov ? static_cast<A>(n.momentum) * v[k] + g[k] : v[k];
      }
      write(c.first, i, v);
    }
#pragma unroll
    for (int k = 0; k < kN; ++k) w[k] -= static_cast<A>(n.rate) * g[k];
    write_weight(c, i, w);
  }
};

template <typename A>
struct AdagradBody {
  UpdateLoop c;
  AdagradNumbers n;
  __device__ __forceinline__ void take(const CudaStepScalars& device_scalars) { n.rate = device_scalars.rate; }
  template <int kN>
  __device__ __forceinline__ void run(std::int64_t i) const {
    A g[kN], w[kN], sum[kN];
    read_gradient(c, i, g);
    read(c.weight, i, w);
    read(c.second, i, sum);
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      g[k] += static_cast<A>(n.decay) * w[k];
      sum[k] += g[k] * g[k];
      w[k] -= static_cast<A>(n.rate) * (g[k] / (sqrt(sum[k]) + static_cast<A>(n.epsilon)));
    }
    write(c.second, i, sum);
    write_weight(c, i, w);
  }
};

/// Moves both moments of a number on; its gradient becomes m / (sqrt(v^) + epsilon).
template <typename A>
__device__ __forceinline__ void adam_number(const AdamNumbers& n, A& g, A& m, A& v) {
  m += static_cast<A>(n.take1) * (g - m);
  v += static_cast<A>(n.take2) * (g * g - v);
  g = m / (sqrt(v) * static_cast<A>(n.root) + static_cast<A>(n.epsilon));
}
template <int kN, typename A>
__device__ __forceinline__ void adam_direction(const UpdateLoop& c, const AdamNumbers& n, std::int64_t i, A (&g)[kN],
                                               const Chances<kN>& chances) {
  A m[kN], v[kN];
  read(c.first, i, m);
  read(c.second, i, v);
#pragma unroll
  for (int k = 0; k < kN; ++k) adam_number(n, g[k], m[k], v[k]);
  write(c.first, i, m, chances, kFirstChance);
  write(c.second, i, v, chances, kSecondChance);
}

template <typename A>
struct AdamBody {
  UpdateLoop c;
  AdamNumbers n;
  __device__ __forceinline__ void take(const CudaStepScalars& device_scalars) {
    n.rate = device_scalars.rate;
    n.root = device_scalars.root;
    n.weight_decay = device_scalars.weight_decay;
  }
  /// Both parts are added up before they meet the weight, beside which each alone may round to nothing.
  __device__ __forceinline__ A moved(A w, A g) const {
    return w - (g * static_cast<A>(n.rate) + static_cast<A>(n.weight_decay) * w);
  }
  template <int kN>
  __device__ __forceinline__ void run(std::int64_t i) const {
    A g[kN], w[kN];
    read_gradient(c, i, g);
    read(c.weight, i, w);
#pragma unroll
    for (int k = 0; k < kN; ++k) g[k] += static_cast<A>(n.decay) * w[k];
    const Chances<kN> chances(n.rounding, i);
    adam_direction(c, n, i, g, chances);
#pragma unroll
    for (int k = 0; k < kN; ++k) w[k] = moved(w[k], g[k]);
    write_weight(c, i, w, chances);
  }
};

/// Everything in bfloat16 and stochastically rounded: as AdamBody, eight numbers at a time and without a question for
/// each type. Numbers stay as they lie until their turn comes, so that all four streams are under way at once. There is
/// so little memory to wait for that instructions count: the direction is within two units in the last place of a
/// float, and whether numbers are finite is asked once for all.
struct NarrowAdamBody : AdamBody<float> {
  static constexpr int kWidth = 8;
  __device__ __forceinline__ static float fast_direction(const AdamNumbers& n, float g, float& m, float& v) {
    m = fmaf(static_cast<float>(n.take1), g - m, m);
    v = fmaf(static_cast<float>(n.take2), fmaf(g, g, -v), v);
    return fast_divide(m, fmaf(fast_root(v), static_cast<float>(n.root), static_cast<float>(n.epsilon)));
  }
  template <int kN>
  __device__ __forceinline__ void run(std::int64_t i) const {
    if constexpr (kN < kWidth) {
      AdamBody<float>::run<kN>(i);
    } else {
      const auto at = [&](const Stream& s) { return static_cast<Bf16*>(s.data) + i; };
      const auto raw_g = load_pack<kN>(at(c.gradient)), raw_w = load_pack<kN>(at(c.weight)),
                 raw_m = load_pack<kN>(at(c.first)), raw_v = load_pack<kN>(at(c.second));
      float w[kN], m[kN], v[kN], most = 0;
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        float g = widen(raw_g.v[k]) * static_cast<float>(c.gradient_scale);
        w[k] = widen(raw_w.v[k]), m[k] = widen(raw_m.v[k]), v[k] = widen(raw_v.v[k]);
        g = fmaf(static_cast<float>(n.decay), w[k], g);
        w[k] = moved(w[k], fast_direction(n, g, m[k], v[k]));
        most += fabsf(w[k]) + fabsf(m[k]) + v[k];
      }
      if (!(most < 3e38f)) return AdamBody<float>::run<kN>(i);  // something is NaN or Inf, or nearly none
      std::uint32_t of_w[kN / 2], of_m[kN / 2], of_v[kN / 2];
#pragma unroll
      for (int k = 0; k < kN; k += 2) {
        const std::uint64_t left = rounding_bits(n.rounding, static_cast<std::uint64_t>(i + k)),
                            right = rounding_bits(n.rounding, static_cast<std::uint64_t>(i + k + 1));
        of_w[k / 2] = two_by_chance(w[k], w[k + 1], left, right, kWeightChance);
        of_m[k / 2] = two_by_chance(m[k], m[k + 1], left, right, kFirstChance);
        of_v[k / 2] = two_by_chance(v[k], v[k + 1], left, right, kSecondChance);
      }
      store_words(at(c.weight), of_w);
      store_words(at(c.first), of_m);
      store_words(at(c.second), of_v);
      if (c.zero_gradient) {
        const float zeros[kN] = {};
        store<kN>(at(c.gradient), zeros);
      }
    }
  }
};

/// Floats that are updated by a gradient of bfloat16, with a copy of bfloat16: as AdamBody, without a question for each
/// type. Both turns of a thread are under way before the first is needed, and a warp's vectors lie side by side.
struct MasterAdamBody : AdamBody<float> {
  __device__ __forceinline__ void run_both(std::int64_t i, std::int64_t j) const {
    const std::int64_t at[2] = {i, j};
    Pack<Bf16, kVec> gradient[2];
    float w[2][kVec], m[2][kVec], v[2][kVec];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      gradient[t] = load_pack<kVec>(static_cast<const Bf16*>(c.gradient.data) + at[t]);
      load<kVec>(static_cast<const float*>(c.weight.data) + at[t], w[t]);
      load<kVec>(static_cast<const float*>(c.first.data) + at[t], m[t]);
      load<kVec>(static_cast<const float*>(c.second.data) + at[t], v[t]);
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        float g = widen(gradient[t].v[k]) * static_cast<float>(c.gradient_scale);
        g += static_cast<float>(n.decay) * w[t][k];
        adam_number(n, g, m[t][k], v[t][k]);
        w[t][k] = moved(w[t][k], g);
      }
      store<kVec>(static_cast<float*>(c.first.data) + at[t], m[t]);
      store<kVec>(static_cast<float*>(c.second.data) + at[t], v[t]);
      store<kVec>(static_cast<float*>(c.weight.data) + at[t], w[t]);
      store<kVec>(static_cast<Bf16*>(c.low.data) + at[t], w[t]);
      if (c.zero_gradient) {
        const float zeros[kVec] = {};
        store<kVec>(static_cast<Bf16*>(c.gradient.data) + at[t], zeros);
      }
    }
  }
};

template <typename A>
struct LambBody {
  UpdateLoop c;
  AdamNumbers n;
  template <int kN>
  __device__ __forceinline__ void run(std::int64_t i) const {
    A g[kN], w[kN];
    read_gradient(c, i, g);
    read(c.weight, i, w);
    adam_direction(c, n, i, g, Chances<kN>(n.rounding, i));
#pragma unroll
    for (int k = 0; k < kN; ++k) g[k] = static_cast<A>(n.decay) * w[k] + g[k] * static_cast<A>(n.rate);
    write(c.update, i, g);
  }
};

template <typename A>
struct ApplyBody {
  UpdateLoop c;
  double rate;
  template <int kN>
  __device__ __forceinline__ void run(std::int64_t i) const {
    A u[kN], w[kN];
    read(c.update, i, u);
    read(c.weight, i, w);
#pragma unroll
    for (int k = 0; k < kN; ++k) w[k] -= static_cast<A>(rate) * u[k];
    write_weight(c, i, w);
  }
};

template <typename A>
struct LarsBody {
  UpdateLoop c;
  LarsNumbers n;
  template <int kN>
  __device__ __forceinline__ void run(std::int64_t i) const {
    A g[kN], w[kN], v[kN];
    read_gradient(c, i, g);
    read(c.weight, i, w);
    read(c.first, i, v);
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      v[k] = static_cast<A>(n.momentum) * v[k] + static_cast<A>(n.rate) * (static_cast<A>(n.decay) * w[k] + g[k]);
      w[k] -= v[k];
    }
    write(c.first, i, v);
    write_weight(c, i, w);
  }
};

/// Those whose ratios of norms the host decides on are never part of a captured step.
template <typename Body>
concept TakesStepScalars = requires(Body body, const CudaStepScalars& device_scalars) {
  body.take(device_scalars);
};

/// Numbers that a body takes at a time.
template <typename Body>
inline constexpr int kWidthOf = kVec;
template <>
inline constexpr int kWidthOf<NarrowAdamBody> = NarrowAdamBody::kWidth;

/// Those that take both turns of a thread together where both are whole.
template <typename Body>
concept TakesBoth = requires(Body body) {
  body.run_both(std::int64_t{}, std::int64_t{});
};

template <typename Body>
__device__ __forceinline__ void run_piece(Body body, std::int64_t begin, std::int64_t count) {
  constexpr int kN = kWidthOf<Body>;
  if constexpr (TakesStepScalars<Body>) {
    if (body.c.device_scalars != nullptr) {  // the same for all threads
      const CudaStepScalars device_scalars = *static_cast<const CudaStepScalars*>(body.c.device_scalars);
      if (device_scalars.taken == 0) return;
      body.c.gradient_scale = device_scalars.gradient_scale;
      body.take(device_scalars);
    }
  }
  if constexpr (TakesBoth<Body>) {
    static_assert(kTurns == 2 && kN == kVec);
    const std::int64_t i = begin + threadIdx.x * kN, j = i + kThreads * kN;
    if (j + kN <= count) return body.run_both(i, j);
  }
#pragma unroll
  for (int turn = 0; turn < kPiece / (kThreads * kN); ++turn) {
    const std::int64_t i = begin + (static_cast<std::int64_t>(turn) * kThreads + threadIdx.x) * kN;
    if (i + kN <= count) {
      body.template run<kN>(i);
    } else {
      for (std::int64_t k = i; k < count; ++k) body.template run<1>(k);
    }
  }
}

template <typename Body>
__global__ void __launch_bounds__(kThreads) update_one(const Body body, std::int64_t count) {
  run_piece(body, blockIdx.x * kPiece, count);
}

bool wide(const Stream& s, bool doubles) {
  const int size = doubles ? 8 : s.element == Element::kFloat ? 4 : 2;
  const int align = size * kVec < 16 ? size * kVec : 16;
  return s.data == nullptr || reinterpret_cast<std::uintptr_t>(s.data) % align == 0;
}
bool wide(const UpdateLoop& c) {
  const bool doubles = c.weight.element == Element::kDouble;
  for (const Stream& s : {c.weight, c.gradient, c.low, c.first, c.second, c.update}) {
    if (!wide(s, doubles)) return false;
  }
  return true;
}
/// Which of adam_many's bodies a tensor takes.
enum class AdamKind { kDouble, kFloat, kMaster, kNarrow };
AdamKind kind_of(const CudaAdam& tensor) {
  const UpdateLoop& c = tensor.loop;
  if (c.weight.element == Element::kDouble) return AdamKind::kDouble;
  const auto all = [](Element element, std::initializer_list<Stream> streams) {
    for (const Stream& s : streams) {
      if (s.data == nullptr || s.element != element) return false;
    }
    return true;
  };
  if (all(Element::kFloat, {c.weight, c.first, c.second}) && all(Element::kBfloat16, {c.gradient, c.low})) {
    return AdamKind::kMaster;
  }
  const auto even = [](const Stream& s) { return reinterpret_cast<std::uintptr_t>(s.data) % 16 == 0; };
  const bool narrow = all(Element::kBfloat16, {c.weight, c.gradient, c.first, c.second}) && c.low.data == nullptr &&
                      even(c.weight) && even(c.gradient) && even(c.first) && even(c.second);
  return narrow && tensor.numbers.rounding != 0 ? AdamKind::kNarrow : AdamKind::kFloat;
}

constexpr CudaError kApart = "tensors of an update must begin at whole vectors of four numbers";

template <template <typename> typename Body, typename Numbers>
CudaError update(const UpdateLoop& c, const Numbers& n, std::int64_t count, CudaStream stream) {
  if (count == 0) return nullptr;
  if (!wide(c)) return kApart;
  if (c.device_scalars != nullptr && !TakesStepScalars<Body<float>>)
    return "an update whose norms the host decides on cannot be captured";
  const unsigned grid = static_cast<unsigned>(divided_up(count, kPiece));
  if (c.weight.element == Element::kDouble) {
    update_one<<<grid, kThreads, 0, to_stream(stream)>>>(Body<double>{c, n}, count);
  } else {
    update_one<<<grid, kThreads, 0, to_stream(stream)>>>(Body<float>{c, n}, count);
  }
  return launched();
}

// ---- many tensors in one launch

using AdamTables = Tables<CudaAdam, 15>;
template <typename Body>
__global__ void __launch_bounds__(kThreads) adam_many(const __grid_constant__ AdamTables tables) {
  const int at = tables.find(static_cast<int>(blockIdx.x));
  const CudaAdam& tensor = tables.items[at];
  const Body body{tensor.loop, tensor.numbers};
  run_piece(body, (static_cast<std::int64_t>(blockIdx.x) - tables.first_block[at]) * kPiece, tensor.count);
}

}  // namespace

CudaError sgd(const UpdateLoop& c, const SgdNumbers& n, std::int64_t count, CudaStream stream) {
  return update<SgdBody>(c, n, count, stream);
}
CudaError adagrad(const UpdateLoop& c, const AdagradNumbers& n, std::int64_t count, CudaStream stream) {
  return update<AdagradBody>(c, n, count, stream);
}
CudaError lamb(const UpdateLoop& c, const AdamNumbers& n, std::int64_t count, CudaStream stream) {
  return update<LambBody>(c, n, count, stream);
}
CudaError apply(const UpdateLoop& c, double rate, std::int64_t count, CudaStream stream) {
  return update<ApplyBody>(c, rate, count, stream);
}
CudaError lars(const UpdateLoop& c, const LarsNumbers& n, std::int64_t count, CudaStream stream) {
  return update<LarsBody>(c, n, count, stream);
}

CudaError adam(const CudaAdam* tensors, std::int64_t count, CudaStream stream) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (!wide(tensors[i].loop)) return kApart;
  }
  // One body after the other: small tensors between large ones of another kind must not end a launch.
  for (const AdamKind kind : {AdamKind::kDouble, AdamKind::kFloat, AdamKind::kMaster, AdamKind::kNarrow}) {
    for (std::int64_t next = 0; next < count;) {
      AdamTables tables{};
      std::int64_t blocks = 0;
      for (; next < count && tables.count < 15; ++next) {
        const CudaAdam& tensor = tensors[next];
        if (tensor.count == 0 || kind_of(tensor) != kind) continue;
        tables.items[tables.count] = tensor;
        tables.first_block[tables.count++] = static_cast<std::int32_t>(blocks);
        blocks += divided_up(tensor.count, kPiece);
      }
      if (tables.count == 0) break;
      tables.first_block[tables.count] = static_cast<std::int32_t>(blocks);
      const auto grid = static_cast<unsigned>(blocks);
      if (kind == AdamKind::kDouble) {
        adam_many<AdamBody<double>><<<grid, kThreads, 0, to_stream(stream)>>>(tables);
      } else if (kind == AdamKind::kFloat) {
        adam_many<AdamBody<float>><<<grid, kThreads, 0, to_stream(stream)>>>(tables);
      } else if (kind == AdamKind::kMaster) {
        adam_many<MasterAdamBody><<<grid, kThreads, 0, to_stream(stream)>>>(tables);
      } else {
        adam_many<NarrowAdamBody><<<grid, kThreads, 0, to_stream(stream)>>>(tables);
      }
      if (CudaError error = launched()) return error;
    }
  }
  return nullptr;
}

}  // namespace trireme::kernels::gpu
