// GEMMs of a few rows, out = x W^T: the weight is read once and decides the time.
//
// A block of threads has 16 or 32 rows of W; its warps share out the inner dimension and add up at the end. The weight
// is the tensor cores' left operand and goes from memory into registers, 16 bytes a lane; the rows of x are the right
// one, out of the caches. As in paged_attention.cu lanes take neighbouring numbers of the inner dimension, the same on
// both sides. int8, int4 and e4m3 weights become bf16 on the way, exactly: their scales are applied to the sums, in
// float.
#include "trireme/kernels/cuda_plugin/dependent.cuh"
#include "trireme/kernels/cuda_plugin/inference_functions.h"

namespace trireme::kernels::gpu {
namespace {

using Skinny = CudaSkinnyGemm;
constexpr int kSkinnyWarps = 8;

/// a & mask | set in one instruction.
__device__ __forceinline__ std::uint32_t and_or(std::uint32_t a, std::uint32_t mask, std::uint32_t set) {
  return (a & mask) | set;
}
__device__ __forceinline__ std::uint32_t word_of(const uint4& of, int i) {
  return i == 0 ? of.x : i == 1 ? of.y : i == 2 ? of.z : of.w;
}
/// Bytes 2 i and 2 i + 1 of a word of int8, as bf16.
__device__ __forceinline__ std::uint32_t int8_pair(std::uint32_t biased, int i) {
  // 2^23 + (q + 128) has q + 128 in its last bits.
  const float a = __uint_as_float(__byte_perm(biased, 0x4B000000u, i == 0 ? 0x7650 : 0x7652)) - 8388736.0F;
  const float b = __uint_as_float(__byte_perm(biased, 0x4B000000u, i == 0 ? 0x7651 : 0x7653)) - 8388736.0F;
  return two_words<Bf16>(a, b);
}
/// Bytes 2 i and 2 i + 1 of a word of e4m3, as bf16: its exponent is moved into place and then corrected.
__device__ __forceinline__ std::uint32_t e4m3_pair(std::uint32_t word, int i) {
  const std::uint32_t apart = __byte_perm(word, 0, i == 0 ? 0x1404 : 0x3424);  // to the upper byte of each half
  const std::uint32_t bits = (apart & 0x80008000u) | ((apart >> 4) & 0x07F007F0u);
  const std::uint32_t two120 = 0x7B807B80u;  // 2^120, twice
  const __nv_bfloat162 value =
      __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), *reinterpret_cast<const __nv_bfloat162*>(&two120));
  return *reinterpret_cast<const std::uint32_t*>(&value);
}

/// How a lane's 16 bytes of a weight row become left operands: pairs of numbers in the order in which x is taken.
template <typename T, int kFormat>
struct Weights;

/// Of x's own type: two loads of 16 bytes for 64 numbers of a row.
template <typename T>
struct Weights<T, Skinny::kSame> {
  static constexpr int kChunk = 64, kLoads = 2, kUnroll = 4;
  static constexpr int kPairs = 8;  // of a lane in a chunk
  using Stored = T;
  __device__ static int at(int load, int c) { return 32 * load + 8 * c; }    // in elements
  __device__ static int x_at(int load, int c) { return 32 * load + 8 * c; }  // of the lane's loads of x
  static constexpr int kXLoads = 2;
};
template <typename T>
struct Weights<T, Skinny::kInt8> {
  static constexpr int kChunk = 64, kLoads = 1, kUnroll = 8;
  static constexpr int kPairs = 8;
  using Stored = std::uint8_t;
  __device__ static int at(int, int c) { return 16 * c; }
  __device__ static int x_at(int load, int c) { return 16 * c + 8 * load; }
  static constexpr int kXLoads = 2;
};
template <typename T>
struct Weights<T, Skinny::kE4m3> : Weights<T, Skinny::kInt8> {};
template <typename T>
struct Weights<T, Skinny::kInt4> {
  static constexpr int kChunk = 128, kLoads = 1, kUnroll = 4;
  static constexpr int kPairs = 16;
  using Stored = std::uint8_t;
  __device__ static int at(int, int c) { return 16 * c; }  // in bytes
  __device__ static int x_at(int load, int c) { return 32 * c + 8 * load; }
  static constexpr int kXLoads = 4;
};

/// Pair p of a lane's numbers of a row; `offset`: 128 + zero point, twice, of int4.
template <typename T, int kFormat>
__device__ __forceinline__ std::uint32_t weight_pair(const uint4* loads, int p, std::uint32_t offset) {
  if constexpr (kFormat == Skinny::kSame) {
    return word_of(loads[p / 4], p % 4);
  } else if constexpr (kFormat == Skinny::kInt8) {
    return int8_pair(word_of(loads[0], p / 2) ^ 0x80808080u, p % 2);
  } else if constexpr (kFormat == Skinny::kE4m3) {
    return e4m3_pair(word_of(loads[0], p / 2), p % 2);
  } else {
    // Numbers i and i + 4 of eight: 128 + q in the last bits of a bf16, less 128 + zero.
    const std::uint32_t bits = and_or(word_of(loads[0], p / 4) >> (4 * (p % 4)), 0x000F000Fu, 0x43004300u);
    const __nv_bfloat162 value =
        __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&bits), *reinterpret_cast<const __nv_bfloat162*>(&offset));
    return *reinterpret_cast<const std::uint32_t*>(&value);
  }
}
/// The same pair of x.
template <int kFormat>
__device__ __forceinline__ std::uint32_t input_pair(const uint4* loads, int p) {
  if constexpr (kFormat == Skinny::kInt4) {
    const uint4& eight = loads[p / 4];
    const int i = p % 4;  // numbers i and i + 4
    return __byte_perm(i < 2 ? eight.x : eight.y, i < 2 ? eight.z : eight.w, i % 2 == 0 ? 0x5410 : 0x7632);
  } else {
    return word_of(loads[p / 4], p % 4);
  }
}

template <typename T, int kFormat, int kRowBlocks, int kTiles>
__global__ void __launch_bounds__(32 * kSkinnyWarps, 2) skinny(const Skinny c) {
  using W = Weights<T, kFormat>;
  constexpr int kUnroll = kRowBlocks == 1 ? W::kUnroll : W::kUnroll / 2;
  __shared__ float sums[kSkinnyWarps][16 * kRowBlocks][8 * kTiles + 1];
  const int warp = threadIdx.y, lane = threadIdx.x, g = lane / 4, c4 = lane % 4;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * (16 * kRowBlocks);
  // What is read twice is not written.
  const auto row_at = [&](int b, int h, int g) { return min(first + 16 * b + 8 * h + g, c.n - 1); };
  const int chunks = static_cast<int>((c.k + W::kChunk - 1) / W::kChunk), width = static_cast<int>(c.k);
  using Stored = typename W::Stored;
  const Stored* rows[kRowBlocks][2];
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows[b][h] = static_cast<const Stored*>(c.weight) + row_at(b, h, g) * c.weight_stride;
    }
  }
  const uint4 zero = make_uint4(0, 0, 0, 0);
  constexpr int kPerByte = kFormat == Skinny::kInt4 ? 2 : 1;  // numbers in an element of memory
  uint4 w[kUnroll][kRowBlocks][2][W::kLoads];
  const auto load_weights = [&](int chunk) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int from = (chunk + u * kSkinnyWarps) * (W::kChunk / kPerByte);
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int i = 0; i < W::kLoads; ++i) {
            const int at = from + W::at(i, c4);
            w[u][b][h][i] = at * kPerByte < width ? load_once(rows[b][h] + at) : zero;
          }
        }
      }
    }
  };
  load_weights(warp);
  let_next_start();
  wait_for_previous();  // the weights are nobody's output
  const T* x[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) x[t] = static_cast<const T*>(c.x) + (8 * t + g) * c.x_stride;
  float acc[kRowBlocks][kTiles][4] = {};
  for (int chunk = warp; chunk < chunks; chunk += kSkinnyWarps * kUnroll) {
    if (chunk != warp) load_weights(chunk);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int from = (chunk + u * kSkinnyWarps) * W::kChunk;
      if (from >= width) break;
      uint4 in[kTiles][W::kXLoads];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < W::kXLoads; ++i) {
          const int at = from + W::x_at(i, c4);
          in[t][i] = 8 * t + g < c.m && at < width ? *reinterpret_cast<const uint4*>(x[t] + at) : zero;
        }
      }
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) {
        std::uint32_t offsets[2] = {};
        float scales[2] = {};
        if constexpr (kFormat == Skinny::kInt4) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const std::int64_t at = row_at(b, h, g) * (c.k / c.group) + from / static_cast<int>(c.group);
            const float zero_point = 128.0F + c.zeros[at];
            offsets[h] = two_words<Bf16>(zero_point, zero_point);
            scales[h] = c.scales[at];
          }
        }
        float part[kTiles][4] = {};
#pragma unroll
        for (int p = 0; p < W::kPairs; p += 2) {
          const std::uint32_t a0 = weight_pair<T, kFormat>(w[u][b][0], p, offsets[0]);
          const std::uint32_t a1 = weight_pair<T, kFormat>(w[u][b][1], p, offsets[1]);
          const std::uint32_t a2 = weight_pair<T, kFormat>(w[u][b][0], p + 1, offsets[0]);
          const std::uint32_t a3 = weight_pair<T, kFormat>(w[u][b][1], p + 1, offsets[1]);
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            float(&to)[4] = kFormat == Skinny::kInt4 ? part[t] : acc[b][t];
            mma<T>(to, a0, a1, a2, a3, input_pair<kFormat>(in[t], p), input_pair<kFormat>(in[t], p + 1));
          }
        }
        if constexpr (kFormat == Skinny::kInt4) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[b][t][i] += scales[i / 2] * part[t][i];
          }
        }
      }
    }
  }
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[warp][16 * b + 8 * (i / 2) + g][8 * t + 2 * c4 + i % 2] = acc[b][t][i];
    }
  }
  __syncthreads();
  constexpr int kRows = 16 * kRowBlocks;
  for (int i = warp * 32 + lane; i < kRows * 8 * kTiles; i += 32 * kSkinnyWarps) {
    const std::int64_t n = first + i % kRows, m = i / kRows;
    if (n >= c.n || m >= c.m) continue;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kSkinnyWarps; ++s) sum += sums[s][i % kRows][m];
    if (kFormat == Skinny::kInt8 || kFormat == Skinny::kE4m3) sum *= c.scales[n];
    if (c.bias) sum += widen(static_cast<const T*>(c.bias)[n]);
    if (c.residual) sum += widen(static_cast<const T*>(c.residual)[m * c.residual_stride + n]);
    if (c.float_out) {
      static_cast<float*>(c.out)[m * c.out_stride + n] = sum;
    } else {
      static_cast<T*>(c.out)[m * c.out_stride + n] = narrow<T>(sum);
    }
  }
}

template <typename T, int kFormat>
CudaError run_skinny(const Skinny& c, CudaStream stream) {
  const dim3 threads(32, kSkinnyWarps);
  const auto grid = [&](int rows) { return dim3(static_cast<unsigned>(divided_up(c.n, rows))); };
  if (c.m <= 8) return launch_dependent(skinny<T, kFormat, 1, 1>, grid(16), threads, 0, stream, c);
  return launch_dependent(skinny<T, kFormat, 2, 2>, grid(32), threads, 0, stream, c);
}

}  // namespace

CudaError skinny_gemm(const Skinny& c, CudaStream stream) {
  if (c.m == 0 || c.n == 0) return nullptr;
  if (c.m > Skinny::kMostRows) return "more rows than the kernel for few has";
  if (c.element == Element::kHalf && c.format == Skinny::kSame) return run_skinny<F16, Skinny::kSame>(c, stream);
  if (c.element != Element::kBfloat16) return "the kernel for few rows takes bf16, or fp16 with weights in fp16";
  switch (c.format) {
    case Skinny::kSame:
      return run_skinny<Bf16, Skinny::kSame>(c, stream);
    case Skinny::kInt8:
      return run_skinny<Bf16, Skinny::kInt8>(c, stream);
    case Skinny::kInt4:
      return run_skinny<Bf16, Skinny::kInt4>(c, stream);
    case Skinny::kE4m3:
      return run_skinny<Bf16, Skinny::kE4m3>(c, stream);
  }
  return "a weight format that no kernel has";
}

}  // namespace trireme::kernels::gpu
