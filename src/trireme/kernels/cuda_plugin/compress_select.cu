// The k largest numbers by absolute value: a threshold from a sample leaves few candidates, among which the k-th is
// found digit by digit; of equal ones the first places are taken. And columns made orthonormal.
#include <type_traits>

#include "trireme/kernels/cuda_plugin/compress.cuh"
#include "trireme/kernels/cuda_plugin/many.cuh"

namespace trireme::kernels::gpu {
namespace {

constexpr int kSelectThreads = 256;
constexpr int kBins = 256;

/// In device memory, 64 bits each. A search has found `prefix` of the key and looks for the `left`-th largest (of
/// places: smallest) among those that have it.
enum StateWord : int { kPrefix, kLeft, kTicket, kEqual, kThreshold, kCandidates, kTaken, kLastPlace, kHistogram };
static_assert(kHistogram + kBins <= kCudaTopKState);
using State = unsigned long long;
constexpr State kEveryPlace = 0xfffffffe, kSearched = 0xffffffff;  // of kLastPlace

template <typename T>
struct Bits;
template <>
struct Bits<float> {
  using Key = std::uint32_t;
  static __device__ __forceinline__ Key of(float x) { return min(__float_as_uint(x) & 0x7fffffffu, 0x7f800000u); }
};
template <>
struct Bits<double> {
  using Key = std::uint64_t;
  static __device__ __forceinline__ Key of(double x) {
    const auto key = static_cast<Key>(__double_as_longlong(x)) & 0x7fffffffffffffffull;
    return key < 0x7ff0000000000000ull ? key : 0x7ff0000000000000ull;
  }
};

/// Which numbers are searched: all, every stride-th, or the candidates.
struct Source {
  const std::uint32_t* list = nullptr;
  std::int64_t first = 0, stride = 1, count = 0;  // without a list
};
__device__ __forceinline__ std::int64_t count_of(const Source& source, const State* state) {
  return source.list != nullptr ? static_cast<std::int64_t>(state[kCandidates]) : source.count;
}
__device__ __forceinline__ std::int64_t place_of(const Source& source, std::int64_t i) {
  return source.list != nullptr ? source.list[i] : source.first + i * source.stride;
}

/// One digit of 8 bits. Places: of the keys that equal kThreshold, the smallest ones; else keys, the largest ones. The
/// block that comes last reads the histogram.
template <typename T, bool kPlaces>
__global__ void __launch_bounds__(kSelectThreads)
    digit_kernel(const T* values, const Source source, State* state, int shift) {
  using Key = std::conditional_t<kPlaces, std::uint32_t, typename Bits<T>::Key>;
  if (kPlaces && state[kLastPlace] != kSearched) return;  // all equal ones are taken
  __shared__ unsigned bins[kBins];
  bins[threadIdx.x] = 0;
  __syncthreads();
  const auto prefix = static_cast<Key>(state[kPrefix]);
  const std::int64_t count = count_of(source, state);
  const auto threshold = static_cast<typename Bits<T>::Key>(state[kThreshold]);
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSelectThreads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kSelectThreads) {
    const std::int64_t place = place_of(source, i);
    Key key;
    if constexpr (kPlaces) {
      if (Bits<T>::of(values[place]) != threshold) continue;
      key = static_cast<Key>(place);
    } else {
      key = Bits<T>::of(values[place]);
    }
    const int high = shift + 8;
    const bool here = high >= static_cast<int>(sizeof(Key) * 8) || (key >> high) == (prefix >> high);
    if (here) atomicAdd(&bins[key >> shift & 255], 1u);
  }
  __syncthreads();
  if (bins[threadIdx.x] != 0) atomicAdd(&state[kHistogram + threadIdx.x], static_cast<State>(bins[threadIdx.x]));
  __threadfence();
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&state[kTicket], 1ull) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  if (threadIdx.x == 0) {
    volatile State* const now = state;
    State left = now[kLeft];
    int digit = kPlaces ? 0 : kBins - 1;
    for (int n = 0; n < kBins - 1; ++n) {
      const State there = now[kHistogram + digit];
      if (there >= left) break;
      left -= there;
      digit += kPlaces ? 1 : -1;
    }
    now[kLeft] = left;
    now[kEqual] = now[kHistogram + digit];
    now[kPrefix] = static_cast<State>(prefix | static_cast<Key>(digit) << shift);
    now[kTicket] = 0;
  }
  __syncthreads();
  state[kHistogram + threadIdx.x] = 0;
}

__global__ void begin_search(State* state, State left) {
  state[kPrefix] = 0;
  state[kLeft] = left;
}
/// The key that was found is the threshold; the search goes on for places among those that equal it.
__global__ void begin_places(State* state) {
  state[kThreshold] = state[kPrefix];
  state[kLastPlace] = state[kEqual] <= state[kLeft] ? kEveryPlace : kSearched;
  state[kPrefix] = 0;
}
__global__ void end_places(State* state) {
  if (state[kLastPlace] == kSearched) state[kLastPlace] = state[kPrefix];
}
__global__ void begin_gather(State* state) {
  state[kThreshold] = state[kPrefix];
  state[kCandidates] = 0;
}

/// A place in a list for each lane that wants one; whole warps call it.
__device__ __forceinline__ State next_place(State* counter, bool wanted) {
  const unsigned lanes = __ballot_sync(0xffffffffu, wanted);
  State base = 0;
  const int leader = __ffs(lanes) - 1, lane = threadIdx.x % 32;
  if (lanes != 0 && lane == leader) base = atomicAdd(counter, static_cast<State>(__popc(lanes)));
  base = __shfl_sync(0xffffffffu, base, lanes != 0 ? leader : lane);
  return base + __popc(lanes & ((1u << lane) - 1));
}

template <typename T>
__global__ void __launch_bounds__(kSelectThreads)
    gather_kernel(const T* values, std::int64_t count, State* state, std::uint32_t* candidates) {
  const auto threshold = static_cast<typename Bits<T>::Key>(state[kThreshold]);
  const std::int64_t whole = divided_up(count, 32) * 32;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSelectThreads + threadIdx.x; i < whole;
       i += static_cast<std::int64_t>(gridDim.x) * kSelectThreads) {
    const bool wanted = i < count && Bits<T>::of(values[i]) >= threshold;
    const State at = next_place(&state[kCandidates], wanted);
    if (wanted) candidates[at] = static_cast<std::uint32_t>(i);
  }
}
/// Where the sample misled: all are candidates.
__global__ void __launch_bounds__(kSelectThreads)
    gather_all_kernel(std::int64_t count, std::int64_t k, const State* state, std::uint32_t* candidates) {
  if (static_cast<std::int64_t>(state[kCandidates]) >= k) return;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSelectThreads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kSelectThreads)
    candidates[i] = static_cast<std::uint32_t>(i);
}
__global__ void count_all(std::int64_t count, std::int64_t k, State* state) {
  if (static_cast<std::int64_t>(state[kCandidates]) < k) state[kCandidates] = static_cast<State>(count);
  state[kPrefix] = 0;
  state[kLeft] = static_cast<State>(k);
  state[kTaken] = 0;
}

template <typename T>
__global__ void __launch_bounds__(kSelectThreads) take_kernel(const CudaTopK a, const Source source, State* state) {
  T* values = static_cast<T*>(a.values);
  const auto threshold = static_cast<typename Bits<T>::Key>(state[kThreshold]);
  const auto last = static_cast<std::int64_t>(state[kLastPlace]);
  const std::int64_t count = count_of(source, state), whole = divided_up(count, 32) * 32;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSelectThreads + threadIdx.x; i < whole;
       i += static_cast<std::int64_t>(gridDim.x) * kSelectThreads) {
    std::int64_t place = 0;
    bool wanted = false;
    T value = 0;
    if (i < count) {
      place = place_of(source, i);
      value = values[place];
      const auto key = Bits<T>::of(value);
      wanted = key > threshold || (key == threshold && place <= last);
    }
    const State at = next_place(&state[kTaken], wanted);
    if (!wanted) continue;
    a.places[at] = static_cast<std::uint32_t>(place);
    static_cast<T*>(a.chosen)[at] = value;
    values[place] = 0;
    if (a.also != nullptr) static_cast<T*>(a.also)[place] = 0;
  }
}

template <typename T>
__global__ void __launch_bounds__(kSelectThreads) scatter_kernel(const CudaScatter a) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kSelectThreads + threadIdx.x;
  if (i < a.count) static_cast<T*>(a.out)[a.places[i]] += static_cast<const T*>(a.values)[i];
}

unsigned select_grid(std::int64_t count) {
  const std::int64_t blocks = divided_up(count, 8 * kSelectThreads);
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 1056 ? 1056 : blocks);
}

// ---- orthonormal columns

using ColumnTables = Tables<CudaColumns, 100>;
constexpr int kColumnThreads = 512;

/// A matrix for each block: Gram-Schmidt, twice, sums in double; as gram_schmidt() of power_iteration.cpp.
template <typename T>
__global__ void __launch_bounds__(kColumnThreads) orthogonalise_kernel(const __grid_constant__ ColumnTables tables) {
  const CudaColumns matrix = tables.items[blockIdx.x];
  T* values = static_cast<T*>(matrix.values);
  const std::int64_t rows = matrix.rows, rank = matrix.rank;
  const double dependent = sizeof(T) == 8 ? 1e-12 : 1e-5;
  const auto dot = [&](std::int64_t a, std::int64_t b) {
    double sum[1] = {};
    for (std::int64_t i = threadIdx.x; i < rows; i += kColumnThreads)
      sum[0] += static_cast<double>(values[i * rank + a]) * static_cast<double>(values[i * rank + b]);
    sum_all<kColumnThreads>(sum);
    return sum[0];
  };
  // Rows are this thread's own in every pass: no one else reads what it writes.
  for (std::int64_t column = 0; column < rank; ++column) {
    const double length = sqrt(dot(column, column));
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t other = 0; other < column; ++other) {
        const double along = dot(column, other);
        for (std::int64_t i = threadIdx.x; i < rows; i += kColumnThreads)
          values[i * rank + column] -= static_cast<T>(along * static_cast<double>(values[i * rank + other]));
      }
    }
    const double left = sqrt(dot(column, column));
    const double factor = left <= dependent * length ? 0 : 1 / left;  // NaN stays NaN
    for (std::int64_t i = threadIdx.x; i < rows; i += kColumnThreads)
      values[i * rank + column] =
          factor == 0 ? T(0) : static_cast<T>(factor * static_cast<double>(values[i * rank + column]));
  }
}

}  // namespace

CudaError top_k(const CudaTopK& a, Element element, CudaStream stream) {
  if (a.k <= 0 || a.count == 0) return nullptr;
  if (a.count >= std::int64_t{1} << 32) return "top-k of more numbers than have places of 32 bits";
  return by_wide_type(element, [&](auto type) {
    using T = decltype(type);
    const auto* values = static_cast<const T*>(a.values);
    auto* state = reinterpret_cast<State*>(a.state);
    const cudaStream_t on = to_stream(stream);
    const unsigned grid = select_grid(a.count);
    cudaMemsetAsync(state, 0, kCudaTopKState * sizeof(State), on);
    const auto search = [&](const Source& source, std::int64_t most) {
      for (int shift = static_cast<int>(sizeof(T)) * 8 - 8; shift >= 0; shift -= 8)
        digit_kernel<T, false><<<select_grid(most), kSelectThreads, 0, on>>>(values, source, state, shift);
    };
    if (a.stride > 0) {
      const Source sample{nullptr, a.stride / 2, a.stride, divided_up(a.count - a.stride / 2, a.stride)};
      begin_search<<<1, 1, 0, on>>>(state, static_cast<State>(a.sampled_place + 1));
      search(sample, sample.count);
      begin_gather<<<1, 1, 0, on>>>(state);
      gather_kernel<<<grid, kSelectThreads, 0, on>>>(values, a.count, state, a.candidates);
    }
    const Source candidates{a.stride > 0 ? a.candidates : nullptr, 0, 1, a.count};
    if (a.stride > 0) gather_all_kernel<<<grid, kSelectThreads, 0, on>>>(a.count, a.k, state, a.candidates);
    count_all<<<1, 1, 0, on>>>(a.count, a.k, state);
    search(candidates, a.count);
    begin_places<<<1, 1, 0, on>>>(state);
    for (int shift = 24; shift >= 0; shift -= 8)
      digit_kernel<T, true><<<grid, kSelectThreads, 0, on>>>(values, candidates, state, shift);
    end_places<<<1, 1, 0, on>>>(state);
    take_kernel<T><<<grid, kSelectThreads, 0, on>>>(a, candidates, state);
    return launched();
  });
}

CudaError scatter_add(const CudaScatter& a, Element element, CudaStream stream) {
  if (a.count == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    const auto grid = static_cast<unsigned>(divided_up(a.count, kSelectThreads));
    scatter_kernel<decltype(type)><<<grid, kSelectThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}

CudaError orthogonalise(const CudaColumns* matrices, std::int64_t count, Element element, CudaStream stream) {
  return by_wide_type(element, [&](auto type) -> CudaError {
    for (std::int64_t begin = 0; begin < count;) {
      ColumnTables tables{};
      for (; begin < count && tables.count < 100; ++begin) tables.items[tables.count++] = matrices[begin];
      orthogonalise_kernel<decltype(type)>
          <<<static_cast<unsigned>(tables.count), kColumnThreads, 0, to_stream(stream)>>>(tables);
      if (CudaError error = launched()) return error;
    }
    return nullptr;
  });
}

}  // namespace trireme::kernels::gpu
