// Cross-entropy. Where a card has clusters, a row of logits is held in the shared memory of one block, or of a few that
// know each other, and is read and written once; the next row is on its way while this one's gradient is written.
// Elsewhere, and for rows that do not fit, a block reads its row for the maximum and the sum, and again for the
// gradient.
#include <cooperative_groups.h>

#include "trireme/kernels/cuda_plugin/cross_entropy.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

namespace cg = cooperative_groups;

constexpr int kStages = 4;  // parts of a row on their way to shared memory

/// Blocks that hold rows: how many threads they have, how many a multiprocessor works on at a time, how many may share
/// a row, and how many bytes of it each can hold then. Blocks that wait for each other leave more to do for a third;
/// of those more threads were slower, and so were fewer.
template <int kBlockThreads, int kResident, int kSharing, int kMost>
struct Held {
  static constexpr int kThreads = kBlockThreads, kBlocks = kResident, kTogether = kSharing, kBytes = kMost;
};
using HeldAlone = Held<512, 2, 1, 104 * 1024>;
using HeldByFew = Held<320, 3, 4, 76'160>;
using HeldByMany = Held<320, 3, 8, 75'520>;

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) cross_entropy_rows(const CrossEntropyLoop c) {
  using A = Sum<T>;
  const std::int64_t row = blockIdx.x, target = c.targets[row];
  T* x = row_of<T>(c.logits, row, c.stride);
  const int count = static_cast<int>(c.vocabulary);
  if (target == c.ignore) {
    if (c.scale != nullptr) write_zeros<T, kVec>(x, count);
    if (threadIdx.x == 0) write_no_losses<A>(c, row);
    return;
  }
  const A hit = threadIdx.x == 0 ? hit_of(x, target, c.vocabulary) : A(0);
  const Totals<A> all = read_row<T, kVec>(x, count, c.label_smoothing != 0);
  if (threadIdx.x == 0) write_losses(c, row, all, hit);
  if (c.scale == nullptr) return;
  const A scale = static_cast<const A*>(c.scale)[row];
  slope_of(scale, all.lse2(), c.label_smoothing, c.z_loss, c.vocabulary, target)
      .template write<kThreads, kVec>(x, count);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TRIREME_CLUSTERS 1
#endif

/// The blocks of a cluster take neighbouring pieces of a row, and a cluster every so many rows. Every thread reads only
/// what it has fetched itself, so nobody waits for the block while pieces arrive; and where it has written its gradient
/// it fetches the next row's numbers at once. Each row has a scale.
template <typename T, typename How>
__global__ void __launch_bounds__(How::kThreads, How::kBlocks)
    cross_entropy_held(const CrossEntropyLoop c, int piece, std::int64_t rows) {
  static_assert(kStages == 4 && How::kTogether > 0);
#ifdef TRIREME_CLUSTERS
  using A = Sum<T>;
  constexpr int kVec = kWide<T>, kStep = How::kThreads * kVec;
  extern __shared__ __align__(16) char raw[];
  T* held = reinterpret_cast<T*>(raw);
  constexpr int kWarps = How::kThreads / 32;
  // Of the cluster's warps: this row's, and the last row's. What smoothing needs lies behind the row.
  __shared__ Part<A> parts[2][How::kTogether * kWarps];
  A* const logits = reinterpret_cast<A*>(held + piece);
  const cg::cluster_group cluster = cg::this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks()), block = static_cast<int>(cluster.block_rank());
  const std::int64_t clusters = gridDim.x / blocks, first = static_cast<std::int64_t>(block) * piece;
  const int count = static_cast<int>(max(min(static_cast<std::int64_t>(piece), c.vocabulary - first), std::int64_t{0}));
  const int turns = (piece + kStep - 1) / kStep, stage = (turns + kStages - 1) / kStages * kStep;
  const bool with_logits = c.label_smoothing != 0;
  const auto piece_of = [&](std::int64_t row) { return row_of<T>(c.logits, row, c.stride) + first; };
  const auto in_stage = [&](int s, auto&& body) {
    const int end = min(count, (s + 1) * stage);
#pragma unroll 4
    for (int i = s * stage + static_cast<int>(threadIdx.x) * kVec; i < end; i += kStep) body(i);
  };
  std::int64_t row = blockIdx.x / blocks;
  std::int64_t target = row < rows ? c.targets[row] : 0;
  A scale = row < rows ? static_cast<const A*>(c.scale)[row] : A(0);
  if (row < rows) {
    const T* x = piece_of(row);
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      in_stage(s, [&](int i) { fetch16(held + i, x + i); });
      close_fetches();
    }
  }
  if (blocks > 1) cluster.sync();  // nobody writes to a block that has not begun
  int parity = 0;
  for (; row < rows; row += clusters) {
    const std::int64_t next = row + clusters;
    const bool more = next < rows;
    T* x = piece_of(row);
    const T* coming = more ? piece_of(next) : x;
    const std::int64_t next_target = more ? c.targets[next] : 0;
    const A next_scale = more ? static_cast<const A*>(c.scale)[next] : A(0);
    Slope<A> slope{};
    const bool counts = target != c.ignore;
    if (counts) {
      const A hit = threadIdx.x == 0 && block == 0 ? hit_of(x, target, c.vocabulary) : A(0);
      Totals<A> mine;
      const auto add = [&](int i) {
        A v[kVec];
        load<kVec>(held + i, v);
        mine.add(v, with_logits);
      };
      wait_fetches<3>(), in_stage(0, add);
      wait_fetches<2>(), in_stage(1, add);
      wait_fetches<1>(), in_stage(2, add);
      wait_fetches<0>(), in_stage(3, add);
      // Every warp leaves its totals with every block of the cluster, and each warp adds up all of them: one meeting.
      const int lane = threadIdx.x % 32, warps = blocks * kWarps;
      mine = over_warp(mine, with_logits);
      if (lane < blocks) {
        const int warp = block * kWarps + threadIdx.x / 32;
        cluster.map_shared_rank(&parts[parity][0], lane)[warp] = {mine.largest, mine.sum};
        if (with_logits) cluster.map_shared_rank(logits, lane)[parity * warps + warp] = mine.logits;
      }
      if (blocks > 1) {
        cluster.sync();
      } else {
        __syncthreads();
      }
      Totals<A> all;
      for (int i = lane; i < warps; i += 32) {
        all.add(Totals<A>(parts[parity][i], with_logits ? logits[parity * warps + i] : A(0)));
      }
      all = over_warp(all, with_logits);
      parity ^= 1;  // who writes there again has met everyone once more
      if (threadIdx.x == 0 && block == 0) write_losses(c, row, all, hit);
      slope = slope_of(scale, all.lse2(), c.label_smoothing, c.z_loss, c.vocabulary, target - first);
    } else {
      wait_fetches<0>();
      if (threadIdx.x == 0 && block == 0) write_no_losses<A>(c, row);
      slope.target = -1;
    }
    slope.template write<How::kThreads, kVec>(x, held, counts ? count : 0, [&](auto&& one) {
      const A zeros[kVec] = {};
#pragma unroll
      for (int s = 0; s < kStages; ++s) {
        in_stage(s, [&](int i) {
          if (counts) {
            one(i);
          } else {
            store<kVec>(x + i, zeros);
          }
          if (more) fetch16(held + i, coming + i);
        });
        close_fetches();
      }
    });
    target = next_target, scale = next_scale;
  }
#endif
}

/// How rows are to be held; no blocks: they are not.
struct RowsInRegisters {
  int blocks = 0, piece = 0;
};
RowsInRegisters holding_of(const CrossEntropyLoop& c, int size, int wide) {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major < 9) return {};
  for (int blocks = 1; blocks <= HeldByMany::kTogether; ++blocks) {
    const std::int64_t piece = divided_up(divided_up(c.vocabulary, blocks), wide) * wide;
    const std::int64_t most = blocks == 1                      ? HeldAlone::kBytes
                              : blocks <= HeldByFew::kTogether ? HeldByFew::kBytes
                                                               : HeldByMany::kBytes;
    if (piece * size <= most) return {blocks, static_cast<int>(piece)};
  }
  return {};
}

/// As many clusters as the card works on at a time, and no more than there are rows. False where it has no room for one
/// (a card that is shared out in parts).
template <typename T, typename How>
bool launch_held(const CrossEntropyLoop& c, const RowsInRegisters& holding, std::int64_t rows, CudaStream stream) {
  const int row = holding.piece * static_cast<int>(sizeof(T));
  const int logits = 2 * holding.blocks * (How::kThreads / 32) * static_cast<int>(sizeof(Sum<T>));
  const int bytes = row + (c.label_smoothing != 0 ? logits : 0);
  const auto kernel = cross_entropy_held<T, How>;
  if (allow_shared(kernel, static_cast<std::size_t>(bytes)) != nullptr) return false;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(holding.blocks));
  config.blockDim = dim3(How::kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = to_stream(stream);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(holding.blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess || clusters < 1) {
    cudaGetLastError();
    return false;
  }
  if (clusters > rows) clusters = static_cast<int>(rows);
  config.gridDim = dim3(static_cast<unsigned>(clusters * holding.blocks));
  cudaLaunchKernelEx(&config, kernel, c, holding.piece, rows);
  return true;
}

}  // namespace

CudaError cross_entropy(const CrossEntropyLoop& c, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0) return nullptr;
  if (c.vocabulary > kMostClasses) return "more than 2^30 classes";
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const bool wide = wide_rows(c.logits, c.stride, c.vocabulary, sizeof(T));
    // Without gradients a row is read once in either case.
    if (wide && c.scale != nullptr) {
      const RowsInRegisters holding = holding_of(c, sizeof(T), kWide<T>);
      const int blocks = holding.blocks;
      const bool held = blocks == 0                      ? false
                        : blocks == 1                    ? launch_held<T, HeldAlone>(c, holding, rows, stream)
                        : blocks <= HeldByFew::kTogether ? launch_held<T, HeldByFew>(c, holding, rows, stream)
                                                         : launch_held<T, HeldByMany>(c, holding, rows, stream);
      if (held) return launched();
    }
    const auto kernel = wide ? cross_entropy_rows<T, kWide<T>> : cross_entropy_rows<T, 1>;
    kernel<<<static_cast<unsigned>(rows), kThreads, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
