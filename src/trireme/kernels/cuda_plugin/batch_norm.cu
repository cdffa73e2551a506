// Batch norm of images channels last. A thread owns 16 bytes of channels and walks down rows; sums over rows go through
// blocks' partial sums. The pass that reads what another has just written begins where that one ended: in the cache.
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/image_functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256, kAhead = 4, kFinalLanes = 32, kFinalSteps = 32;

/// How threads lie over an image: `lanes` vectors of channels side by side, the rest down the rows.
struct Walk {
  int lanes = 1, steps = 1;
  dim3 grid;
  std::int64_t rows_of_block = 0;
};
Walk walk_over(const CudaImageShape& shape, int vec) {
  Walk walk;
  const std::int64_t vectors = shape.channels / vec;
  while (walk.lanes < 32 && vectors % (2 * walk.lanes) == 0) walk.lanes *= 2;
  walk.steps = kThreads / walk.lanes;
  const std::int64_t tiles = vectors / walk.lanes;
  const std::int64_t most = tiles < kCudaImageBlocks ? kCudaImageBlocks / tiles : 1;
  std::int64_t blocks = divided_up(shape.rows, walk.steps * kAhead);
  if (blocks > most) blocks = most;
  if (blocks < 1) blocks = 1;
  walk.rows_of_block = divided_up(shape.rows, blocks);
  walk.grid = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(divided_up(shape.rows, walk.rows_of_block)));
  return walk;
}

/// The rows and channels of a thread.
struct Here {
  std::int64_t column, begin, end;
  int step, steps;
  template <int kVec>
  __device__ __forceinline__ static Here of(const CudaImageShape& shape, int lanes, std::int64_t rows_of_block,
                                            bool reversed) {
    const int lane = static_cast<int>(threadIdx.x) % lanes, step = static_cast<int>(threadIdx.x) / lanes;
    const std::int64_t block = reversed ? gridDim.y - 1 - blockIdx.y : blockIdx.y;
    const std::int64_t first = block * rows_of_block, last = first + rows_of_block;
    return {(static_cast<std::int64_t>(blockIdx.x) * lanes + lane) * kVec, first + step,
            last < shape.rows ? last : shape.rows, step, kThreads / lanes};
  }
};

/// Adds up two sums of every channel over the threads of a block, and leaves them in `partial`.
template <int kVec>
__device__ __forceinline__ void leave_sums(const float (&a)[kVec], const float (&b)[kVec], const Here& here, int lanes,
                                           std::int64_t channels, float* partial) {
  __shared__ float room[2][kThreads * kVec];
  const int lane = static_cast<int>(threadIdx.x) % lanes, width = lanes * kVec;
#pragma unroll
  for (int k = 0; k < kVec; ++k) {
    room[0][here.step * width + lane * kVec + k] = a[k];
    room[1][here.step * width + lane * kVec + k] = b[k];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * width; i += kThreads) {
    const int which = i / width, channel = i % width;
    float sum = 0;
    for (int step = 0; step < here.steps; ++step) sum += room[which][step * width + channel];
    partial[(static_cast<std::int64_t>(which) * gridDim.y + blockIdx.y) * channels +
            static_cast<std::int64_t>(blockIdx.x) * width + channel] = sum;
  }
}

/// Sums relative to the first row: squares of numbers far from zero would lose theirs.
template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(const T* x, float* partial, const CudaImageShape shape, int lanes, std::int64_t rows_of_block) {
  const Here here = Here::of<kVec>(shape, lanes, rows_of_block, false);
  float pivot[kVec], sum[kVec] = {}, squares[kVec] = {};
  load<kVec>(x + here.column, pivot);
  for (std::int64_t row = here.begin; row < here.end; row += kAhead * here.steps) {
    Raw<T, kVec> held[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t at = row + i * here.steps;
      if (at < here.end) held[i] = load_raw<kVec>(x + at * shape.channels + here.column);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (row + i * here.steps >= here.end) continue;
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const float d = held[i][k] - pivot[k];
        sum[k] += d;
        squares[k] = fmaf(d, d, squares[k]);
      }
    }
  }
  leave_sums<kVec>(sum, squares, here, lanes, shape.channels, partial);
}

/// use(channel, sums over blocks): a warp a channel.
template <typename Use>
__device__ __forceinline__ void final_sums(const float* partial, std::int64_t blocks, std::int64_t channels,
                                           const Use& use) {
  __shared__ double parts[2][kFinalSteps][kFinalLanes + 1];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kFinalLanes + threadIdx.x;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    double total = 0;
    if (column < channels) {
#pragma unroll 4
      for (std::int64_t block = threadIdx.y; block < blocks; block += kFinalSteps)
        total += partial[(which * blocks + block) * channels + column];
    }
    parts[which][threadIdx.y][threadIdx.x] = total;
  }
  __syncthreads();
  const std::int64_t mine = static_cast<std::int64_t>(blockIdx.x) * kFinalLanes + threadIdx.y;
  const double first = warp_sum(parts[0][threadIdx.x][threadIdx.y]),
               second = warp_sum(parts[1][threadIdx.x][threadIdx.y]);
  if (threadIdx.x == 0 && mine < channels) use(mine, first, second);
}

template <typename T>
__global__ void __launch_bounds__(kFinalLanes* kFinalSteps)
    statistics_end(const CudaBatchNormStatistics c, const CudaImageShape shape, std::int64_t blocks) {
  final_sums(c.partial, blocks, shape.channels, [&](std::int64_t channel, double sum, double squares) {
    const double rows = static_cast<double>(shape.rows), off = sum / rows;
    const double variance = squares / rows - off * off;
    c.mean[channel] = static_cast<float>(off + static_cast<double>(widen(static_cast<const T*>(c.x)[channel])));
    c.rstd[channel] = static_cast<float>(rsqrt((variance > 0 ? variance : 0) + c.epsilon));
  });
}

/// norm = a x + b, in this very form wherever its sign is asked for.
template <typename T, int kVec>
struct Affine {
  float a[kVec], b[kVec];
  __device__ __forceinline__ Affine(const CudaBatchNorm& norm, std::int64_t column) {
    float scale[kVec], shift[kVec], mean[kVec], rstd[kVec];
    load<kVec>(static_cast<const T*>(norm.scale) + column, scale);
    load<kVec>(static_cast<const T*>(norm.shift) + column, shift);
    load_floats(norm.mean + column, mean);
    load_floats(norm.rstd + column, rstd);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      a[k] = scale[k] * rstd[k];
      b[k] = fmaf(-mean[k], a[k], shift[k]);
    }
  }
  __device__ __forceinline__ static void load_floats(const float* from, float (&to)[kVec]) {
#pragma unroll
    for (int k = 0; k < kVec; ++k) to[k] = from[k];
  }
  __device__ __forceinline__ float of(float x, int k) const { return fmaf(x, a[k], b[k]); }
};

enum class Beside { kNothing, kTensor, kNorm };

template <typename T, int kVec, Beside kBeside>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(const CudaBatchNormApply c, const CudaImageShape shape, int lanes, std::int64_t rows_of_block) {
  const Here here = Here::of<kVec>(shape, lanes, rows_of_block, true);
  const Affine<T, kVec> norm(c.norm, here.column);
  const Affine<T, kVec> other(kBeside == Beside::kNorm ? c.other : c.norm, here.column);
  const T* x = static_cast<const T*>(c.norm.x) + here.column;
  const T* beside = static_cast<const T*>(kBeside == Beside::kNorm ? c.other.x : c.add) + here.column;
  for (std::int64_t row = here.begin; row < here.end; row += kAhead * here.steps) {
    Raw<T, kVec> held[kAhead], more[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t at = row + i * here.steps;
      if (at >= here.end) continue;
      held[i] = load_raw<kVec>(x + at * shape.channels);
      if constexpr (kBeside != Beside::kNothing) more[i] = load_raw<kVec>(beside + at * shape.channels);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t at = row + i * here.steps;
      if (at >= here.end) continue;
      float y[kVec];
      unsigned bits = 0;
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        y[k] = norm.of(held[i][k], k);
        if constexpr (kBeside == Beside::kTensor) y[k] += more[i][k];
        if constexpr (kBeside == Beside::kNorm) y[k] += other.of(more[i][k], k);
        bits |= (y[k] > 0 ? 1u : 0u) << k;
        if (c.relu) y[k] = y[k] < 0 ? 0.F : y[k];  // NaN stays
      }
      store<kVec>(static_cast<T*>(c.y) + at * shape.channels + here.column, y);
      if (c.positive != nullptr)
        c.positive[(at * shape.channels + here.column) / kVec] = static_cast<std::uint8_t>(bits);
    }
  }
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads)
    sums_kernel(const CudaBatchNormSums c, const CudaImageShape shape, int lanes, std::int64_t rows_of_block) {
  const Here here = Here::of<kVec>(shape, lanes, rows_of_block, false);
  const Affine<T, kVec> norm(c.norm, here.column);
  float mean[kVec], rstd[kVec], sum[kVec] = {}, products[kVec] = {};
  norm.load_floats(c.norm.mean + here.column, mean);
  norm.load_floats(c.norm.rstd + here.column, rstd);
  const T *x = static_cast<const T*>(c.norm.x) + here.column, *dy = static_cast<const T*>(c.dy) + here.column,
          *more = static_cast<const T*>(c.more) + here.column;
  for (std::int64_t row = here.begin; row < here.end; row += kAhead * here.steps) {
    Raw<T, kVec> held[kAhead], of_y[kAhead], second[kAhead];
    unsigned bits[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t at = row + i * here.steps;
      if (at >= here.end) continue;
      held[i] = load_raw<kVec>(x + at * shape.channels);
      of_y[i] = load_raw<kVec>(dy + at * shape.channels);
      if (c.more != nullptr) second[i] = load_raw<kVec>(more + at * shape.channels);
      bits[i] = c.positive != nullptr ? c.positive[(at * shape.channels + here.column) / kVec] : ~0u;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t at = row + i * here.steps;
      if (at >= here.end) continue;
      float g[kVec];
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        g[k] = of_y[i][k];
        if (c.more != nullptr) g[k] += second[i][k];
        const bool passes = (bits[i] >> k & 1u) != 0 && !(c.relu_of_norm && norm.of(held[i][k], k) <= 0);
        g[k] = passes ? g[k] : 0.F;
        sum[k] += g[k];
        products[k] = fmaf(g[k], (held[i][k] - mean[k]) * rstd[k], products[k]);
      }
      if (c.g != nullptr) store<kVec>(static_cast<T*>(c.g) + at * shape.channels + here.column, g);
    }
  }
  leave_sums<kVec>(sum, products, here, lanes, shape.channels, c.partial);
}

template <typename T>
__global__ void __launch_bounds__(kFinalLanes* kFinalSteps)
    sums_end(const CudaBatchNormSums c, const CudaImageShape shape, std::int64_t blocks) {
  final_sums(c.partial, blocks, shape.channels, [&](std::int64_t channel, double sum, double products) {
    c.sums[channel] = static_cast<float>(sum);
    c.sums[shape.channels + channel] = static_cast<float>(products);
    if (c.dshift != nullptr) static_cast<T*>(c.dshift)[channel] = narrow<T>(static_cast<float>(sum));
    if (c.dscale != nullptr) static_cast<T*>(c.dscale)[channel] = narrow<T>(static_cast<float>(products));
  });
}

/// dx = a g + by_x x + by_one.
template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(const CudaBatchNormGradient c, const CudaImageShape shape, int lanes, std::int64_t rows_of_block) {
  const Here here = Here::of<kVec>(shape, lanes, rows_of_block, true);
  const Affine<T, kVec> norm(c.norm, here.column);
  float by_x[kVec], by_one[kVec];
  {
    float mean[kVec], rstd[kVec], sum[kVec], products[kVec];
    norm.load_floats(c.norm.mean + here.column, mean);
    norm.load_floats(c.norm.rstd + here.column, rstd);
    norm.load_floats(c.sums + here.column, sum);
    norm.load_floats(c.sums + shape.channels + here.column, products);
    const float each = 1.F / static_cast<float>(shape.rows);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      by_x[k] = -norm.a[k] * rstd[k] * products[k] * each;
      by_one[k] = fmaf(-by_x[k], mean[k], -norm.a[k] * sum[k] * each);
    }
  }
  const T *x = static_cast<const T*>(c.norm.x) + here.column, *dy = static_cast<const T*>(c.dy) + here.column;
  for (std::int64_t row = here.begin; row < here.end; row += kAhead * here.steps) {
    Raw<T, kVec> held[kAhead], of_y[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t at = row + i * here.steps;
      if (at >= here.end) continue;
      held[i] = load_raw<kVec>(x + at * shape.channels);
      of_y[i] = load_raw<kVec>(dy + at * shape.channels);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t at = row + i * here.steps;
      if (at >= here.end) continue;
      float dx[kVec];
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const float g = c.relu_of_norm && norm.of(held[i][k], k) <= 0 ? 0.F : of_y[i][k];
        dx[k] = fmaf(norm.a[k], g, fmaf(by_x[k], held[i][k], by_one[k]));
      }
      store<kVec>(static_cast<T*>(c.dx) + at * shape.channels + here.column, dx);
    }
  }
}

/// body(type) of the image's element; double has no kernel.
template <typename Body>
CudaError by_image_type(const CudaImageShape& shape, const Body& body) {
  return by_type(shape.element, [&](auto type) -> CudaError {
    using T = decltype(type);
    if constexpr (sizeof(T) == 8) {
      return "images of double have no kernel";
    } else {
      if (shape.channels % kWide<T> != 0) return "channels must come in whole steps of 16 bytes";
      if (shape.rows == 0) return nullptr;
      return body(type);
    }
  });
}

dim3 final_grid(const CudaImageShape& shape) {
  return dim3(static_cast<unsigned>(divided_up(shape.channels, kFinalLanes)));
}
constexpr dim3 kFinalBlock(kFinalLanes, kFinalSteps);

}  // namespace

CudaError batch_norm_statistics(const CudaBatchNormStatistics& c, const CudaImageShape& shape, CudaStream stream) {
  return by_image_type(shape, [&](auto type) {
    using T = decltype(type);
    const Walk walk = walk_over(shape, kWide<T>);
    statistics_kernel<T, kWide<T>><<<walk.grid, kThreads, 0, to_stream(stream)>>>(
        static_cast<const T*>(c.x), c.partial, shape, walk.lanes, walk.rows_of_block);
    statistics_end<T><<<final_grid(shape), kFinalBlock, 0, to_stream(stream)>>>(c, shape, walk.grid.y);
    return launched();
  });
}

CudaError batch_norm_apply(const CudaBatchNormApply& c, const CudaImageShape& shape, CudaStream stream) {
  return by_image_type(shape, [&](auto type) {
    using T = decltype(type);
    const Walk walk = walk_over(shape, kWide<T>);
    const auto launch = [&](auto kernel) {
      kernel<<<walk.grid, kThreads, 0, to_stream(stream)>>>(c, shape, walk.lanes, walk.rows_of_block);
    };
    if (c.other.x != nullptr) {
      launch(apply_kernel<T, kWide<T>, Beside::kNorm>);
    } else if (c.add != nullptr) {
      launch(apply_kernel<T, kWide<T>, Beside::kTensor>);
    } else {
      launch(apply_kernel<T, kWide<T>, Beside::kNothing>);
    }
    return launched();
  });
}

CudaError batch_norm_sums(const CudaBatchNormSums& c, const CudaImageShape& shape, CudaStream stream) {
  return by_image_type(shape, [&](auto type) {
    using T = decltype(type);
    const Walk walk = walk_over(shape, kWide<T>);
    sums_kernel<T, kWide<T>><<<walk.grid, kThreads, 0, to_stream(stream)>>>(c, shape, walk.lanes, walk.rows_of_block);
    sums_end<T><<<final_grid(shape), kFinalBlock, 0, to_stream(stream)>>>(c, shape, walk.grid.y);
    return launched();
  });
}

CudaError batch_norm_gradient(const CudaBatchNormGradient& c, const CudaImageShape& shape, CudaStream stream) {
  return by_image_type(shape, [&](auto type) {
    using T = decltype(type);
    const Walk walk = walk_over(shape, kWide<T>);
    gradient_kernel<T, kWide<T>>
        <<<walk.grid, kThreads, 0, to_stream(stream)>>>(c, shape, walk.lanes, walk.rows_of_block);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
