// The optimizers' updates, four numbers a thread, and sums of squares.
#include "trireme/kernels/cpu/rounding.h"
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

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

/// With a key, bfloat16s are rounded by chance.
template <int kN, typename A>
__device__ __forceinline__ void write(const Stream& s, std::int64_t i, const A (&from)[kN], std::uint64_t rounding,
                                      int chance) {
  if constexpr (sizeof(A) == 4) {
    if (rounding != 0 && s.element == Element::kBfloat16) {
      A rounded[kN];
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        const std::uint64_t bits = rounding_bits(rounding, static_cast<std::uint64_t>(i + k));
        rounded[k] =
            __uint_as_float(rounded_bits(__float_as_uint(from[k]), static_cast<std::uint32_t>(bits >> chance)));
      }
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
                                             std::uint64_t rounding = 0) {
  write(c.weight, i, w, rounding, kWeightChance);
  if constexpr (sizeof(A) == 4) {
    if (c.low.data != nullptr) write(c.low, i, w);
  }
}

// Each of these updates the numbers [i, i + kN).

template <typename A>
struct SgdBody {
  UpdateLoop c;
  SgdNumbers n;
  __device__ __forceinline__ void take(const CudaLive& live) { n.rate = live.rate; }
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
  __device__ __forceinline__ void take(const CudaLive& live) { n.rate = live.rate; }
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

/// Moves both moments on; g becomes m / (sqrt(v^) + epsilon).
template <int kN, typename A>
__device__ __forceinline__ void adam_direction(const UpdateLoop& c, const AdamNumbers& n, std::int64_t i, A (&g)[kN]) {
  A m[kN], v[kN];
  read(c.first, i, m);
  read(c.second, i, v);
#pragma unroll
  for (int k = 0; k < kN; ++k) {
    m[k] += static_cast<A>(n.take1) * (g[k] - m[k]);
    v[k] += static_cast<A>(n.take2) * (g[k] * g[k] - v[k]);
    g[k] = m[k] / (sqrt(v[k]) * static_cast<A>(n.root) + static_cast<A>(n.epsilon));
  }
  write(c.first, i, m, n.rounding, kFirstChance);
  write(c.second, i, v, n.rounding, kSecondChance);
}

template <typename A>
struct AdamBody {
  UpdateLoop c;
  AdamNumbers n;
  __device__ __forceinline__ void take(const CudaLive& live) {
    n.rate = live.rate;
    n.root = live.root;
    n.weight_decay = live.weight_decay;
  }
  template <int kN>
  __device__ __forceinline__ void run(std::int64_t i) const {
    A g[kN], w[kN];
    read_gradient(c, i, g);
    read(c.weight, i, w);
#pragma unroll
    for (int k = 0; k < kN; ++k) g[k] += static_cast<A>(n.decay) * w[k];
    adam_direction(c, n, i, g);
    // Both parts are added up before they meet the weight, beside which each alone may round to nothing.
#pragma unroll
    for (int k = 0; k < kN; ++k) w[k] -= g[k] * static_cast<A>(n.rate) + static_cast<A>(n.weight_decay) * w[k];
    write_weight(c, i, w, n.rounding);
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
    adam_direction(c, n, i, g);
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

/// Those whose ratios of norms the host decides on are never part of a recorded step.
template <typename Body>
concept TakesLive = requires(Body body, const CudaLive& live) {
  body.take(live);
};

template <typename Body>
__device__ __forceinline__ void run_piece(Body body, std::int64_t begin, std::int64_t count) {
  if constexpr (TakesLive<Body>) {
    if (body.c.live != nullptr) {  // the same for all threads
      const CudaLive live = *static_cast<const CudaLive*>(body.c.live);
      if (live.taken == 0) return;
      body.c.gradient_scale = live.gradient_scale;
      body.take(live);
    }
  }
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const std::int64_t i = begin + (static_cast<std::int64_t>(turn) * kThreads + threadIdx.x) * kVec;
    if (i + kVec <= count) {
      body.template run<kVec>(i);
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
constexpr CudaError kApart = "tensors of an update must begin at whole vectors of four numbers";

template <template <typename> typename Body, typename Numbers>
CudaError update(const UpdateLoop& c, const Numbers& n, std::int64_t count, CudaStream stream) {
  if (count == 0) return nullptr;
  if (!wide(c)) return kApart;
  if (c.live != nullptr && !TakesLive<Body<float>>)
    return "an update whose norms the host decides on cannot be recorded";
  const unsigned grid = static_cast<unsigned>(divided_up(count, kPiece));
  if (c.weight.element == Element::kDouble) {
    update_one<<<grid, kThreads, 0, to_stream(stream)>>>(Body<double>{c, n}, count);
  } else {
    update_one<<<grid, kThreads, 0, to_stream(stream)>>>(Body<float>{c, n}, count);
  }
  return launched();
}

// ---- many tensors in one launch: blocks find their tensor in a table that comes with the launch.

template <typename Item, int kMost>
struct Tables {
  Item items[kMost];
  std::int32_t first_block[kMost + 1];
  std::int32_t count;

  /// The tensor that block number `block` works on.
  __device__ __forceinline__ int find(int block) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_block[middle] <= block) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

using AdamTables = Tables<CudaAdam, 15>;
template <typename A>
__global__ void __launch_bounds__(kThreads) adam_many(const __grid_constant__ AdamTables tables) {
  const int at = tables.find(static_cast<int>(blockIdx.x));
  const CudaAdam& tensor = tables.items[at];
  const AdamBody<A> body{tensor.loop, tensor.numbers};
  run_piece(body, (static_cast<std::int64_t>(blockIdx.x) - tables.first_block[at]) * kPiece, tensor.count);
}

using SquaresTables = Tables<CudaSquares, 100>;
__global__ void __launch_bounds__(kThreads)
    squares_many(const __grid_constant__ SquaresTables tables, double* partial) {
  const int at = tables.find(static_cast<int>(blockIdx.x));
  const CudaSquares& tensor = tables.items[at];
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - tables.first_block[at]) * kCudaSquaresPiece;
  const std::int64_t end = min(begin + kCudaSquaresPiece, tensor.count);
  double total = 0;
  if (tensor.numbers.element == Element::kDouble) {
    const double* x = static_cast<const double*>(tensor.numbers.data);
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) total += x[i] * x[i];
  } else {
    // A thread's vector is squared and added up in float, four numbers; their sum in double.
#pragma unroll 4
    for (std::int64_t i = begin + threadIdx.x * kVec; i < end; i += kThreads * kVec) {
      float v[kVec] = {};
      if (i + kVec <= end) {
        read(tensor.numbers, i, v);
      } else {
        for (int k = 0; k < end - i; ++k) {
          float one[1];
          read(tensor.numbers, i + k, one);
          v[k] = one[0];
        }
      }
#pragma unroll
      for (int k = 0; k < kVec; ++k) total += static_cast<double>(v[k]) * static_cast<double>(v[k]);
    }
  }
  total = sum_over<kThreads>(total);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    squares_add(const __grid_constant__ SquaresTables tables, const double* partial, double* sums) {
  double total = 0;
  for (int i = tables.first_block[blockIdx.x] + threadIdx.x; i < tables.first_block[blockIdx.x + 1]; i += kThreads) {
    total += partial[i];
  }
  total = sum_over<kThreads>(total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
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
  for (std::int64_t begin = 0; begin < count;) {
    AdamTables tables{};
    const bool doubles = tensors[begin].loop.weight.element == Element::kDouble;
    std::int64_t blocks = 0;
    while (begin < count && tables.count < 15) {
      const CudaAdam& tensor = tensors[begin];
      if ((tensor.loop.weight.element == Element::kDouble) != doubles) break;
      if (!wide(tensor.loop)) return kApart;
      ++begin;
      if (tensor.count == 0) continue;
      tables.items[tables.count] = tensor;
      tables.first_block[tables.count++] = static_cast<std::int32_t>(blocks);
      blocks += divided_up(tensor.count, kPiece);
    }
    if (tables.count == 0) continue;
    tables.first_block[tables.count] = static_cast<std::int32_t>(blocks);
    if (doubles) {
      adam_many<double><<<static_cast<unsigned>(blocks), kThreads, 0, to_stream(stream)>>>(tables);
    } else {
      adam_many<float><<<static_cast<unsigned>(blocks), kThreads, 0, to_stream(stream)>>>(tables);
    }
    if (CudaError error = launched()) return error;
  }
  return nullptr;
}

CudaError squares(const CudaSquares* tensors, std::int64_t count, double* partial, double* sums, CudaStream stream) {
  for (std::int64_t begin = 0; begin < count;) {
    SquaresTables tables{};
    const std::int64_t first = begin;
    std::int64_t blocks = 0;
    for (; begin < count && tables.count < 100; ++begin) {
      if (!wide(tensors[begin].numbers, tensors[begin].numbers.element == Element::kDouble)) return kApart;
      tables.items[tables.count] = tensors[begin];
      tables.first_block[tables.count++] = static_cast<std::int32_t>(blocks);
      blocks += divided_up(tensors[begin].count, kCudaSquaresPiece);
    }
    tables.first_block[tables.count] = static_cast<std::int32_t>(blocks);
    if (blocks > 0) squares_many<<<static_cast<unsigned>(blocks), kThreads, 0, to_stream(stream)>>>(tables, partial);
    squares_add<<<static_cast<unsigned>(tables.count), kThreads, 0, to_stream(stream)>>>(tables, partial, sums + first);
    if (CudaError error = launched()) return error;
    partial += blocks;
  }
  return nullptr;
}

}  // namespace trireme::kernels::gpu
