// Weight gradients of experts on Hopper's tensor cores: out[g] (+)= a_g^T b_g, with the rows of group g read off the
// GPU and sums in float until they are added to what is there.
//
// Blocks stay and take tile after tile, those of the fullest groups first. A warp group brings 64 rows at a time to
// shared memory, past the end of a group zeros; two warp groups multiply.
// Sums go over a group's rows in order, 16 at a time: bits depend on nothing else.
#include "trireme/kernels/cuda_plugin/grouped_tiles.cuh"
#include "trireme/kernels/cuda_plugin/moe_functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kPanelBytes = kDepth * kRowBytes;

/// What a block computes of a group's result: kRows x kColumns by each of two warp groups, one below the other.
template <int kRows, int kColumns>
struct GradTile {
  static constexpr int kBlocks = kRows / 64;
  static constexpr int kM = 2 * kRows, kN = kColumns;
  static constexpr int kPanelsA = kM / kPanelColumns, kPanelsB = kN / kPanelColumns;
  static constexpr int kStageBytes = (kPanelsA + kPanelsB) * kPanelBytes;
};

/// Tiles in the order in which blocks take them.
struct GradTiles {
  const std::int32_t *ends, *order;  // in shared memory: where rows of groups end; groups, the fullest first
  int tiles_n, of_group, total;

  /// The tile that this block takes in a round, turn about from both ends; at least `total`: none.
  __device__ int in_round(int round) const {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
  }
  struct Place {
    int group, begin, end, m, n;  // rows of the group; the tile's number along m and n
  };
  __device__ Place place(int tile) const {
    const int group = order[tile / of_group], within = tile % of_group;
    return {group, group == 0 ? 0 : ends[group - 1], ends[group], within / tiles_n, within % tiles_n};
  }
};

template <typename Tile>
__device__ void fetch_tiles(const CudaGroupedWeightGrad& c, const GradTiles& tiles, const StageRing& ring) {
  const Fetcher by;
  const int first_row = by.row, chunk = by.chunk;
  constexpr int kRowsOfThread = kDepth / kFetchedRows;
  int fetched = 0;
  for (int round = 0; round * static_cast<int>(gridDim.x) < tiles.total; ++round) {
    const int tile = tiles.in_round(round);
    if (tile >= tiles.total) continue;
    const GradTiles::Place at = tiles.place(tile);
    const int column_a = at.m * Tile::kM + chunk * 8, column_b = at.n * Tile::kN + chunk * 8;
    const Bf16* const a = static_cast<const Bf16*>(c.a) + column_a;
    const Bf16* const b = static_cast<const Bf16*>(c.b) + column_b;
    for (int begin = at.begin; begin < at.end; begin += kDepth, ++fetched) {
      const std::uint32_t to = ring.room(fetched) + by.slot;
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        const int row = begin + first_row + kFetchedRows * i;
        const bool there = row < at.end;
        const Bf16* const from_a = a + (there ? row : 0) * c.m;
        const Bf16* const from_b = b + (there ? row : 0) * c.n;
        const std::uint32_t at_row = to + static_cast<std::uint32_t>(i) * (kFetchedRows * kRowBytes);
#pragma unroll
        for (int panel = 0; panel < Tile::kPanelsA; ++panel) {
          copy16(at_row + static_cast<std::uint32_t>(panel) * kPanelBytes, from_a + panel * kPanelColumns,
                 there && column_a + panel * kPanelColumns < c.m);
        }
#pragma unroll
        for (int panel = 0; panel < Tile::kPanelsB; ++panel) {
          copy16(at_row + static_cast<std::uint32_t>(Tile::kPanelsA + panel) * kPanelBytes,
                 from_b + panel * kPanelColumns, there && column_b + panel * kPanelColumns < c.n);
        }
      }
      ring.sent(fetched);
    }
  }
  ring.sent_all(fetched);
}

template <typename Tile, typename Out>
__device__ void multiply_tiles(const CudaGroupedWeightGrad& c, const GradTiles& tiles, const StageRing& ring) {
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  int taken = 0;
  for (int round = 0; round * static_cast<int>(gridDim.x) < tiles.total; ++round) {
    const int tile = tiles.in_round(round);
    if (tile >= tiles.total) continue;
    const GradTiles::Place at = tiles.place(tile);
    if (at.begin == at.end && c.accumulate) continue;
    float d[Tile::kBlocks][Tile::kN / 2] = {};
    for (int begin = at.begin; begin < at.end; begin += kDepth, ++taken) {
      const unsigned char* const a = ring.arrived(taken);
      const std::uint64_t at_a = panel_descriptor(a + group * Tile::kBlocks * kPanelBytes, kPanelBytes),
                          at_b = panel_descriptor(a + Tile::kPanelsA * kPanelBytes, kPanelBytes);
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block) hold(d[block]);
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step) {
#pragma unroll
        for (int block = 0; block < Tile::kBlocks; ++block) {
          wgmma_along_rows<Tile::kN>(d[block], at_a + (block * kPanelBytes + step * 16 * kRowBytes) / 16,
                                     at_b + step * 16 * kRowBytes / 16);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (begin != at.begin) ring.taken(taken - 1);
    }
    wgmma_wait<0>();
    if (at.begin != at.end) ring.taken(taken - 1);
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block) {
      hold(d[block]);
      const std::int64_t row = std::int64_t{at.m} * Tile::kM + (group * Tile::kBlocks + block) * 64;
      const std::int64_t column = std::int64_t{at.n} * Tile::kN;
      write_results<Tile::kN>(static_cast<Out*>(c.out) + (at.group * c.m + row) * c.n + column, d[block],
                              {.rows = c.m - row, .columns = c.n - column, .stride = c.n, .add = c.accumulate});
    }
  }
}

template <typename Tile, typename Out>
__global__ void __launch_bounds__(kBlockThreads, 1) weight_grad(const CudaGroupedWeightGrad c) {
#ifdef TRIREME_WGMMA
  extern __shared__ __align__(1024) unsigned char stages[];
  const StageRing ring{stages, Tile::kStageBytes};
  auto* const ends = reinterpret_cast<std::int32_t*>(ring.behind());
  const int groups = static_cast<int>(c.groups);
  std::int32_t* const order = ends + groups;
  ring.make();
  for (int g = static_cast<int>(threadIdx.x); g < groups; g += kBlockThreads) ends[g] = c.ends[g];
  __syncthreads();
  const auto rows_of = [&](int g) { return ends[g] - (g == 0 ? 0 : ends[g - 1]); };
  for (int g = static_cast<int>(threadIdx.x); g < groups; g += kBlockThreads) {
    const int rows = rows_of(g);
    int rank = 0;
    for (int other = 0; other < groups; ++other) {
      const int there = rows_of(other);
      rank += there > rows || (there == rows && other < g);
    }
    order[rank] = g;
  }
  __syncthreads();
  const int tiles_n = static_cast<int>((c.n + Tile::kN - 1) / Tile::kN);
  const int of_group = static_cast<int>((c.m + Tile::kM - 1) / Tile::kM) * tiles_n;
  const GradTiles tiles{ends, order, tiles_n, of_group, of_group * groups};
  if (threadIdx.x < kGroupThreads) {
    leave_registers<kFetchRegisters>();
    fetch_tiles<Tile>(c, tiles, ring);
  } else {
    take_registers<kMultiplyRegisters>();
    multiply_tiles<Tile, Out>(c, tiles, ring);
  }
#else
  __trap();  // wgmma exists on sm_90a alone
#endif
}

template <typename Tile, typename Out>
CudaError launch(const CudaGroupedWeightGrad& c, CudaStream stream) {
  const std::size_t bytes =
      StageRing::bytes(Tile::kStageBytes) + 2 * sizeof(std::int32_t) * static_cast<std::size_t>(c.groups);
  if (CudaError error = allow_shared(weight_grad<Tile, Out>, bytes)) return error;
  const std::int64_t tiles = c.groups * divided_up(c.m, Tile::kM) * divided_up(c.n, Tile::kN);
  weight_grad<Tile, Out><<<blocks_for(tiles), kBlockThreads, bytes, to_stream(stream)>>>(c);
  return launched();
}

template <typename Tile>
std::int64_t computed(const CudaGroupedWeightGrad& c) {
  return divided_up(c.m, Tile::kM) * Tile::kM * divided_up(c.n, Tile::kN) * Tile::kN;
}

}  // namespace

bool moe_has_weight_grad() {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major == 9 && minor == 0;
}

CudaError moe_weight_grad(const CudaGroupedWeightGrad& c, CudaStream stream) {
  if (c.groups == 0 || c.m == 0 || c.n == 0) return nullptr;
  if (c.m % 8 != 0 || c.n % 8 != 0) return "experts whose widths are no multiples of 8";
  if (c.groups > kCudaMostExperts) return "more experts than a table in shared memory holds";
  using Wide = GradTile<64, 256>;
  using Tall = GradTile<128, 128>;
  if (computed<Wide>(c) <= computed<Tall>(c))
    return c.wide ? launch<Wide, float>(c, stream) : launch<Wide, Bf16>(c, stream);
  return c.wide ? launch<Tall, float>(c, stream) : launch<Tall, Bf16>(c, stream);
}

}  // namespace trireme::kernels::gpu
