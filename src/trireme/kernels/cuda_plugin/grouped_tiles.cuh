// kernels/cuda_plugin/grouped_tiles.cuh -- what a grouped GEMM on Hopper's tensor cores is made of: a ring of stages in
// shared memory between a warp group that fetches and two that multiply, and results on their way out.
//
// A block of three warp groups stays on its processor and takes tile after tile. The first fetches 64 of the summed
// index at a time with copies of 16 bytes, so that rows may lie anywhere and what is not there is 0; the others compute
// a tile's halves, while the next stages, the next tile's too, are on their way.
// Depends on: wgmma.cuh.
#pragma once

#include "trireme/kernels/cuda_plugin/wgmma.cuh"

namespace trireme::kernels::gpu {
namespace {

// clang-format off
#define TRIREME_SUMS_128(d) TRIREME_SUMS_64(d), TRIREME_SUMS_32(d, 64), TRIREME_SUMS_32(d, 96)
#define TRIREME_NAMES_128 TRIREME_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// clang-format on

/// d [64, kN] += a^T [64, 16] b [16, kN] of bfloat16: 16 rows of each in shared memory, MN-major.
template <int kN>
__device__ __forceinline__ void wgmma_along_rows(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b) {
  static_assert(kN == 128 || kN == 256);
#define TRIREME_WGMMA_ALONG_ROWS(n, names, sums, at_a, at_b)                                                         \
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" names \
               "}, " at_a ", " at_b ", p, 1, 1, 1, 1;}"                                                              \
               : sums                                                                                                \
               : "l"(a), "l"(b))
#ifdef TRIREME_WGMMA
  if constexpr (kN == 128) {
    TRIREME_WGMMA_ALONG_ROWS("128", TRIREME_NAMES_64, TRIREME_SUMS_64(d), "%64", "%65");
  } else {
    TRIREME_WGMMA_ALONG_ROWS("256", TRIREME_NAMES_128, TRIREME_SUMS_128(d), "%128", "%129");
  }
#endif
#undef TRIREME_WGMMA_ALONG_ROWS
}

// Barriers in shared memory between those who fetch and those who multiply. A phase ends when as many have arrived as
// the barrier was made for. Who waits names the phase's parity: that of a stage's uses in turn, 0 first; the one before
// the first, 1, has ended when a barrier is made.
__device__ __forceinline__ void make_barrier(std::uint32_t at, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(std::uint32_t at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void wait_phase(std::uint32_t at, unsigned parity) {
  unsigned ended = 0;
  while (ended == 0) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(ended)
                 : "r"(at), "r"(parity)
                 : "memory");
  }
}

/// A warp group's registers a thread, of those that the block was started with.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

constexpr int kGroupThreads = 128, kBlockThreads = 3 * kGroupThreads;  // of a warp group, of a block
constexpr int kFetchRegisters = 80, kMultiplyRegisters = 208;          // of a thread; 168 when the block begins
constexpr int kDepth = 64;                                             // of the summed index in a stage
constexpr int kRingStages = 4, kAhead = 2;                             // there are, and are on their way at most

/// A fetching thread's 16 bytes of rows of 128: of rows kFetchedRows apart, whose swizzle is the same.
constexpr int kFetchedRows = kGroupThreads / 8;
struct Fetcher {
  int row = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
  std::uint32_t slot = static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ (row % 8)) * 16));
};

class StageRing {
 public:
  __device__ StageRing(unsigned char* stages, int stage_bytes)
      : stages_(stages), stage_bytes_(stage_bytes), full_(shared_offset(stages) + kRingStages * stage_bytes) {}
  __host__ __device__ static constexpr std::size_t bytes(int stage_bytes) {
    return kRingStages * (static_cast<std::size_t>(stage_bytes) + 16);
  }
  __device__ unsigned char* behind() const { return stages_ + bytes(stage_bytes_); }
  /// Before a barrier of the block.
  __device__ void make() const {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < kRingStages; ++i) {
      make_barrier(full(i), kGroupThreads / 32);
      make_barrier(empty(i), 2 * kGroupThreads / 32);
    }
  }

  // Who fetches: stage number `number`, from 0 on, once it is free.
  __device__ std::uint32_t room(int number) const {
    wait_phase(empty(number), static_cast<unsigned>(number / kRingStages + 1) % 2);
    return shared_offset(stages_) + static_cast<std::uint32_t>(number % kRingStages * stage_bytes_);
  }
  /// Its copies are begun; one begun earlier is handed over.
  __device__ void sent(int number) const {
    copies_commit();
    if (number < kAhead) return;
    wait_fetches<kAhead>();
    hand_over(number - kAhead);
  }
  __device__ void sent_all(int count) const {
    wait_fetches<0>();
    for (int number = count < kAhead ? 0 : count - kAhead; number < count; ++number) hand_over(number);
  }

  // Who multiplies.
  __device__ const unsigned char* arrived(int number) const {
    wait_phase(full(number), static_cast<unsigned>(number / kRingStages) % 2);
    return stages_ + number % kRingStages * stage_bytes_;
  }
  __device__ void taken(int number) const {
    if (threadIdx.x % 32 == 0) arrive(empty(number));
  }

 private:
  __device__ std::uint32_t full(int number) const {
    return full_ + static_cast<std::uint32_t>(number % kRingStages) * 8;
  }
  __device__ std::uint32_t empty(int number) const { return full(number) + kRingStages * 8; }
  __device__ void hand_over(int number) const {
    fence_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(full(number));
  }

  unsigned char* stages_;
  int stage_bytes_;
  std::uint32_t full_;
};

/// Two neighbours of each lane, and two of the next block of eight columns, become four neighbours.
__device__ __forceinline__ void four_neighbours(float (&four)[4], const float* here, const float* next, bool odd) {
  const float to0 = odd ? here[0] : next[0], to1 = odd ? here[1] : next[1];
  const float from0 = __shfl_xor_sync(~0u, to0, 1), from1 = __shfl_xor_sync(~0u, to1, 1);
  four[0] = odd ? from0 : here[0], four[1] = odd ? from1 : here[1];
  four[2] = odd ? next[0] : from0, four[3] = odd ? next[1] : from1;
}

/// Word i of lane q of four becomes word q of lane i.
__device__ __forceinline__ void transpose_words(std::uint32_t (&w)[4], int quarter) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const bool odd = quarter % 2 != 0;
    const std::uint32_t from = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = from;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool high = quarter >= 2;
    const std::uint32_t from = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = from;
  }
}

/// Where 64 rows of results go: so many rows and columns are left there.
struct Results {
  std::int64_t rows, columns, stride;
  bool add = false;  ///< to what is there
};

template <int kN, typename Out>
__device__ void write_results(Out* out, const float (&d)[kN / 2], const Results& to_rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, quarter = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = static_cast<int>(threadIdx.x) % kGroupThreads / 32 * 16 + lane / 4 + half * 8;
    const bool there = row < to_rows.rows;
    Out* const at_row = out + (there ? row : 0) * to_rows.stride;
    const auto inside = [&](int block) { return there && block * 8 < to_rows.columns; };
    if constexpr (sizeof(Out) == 4) {
      const bool odd = quarter % 2 != 0;
      constexpr int kPairs = 4;  // whose old values are read together
#pragma unroll
      for (int first = 0; first < kN / 8; first += 2 * kPairs) {
        float four[kPairs][4], old[kPairs][4] = {};
        const auto mine = [&](int pair) { return first + 2 * pair + odd; };
        const auto to = [&](int pair) { return at_row + mine(pair) * 8 + quarter / 2 * 4; };
        if (to_rows.add) {
#pragma unroll
          for (int pair = 0; pair < kPairs; ++pair) {
            if (inside(mine(pair))) load<4>(to(pair), old[pair]);
          }
        }
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          const int at = (first + 2 * pair) * 4 + half * 2;
          four_neighbours(four[pair], &d[at], &d[at + 4], odd);
#pragma unroll
          for (int i = 0; i < 4; ++i) four[pair][i] += old[pair][i];
          if (inside(mine(pair))) store<4>(to(pair), four[pair]);
        }
      }
    } else {
#pragma unroll
      for (int first = 0; first < kN / 8; first += 4) {
        float old[4][2] = {};
        if (to_rows.add) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (inside(first + i)) load<2>(at_row + (first + i) * 8 + quarter * 2, old[i]);
          }
        }
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = (first + i) * 4 + half * 2;
          words[i] = two_words<Bf16>(d[at] + old[i][0], d[at + 1] + old[i][1]);
        }
        __syncwarp();  // all of them have read what one of them overwrites
        transpose_words(words, quarter);
        if (inside(first + quarter)) store_words(at_row + (first + quarter) * 8, words);
      }
    }
  }
}

// ---- host

/// Blocks that stay: one a processor.
inline unsigned blocks_for(std::int64_t tiles) {
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  return static_cast<unsigned>(tiles < processors ? tiles : processors);
}

}  // namespace
}  // namespace trireme::kernels::gpu
