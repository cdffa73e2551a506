// kernels/cuda_plugin/stream_gemm.cuh -- GEMMs of few rows, out = x W^T, as a stream of weights: decode.
//
// Thread blocks stay for the whole GEMM. Each has tiles of 16 rows of W, of which its warps take pieces of the inner
// dimension in turn: 128 bytes of each row, copied into a ring in shared memory that is the lane's own (cp.async), so
// that kDepth pieces a warp are under way all the time and nothing in the loop waits for another warp. The ring is
// filled before the kernel in front has ended (dependent.cuh). Rows of x lie in shared memory in the order in which
// lanes ask for them; on the way there they are normalised where the caller wants that. W is the tensor cores' left
// operand; int8, int4 and e4m3 become bf16 in registers, exactly, and scales are applied to sums in float. Where x is
// too large, or tiles are too few, a cluster of thread blocks shares out the inner dimension and adds up through
// distributed shared memory. Sums are made in one order whatever the timing.
#pragma once

#include <cooperative_groups.h>

#include "trireme/kernels/cuda_plugin/dependent.cuh"
#include "trireme/kernels/cuda_plugin/inference_functions.h"

namespace trireme::kernels::gpu {

using Skinny = CudaSkinnyGemm;
constexpr int kStreamWarps = 8, kStreamThreads = 32 * kStreamWarps;
constexpr int kPieceBytes = 128;              // of a row of W
constexpr int kWarpPiece = 16 * kPieceBytes;  // of a tile's 16 rows
constexpr int kScaleBytes = 2 * 8 * 16;       // int4: two groups, 16 scales and zero points each

/// Numbers of a row in a piece, and 16-byte vectors of x that a lane asks for in one.
template <int kFormat>
struct Piece {
  static constexpr int kNumbers = kFormat == Skinny::kSame ? 64 : kFormat == Skinny::kInt4 ? 256 : 128;
  static constexpr int kUnits = kNumbers / 32;
  static constexpr int kSlot = kWarpPiece + (kFormat == Skinny::kInt4 ? kScaleBytes : 0);
};

__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_4(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
__device__ __forceinline__ uint4 shared_16(std::uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ float4 shared_floats(std::uint32_t from) {
  const uint4 v = shared_16(from);
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

__device__ __forceinline__ std::uint32_t subtract_pairs(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 value =
      __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&value);
}
/// Bytes 0 and 2 of a word of int8, as bf16: 128 + the lower seven bits, less 128 or 256.
__device__ __forceinline__ std::uint32_t int8_even(std::uint32_t word) {
  return subtract_pairs((word & 0x007F007Fu) | 0x43004300u, (word & 0x00800080u) | 0x43004300u);
}
/// Bytes 0 and 2 of a word of e4m3, moved to the upper byte of each half, as bf16: the exponent is moved into place
/// and then corrected.
__device__ __forceinline__ std::uint32_t e4m3_upper(std::uint32_t word) {
  const std::uint32_t bits = (word & 0x80008000u) | ((word >> 4) & 0x07F007F0u), two120 = 0x7B807B80u;
  const __nv_bfloat162 value =
      __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), *reinterpret_cast<const __nv_bfloat162*>(&two120));
  return *reinterpret_cast<const std::uint32_t*>(&value);
}
/// Pairs 2 i and 2 i + 1 of the numbers in one 32-bit word (kSame: in two words).
struct Pairs {
  std::uint32_t a, b;
};
template <int kFormat>
__device__ __forceinline__ Pairs pairs_of_word(std::uint32_t word) {
  if constexpr (kFormat == Skinny::kInt8) return {int8_even(word), int8_even(word >> 8)};
  return {e4m3_upper(word << 8), e4m3_upper(word)};
}
/// 128 + q of nibbles i and i + 4.
__device__ __forceinline__ std::uint32_t nibbles(std::uint32_t word, int i) {
  return ((word >> (4 * i)) & 0x000F000Fu) | 0x43004300u;
}
__device__ __forceinline__ std::uint32_t word_of(const uint4& of, int i) {
  return i == 0 ? of.x : i == 1 ? of.y : i == 2 ? of.z : of.w;
}

/// Where vector v (of 8 numbers of a row of x) goes, in vectors: four lanes' vectors of one request side by side.
template <int kFormat>
__device__ __forceinline__ int place_of(int v) {
  if constexpr (kFormat == Skinny::kSame) return v;
  if constexpr (kFormat == Skinny::kInt4) return (v & ~15) | ((v & 3) << 2) | ((v & 15) >> 2);
  return (v & ~7) | ((v & 1) << 2) | ((v & 7) >> 1);
}
/// The order of 8 numbers in which codes become pairs.
template <int kFormat>
__device__ __forceinline__ uint4 ordered(const uint4& x) {
  if constexpr (kFormat == Skinny::kSame) return x;
  if constexpr (kFormat == Skinny::kInt4) {
    return make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632), __byte_perm(x.y, x.w, 0x5410),
                      __byte_perm(x.y, x.w, 0x7632));
  }
  return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x5410),
                    __byte_perm(x.z, x.w, 0x7632));
}

/// One GEMM, laid out over thread blocks and their shared memory.
struct StreamLayout {
  int tiles = 0;   // of 16 rows of W
  int slices = 1;  // thread blocks of a cluster, which share out the inner dimension
  int clusters = 0;
  int slice = 0;    // numbers of a row in a slice
  int x_pitch = 0;  // bytes
  int x_at = 0, sums_at = 0, group_sums_at = 0, kept_at = 0, bytes = 0;
};

template <typename T, int kFormat, int kTiles, int kDepth>
__global__ void __launch_bounds__(kStreamThreads, 2) stream_gemm_kernel(const Skinny c, const StreamLayout layout) {
  using P = Piece<kFormat>;
  constexpr int kColumns = 8 * kTiles, kTileSums = 16 * kColumns;
  extern __shared__ __align__(128) std::uint8_t shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c4 = lane % 4;
  const int rank = blockIdx.x % layout.slices, cluster = blockIdx.x / layout.slices;
  const int first_tile = static_cast<int>(static_cast<std::int64_t>(layout.tiles) * cluster / layout.clusters);
  const int end_tile = static_cast<int>(static_cast<std::int64_t>(layout.tiles) * (cluster + 1) / layout.clusters);
  const int pieces = layout.slice / P::kNumbers, total = (end_tile - first_tile) * pieces;
  const std::int64_t row_bytes = kFormat == Skinny::kSame ? 2 * c.weight_stride : c.weight_stride;
  const std::int64_t up = (c.gated ? c.n / 2 : 8) * row_bytes, tile_step = (c.gated ? 8 : 16) * row_bytes;

  const std::uint32_t ring = shared_address(shared) + warp * kDepth * P::kSlot;
  const std::uint8_t* from = static_cast<const std::uint8_t*>(c.weight) +
                             static_cast<std::int64_t>(first_tile) * tile_step + g * row_bytes +
                             static_cast<std::int64_t>(rank) * pieces * kPieceBytes + 16 * c4;
  int loading = warp, load_piece = warp % pieces, load_tile = first_tile + warp / pieces, load_slot = 0;
  from += static_cast<std::int64_t>(warp / pieces) * tile_step;
  const int group = static_cast<int>(c.group), groups = kFormat == Skinny::kInt4 ? static_cast<int>(c.k) / group : 0;
  const auto load = [&] {
    if (loading < total) {
      const std::uint32_t to = ring + load_slot * P::kSlot + 16 * lane;
      const std::uint8_t* at = from + load_piece * kPieceBytes;
      copy_16(to, at);
      copy_16(to + 512, at + up);
      copy_16(to + 1024, at + 64);
      copy_16(to + 1536, at + 64 + up);
      if constexpr (kFormat == Skinny::kInt4) {
        const std::int64_t row = c.gated ? 8 * load_tile + g + (c4 % 2) * (c.n / 2) : 16 * load_tile + g + 8 * (c4 % 2);
        const float* of = (c4 < 2 ? c.scales : c.zeros) + row * groups;
        const int number = rank * layout.slice + load_piece * P::kNumbers;
        const std::uint32_t scale_to = ring + load_slot * P::kSlot + kWarpPiece + 4 * lane;
        copy_4(scale_to, of + number / group);
        copy_4(scale_to + 128, of + (number + 128) / group);
      }
      loading += kStreamWarps;
      load_piece += kStreamWarps;
      while (load_piece >= pieces) {
        load_piece -= pieces;
        ++load_tile;
        from += tile_step;
      }
      load_slot = load_slot + 1 == kDepth ? 0 : load_slot + 1;
    }
    end_copies();
  };
#pragma unroll
  for (int i = 0; i < kDepth; ++i) load();
  let_next_start();
  wait_for_previous();  // weights are nobody's output

  // Rows of x, normalised where that is asked for.
  std::uint8_t* const x_rows = shared + layout.x_at;
  float* const sums = reinterpret_cast<float*>(shared + layout.sums_at);  // [2][warps][16][columns]
  const int vectors = layout.slice / 8;
  const auto x_at = [&](int row) { return static_cast<const T*>(c.x) + row * c.x_stride; };
  if (c.norm_weight) {
    float* const parts = sums;
    for (int row = 0; row < c.m; ++row) {
      float squares = 0;
      for (int v = threadIdx.x; v < static_cast<int>(c.k) / 8; v += kStreamThreads) {
        const auto eight = load_raw<8>(x_at(row) + 8 * v);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float value = widen(eight[i]);
          squares += value * value;
        }
      }
      squares = warp_sum(squares);
      if (lane == 0) parts[row * kStreamWarps + warp] = squares;
    }
    __syncthreads();
  }
  for (int row = 0; row < c.m; ++row) {
    float scale = 1;
    if (c.norm_weight) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kStreamWarps; ++i) squares += sums[row * kStreamWarps + i];
      scale = rsqrtf(squares / static_cast<float>(c.k) + c.norm_eps);
    }
    for (int v = threadIdx.x; v < vectors; v += kStreamThreads) {
      const int number = rank * layout.slice + 8 * v;
      uint4 eight = *reinterpret_cast<const uint4*>(x_at(row) + number);
      if (c.norm_weight) {
        const auto x = load_raw<8>(x_at(row) + number),
                   weight = load_raw<8>(static_cast<const T*>(c.norm_weight) + number);
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = widen(x[i]) * scale * widen(weight[i]);
        eight = make_uint4(two_words<T>(y[0], y[1]), two_words<T>(y[2], y[3]), two_words<T>(y[4], y[5]),
                           two_words<T>(y[6], y[7]));
      }
      *reinterpret_cast<uint4*>(x_rows + row * layout.x_pitch + 16 * place_of<kFormat>(v)) = ordered<kFormat>(eight);
    }
  }
  __syncthreads();
  float* const group_sums = reinterpret_cast<float*>(shared + layout.group_sums_at);  // [slice / 128][columns]
  if constexpr (kFormat == Skinny::kInt4) {
    // Sums of x over 128 numbers: what 128 + zero point multiplies.
    const int spans = layout.slice / 128;
    for (int i = warp; i < spans * c.m; i += kStreamWarps) {
      const int row = i % static_cast<int>(c.m), span = i / static_cast<int>(c.m);
      const uint2 four = *reinterpret_cast<const uint2*>(x_rows + row * layout.x_pitch + 256 * span + 8 * lane);
      const auto lower = [](std::uint32_t two) { return __uint_as_float(two << 16); };
      const auto upper = [](std::uint32_t two) { return __uint_as_float(two & 0xFFFF0000u); };
      const float sum = warp_sum(lower(four.x) + upper(four.x) + lower(four.y) + upper(four.y));
      if (lane == 0) group_sums[span * kColumns + row] = sum;
    }
    __syncthreads();
  }

  std::uint32_t x_from[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    // Columns that no row of x stands for take another's, and nobody looks at them.
    x_from[t] = shared_address(x_rows) + min(8 * t + g, static_cast<int>(c.m) - 1) * layout.x_pitch + 16 * c4;
  }
  float* const kept = reinterpret_cast<float*>(shared + layout.kept_at);  // [tiles of the cluster][16][columns]
  const auto store = [&](std::int64_t n, int m, float sum, float sum_up) {
    if (c.gated) {
      if (kFormat == Skinny::kInt8 || kFormat == Skinny::kE4m3) sum *= c.scales[n], sum_up *= c.scales[n + c.n / 2];
      // As the kernel that does it alone: the GEMM's rows are rounded before.
      sum = widen(narrow<T>(sum)), sum_up = widen(narrow<T>(sum_up));
      sum = sum / (1 + __expf(-sum)) * sum_up;
    } else {
      if (kFormat == Skinny::kInt8 || kFormat == Skinny::kE4m3) sum *= c.scales[n];
      if (c.bias) sum += widen(static_cast<const T*>(c.bias)[n]);
      if (c.residual) sum += widen(static_cast<const T*>(c.residual)[m * c.residual_stride + n]);
    }
    if (c.float_out) {
      static_cast<float*>(c.out)[m * c.out_stride + n] = sum;
    } else {
      static_cast<T*>(c.out)[m * c.out_stride + n] = narrow<T>(sum);
    }
  };
  const int tile_rows = c.gated ? 8 : 16;
  float acc[kTiles][4] = {};
  int tile = first_tile;
  const auto end_tile_sums = [&] {
    float* const mine = sums + ((tile & 1) * kStreamWarps + warp) * kTileSums;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        mine[(8 * (i / 2) + g) * kColumns + 8 * t + 2 * c4 + i % 2] = acc[t][i];
        acc[t][i] = 0;
      }
    }
    __syncthreads();  // the other half of `sums` is free again when all have come here
    const float* const all = sums + (tile & 1) * kStreamWarps * kTileSums;
    const auto sum_of = [&](int row, int m) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kStreamWarps; ++w) sum += all[w * kTileSums + row * kColumns + m];
      return sum;
    };
    if (layout.slices > 1) {
      for (int i = threadIdx.x; i < 16 * static_cast<int>(c.m); i += kStreamThreads) {
        kept[(tile - first_tile) * kTileSums + i % 16 * kColumns + i / 16] = sum_of(i % 16, i / 16);
      }
    } else {
      for (int i = threadIdx.x; i < tile_rows * static_cast<int>(c.m); i += kStreamThreads) {
        const int row = i % tile_rows, m = i / tile_rows;
        store(static_cast<std::int64_t>(tile) * tile_rows + row, m, sum_of(row, m),
              c.gated ? sum_of(row + 8, m) : 0.0F);
      }
    }
    ++tile;
  };

  int piece = warp, slot = 0;
  for (int i = warp; i < total; i += kStreamWarps) {
    while (piece >= pieces) {
      piece -= pieces;
      end_tile_sums();
    }
    wait_copies<kDepth - 1>();
    const std::uint32_t at = ring + slot * P::kSlot;
    uint4 w[2][2];  // [64 bytes][rows g, rows g + 8]
#pragma unroll
    for (int l = 0; l < 2; ++l) {
#pragma unroll
      for (int h = 0; h < 2; ++h) w[l][h] = shared_16(at + 1024 * l + 512 * h + 16 * lane);
    }
    float4 scales[2];
    if constexpr (kFormat == Skinny::kInt4) {
      __syncwarp();  // scales were copied by four lanes for each other
      scales[0] = shared_floats(at + kWarpPiece + 16 * g);
      scales[1] = shared_floats(at + kWarpPiece + 128 + 16 * g);
      __syncwarp();
    }
    load();
    slot = slot + 1 == kDepth ? 0 : slot + 1;
    const std::uint32_t x_piece = piece * (P::kUnits * 64);
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      float part[kTiles][4] = {};
#pragma unroll
      for (int u = 0; u < P::kUnits / 2; ++u) {
        std::uint32_t a[4][2];  // four pairs of rows g and g + 8
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if constexpr (kFormat == Skinny::kSame) {
#pragma unroll
            for (int p = 0; p < 4; ++p) a[p][h] = word_of(w[l][h], p);
          } else if constexpr (kFormat == Skinny::kInt4) {
#pragma unroll
            for (int p = 0; p < 4; ++p) a[p][h] = nibbles(word_of(w[l][h], u), p);
          } else {
            const Pairs low = pairs_of_word<kFormat>(word_of(w[l][h], 2 * u)),
                        high = pairs_of_word<kFormat>(word_of(w[l][h], 2 * u + 1));
            a[0][h] = low.a, a[1][h] = low.b, a[2][h] = high.a, a[3][h] = high.b;
          }
        }
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const uint4 x = shared_16(x_from[t] + x_piece + (l * (P::kUnits / 2) + u) * 64);
          float(&to)[4] = kFormat == Skinny::kInt4 ? part[t] : acc[t];
          mma<T>(to, a[0][0], a[0][1], a[1][0], a[1][1], x.x, x.y);
          mma<T>(to, a[2][0], a[2][1], a[3][0], a[3][1], x.z, x.w);
        }
      }
      if constexpr (kFormat == Skinny::kInt4) {
        const float* const x_sums = group_sums + (piece * 2 + l) * kColumns + 2 * c4;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float scale = i < 2 ? scales[l].x : scales[l].y, zero = i < 2 ? scales[l].z : scales[l].w;
            acc[t][i] += scale * (part[t][i] - (128.0F + zero) * x_sums[8 * t + i % 2]);
          }
        }
      }
    }
    piece += kStreamWarps;
  }
  while (tile < end_tile) end_tile_sums();
#if __CUDA_ARCH__ >= 900  // cards before have no clusters, and plans of one slice
  if (layout.slices > 1) {
    namespace cg = cooperative_groups;
    const cg::cluster_group peers = cg::this_cluster();
    peers.sync();
    const int sums_count = (end_tile - first_tile) * tile_rows * static_cast<int>(c.m);
    for (int i = rank * kStreamThreads + threadIdx.x; i < sums_count; i += layout.slices * kStreamThreads) {
      const int row = i % tile_rows, rest = i / tile_rows, m = rest % static_cast<int>(c.m),
                of = rest / static_cast<int>(c.m);
      float sum = 0, sum_up = 0;
      for (int r = 0; r < layout.slices; ++r) {
        const float* const other = peers.map_shared_rank(kept, r) + of * kTileSums + row * kColumns + m;
        sum += other[0];
        if (c.gated) sum_up += other[8 * kColumns];
      }
      store(static_cast<std::int64_t>(first_tile + of) * tile_rows + row, m, sum, sum_up);
    }
    peers.sync();  // nobody leaves while others read its memory
  }
#endif
}

// ---- host

inline int multiprocessors() {
  static const int count = [] {
    int gpu = 0, found = 0;
    cudaGetDevice(&gpu);
    cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, gpu);
    return found;
  }();
  return count;
}

/// Shared memory that a thread block of the card can have.
inline int most_shared_of_block() {
  static const int bytes = [] {
    int gpu = 0, found = 0;
    cudaGetDevice(&gpu);
    cudaDeviceGetAttribute(&found, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu);
    return found;
  }();
  return bytes;
}
/// That each of so many of a multiprocessor can have: Hopper's, and less where a card has less.
inline int most_shared(int per_sm) { return min(most_shared_of_block(), per_sm == 2 ? 113 * 1024 : 227 * 1024); }

/// Slices must be whole pieces; `per_sm` thread blocks a multiprocessor.
template <int kFormat, int kTiles, int kDepth>
StreamLayout lay_out_stream(const Skinny& c, int slices, int per_sm) {
  using P = Piece<kFormat>;
  StreamLayout layout{.tiles = static_cast<int>(c.n / 16), .slices = slices};
  layout.clusters = min(layout.tiles, multiprocessors() * per_sm / slices);
  // Graphics clusters have 16 or 18 multiprocessors: of clusters of 8 only the whole ones fit.
  if (slices == 8) layout.clusters = min(layout.tiles, multiprocessors() / 16 * 16 * per_sm / slices);
  layout.slice = static_cast<int>(c.k / slices);
  layout.x_pitch = layout.slice * 2 + 64;  // requests of two rows find different banks
  int at = 0;
  const auto place = [&](int bytes) {
    const int here = at;
    at += (bytes + 127) / 128 * 128;
    layout.bytes = at;
    return here;
  };
  const int tile_sums = 16 * 8 * kTiles * static_cast<int>(sizeof(float));
  place(kStreamWarps * kDepth * P::kSlot);
  layout.x_at = place(static_cast<int>(c.m) * layout.x_pitch);
  layout.sums_at = place(2 * kStreamWarps * tile_sums);
  layout.group_sums_at = place(kFormat == Skinny::kInt4 ? layout.slice / 128 * 8 * kTiles * 4 : 0);
  layout.kept_at = place(slices > 1 ? (layout.tiles + layout.clusters - 1) / layout.clusters * tile_sums : 0);
  return layout;
}

template <typename T, int kFormat, int kTiles, int kDepth>
CudaError launch_stream(const Skinny& c, const StreamLayout& layout, CudaStream stream) {
  const auto kernel = stream_gemm_kernel<T, kFormat, kTiles, kDepth>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_of_block());
  if (allowed != cudaSuccess) return cudaGetErrorString(allowed);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {.x = static_cast<unsigned>(layout.slices), .y = 1, .z = 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(layout.clusters * layout.slices));
  config.blockDim = dim3(kStreamThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(layout.bytes);
  config.stream = to_stream(stream);
  config.attrs = attributes;
  config.numAttrs = layout.slices > 1 ? 2 : 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, c, layout);
  return error == cudaSuccess ? launched() : cudaGetErrorString(error);
}

}  // namespace trireme::kernels::gpu
