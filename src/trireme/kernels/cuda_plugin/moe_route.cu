// Routers: a warp takes a token, its lanes the experts; arithmetic in double, as nn/moe/router.h has it. Partial sums
// of a chunk of tokens are added up in a fixed order; only whole numbers are counted with atomics.
#include <cfloat>

#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/moe_functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kWarps = 4;
constexpr unsigned kAll = 0xffffffffu;

__device__ __forceinline__ double sigmoid_of(double x) {
  if (x >= 0) return 1 / (1 + exp(-x));
  const double e = exp(x);
  return e / (1 + e);
}

/// Whether (a, i) stands before (b, j): larger, or as large and of a lower number.
__device__ __forceinline__ bool before(double a, int i, double b, int j) { return a > b || (a == b && i < j); }

__device__ __forceinline__ void warp_best(double& value, int& index) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(kAll, value, step);
    const int at = __shfl_xor_sync(kAll, index, step);
    if (before(other, at, value, index)) value = other, index = at;
  }
}

/// What a token's logits come to: of softmax largest and sum, of sigmoid the sum of all.
struct Norm {
  double largest, sum;
  __device__ double probability(double logit) const { return exp(logit - largest) / sum; }
  __device__ double lse() const { return largest + log(sum); }
};

template <typename T>
__device__ Norm softmax_norm(const T* logits, int experts, int lane) {
  double largest = -INFINITY, sum = 0;
  for (int e = lane; e < experts; e += 32) largest = fmax(largest, static_cast<double>(logits[e]));
  largest = warp_max(largest);
  for (int e = lane; e < experts; e += 32) sum += exp(static_cast<double>(logits[e]) - largest);
  return {largest, warp_sum(sum)};
}

template <typename T>
__device__ double sigmoid_sum(const T* logits, int experts, int lane) {
  double sum = 0;
  for (int e = lane; e < experts; e += 32) sum += sigmoid_of(static_cast<double>(logits[e]));
  return fmax(warp_sum(sum), DBL_MIN);
}

/// Experts outside of the best groups get -infinity. `of_groups`: room for a number each.
__device__ void leave_best_groups(const CudaRouteForward& c, double* scores, double* of_groups, int lane) {
  const int groups = static_cast<int>(c.groups), each = static_cast<int>(c.router.experts / c.groups);
  for (int g = lane; g < groups; g += 32) {
    double sum = 0, last = INFINITY;
    int last_at = -1;
    for (int n = 0; n < c.group_best && n < each; ++n) {  // the next in order, again and again
      double best = -INFINITY;
      int at = each;
      for (int i = 0; i < each; ++i) {
        const double v = scores[g * each + i];
        if (before(last, last_at, v, i) && before(v, i, best, at)) best = v, at = i;
      }
      sum += best, last = best, last_at = at;
    }
    of_groups[g] = sum;
  }
  __syncwarp();
  for (int g = lane; g < groups; g += 32) {
    int rank = 0;
    for (int other = 0; other < groups; ++other) rank += before(of_groups[other], other, of_groups[g], g);
    if (rank < c.top_k_groups) continue;
    for (int i = 0; i < each; ++i) scores[g * each + i] = -INFINITY;
  }
  __syncwarp();
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) route(const CudaRouteForward c) {
  extern __shared__ double shared[];
  const CudaRouter& r = c.router;
  const int experts = static_cast<int>(r.experts), k = static_cast<int>(r.top_k);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  double* scores = shared + warp * experts;
  double* sums = shared + (kWarps + warp) * experts;  // of probabilities, over this warp's tokens
  double* of_groups = shared + 2 * kWarps * experts + warp * c.groups;
  double* squares = shared + 2 * kWarps * experts + kWarps * c.groups;
  int* counts = reinterpret_cast<int*>(squares + kWarps);
  for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = 0;
  for (int e = lane; e < experts; e += 32) sums[e] = 0;
  __syncthreads();

  const std::int64_t group = blockIdx.x / r.group_chunks(), chunk = blockIdx.x % r.group_chunks();
  const std::int64_t first = group * r.group_tokens + chunk * kCudaRouteChunk;
  const std::int64_t group_end = min((group + 1) * r.group_tokens, r.tokens);
  const std::int64_t end = min(first + kCudaRouteChunk, group_end);
  double square = 0;
  for (std::int64_t token = first + warp; token < end; token += kWarps) {
    const T* logits = static_cast<const T*>(r.logits) + token * experts;
    Norm norm{0, 1};
    if (r.sigmoid) {
      norm.sum = sigmoid_sum(logits, experts, lane);
    } else {
      norm = softmax_norm(logits, experts, lane);
      square += norm.lse() * norm.lse();
    }
    for (int e = lane; e < experts; e += 32) {
      const double logit = logits[e];
      double score = logit;
      if (r.sigmoid) {
        const double s = sigmoid_of(logit);
        sums[e] += s / norm.sum;
        score = s + (c.bias == nullptr ? 0.0 : static_cast<double>(c.bias[e]));
      } else {
        sums[e] += norm.probability(logit);
      }
      scores[e] = isnan(score) ? -INFINITY : score;  // losses and gates are NaN then; choices stay in range
    }
    __syncwarp();
    if (r.sigmoid && c.groups != c.top_k_groups) leave_best_groups(c, scores, of_groups, lane);

    double last = INFINITY, value = 0, chosen_sum = 0;
    int last_at = -1, mine = 0;
    for (int j = 0; j < k; ++j) {
      double best = -INFINITY;
      int at = experts;
      for (int e = lane; e < experts; e += 32) {
        if (before(last, last_at, scores[e], e) && before(scores[e], e, best, at)) best = scores[e], at = e;
      }
      warp_best(best, at);
      last = best, last_at = at;
      const double logit = logits[at];
      const double weight = r.sigmoid ? sigmoid_of(logit) : norm.probability(logit);
      chosen_sum += weight;
      if (lane == j) mine = at, value = weight;
    }
    double divisor = 1;
    if (r.normalised) divisor = r.sigmoid ? fmax(chosen_sum, DBL_MIN) : chosen_sum;
    const double gate = c.router.scaling * value / divisor;
    int rank = 0;
    for (int j = 0; j < k; ++j) {
      const double other = __shfl_sync(kAll, gate, j);
      const int at = __shfl_sync(kAll, mine, j);
      // Gates that are NaN keep the order in which they were chosen.
      rank += isnan(chosen_sum) ? j < lane : before(other, at, gate, mine);
    }
    if (lane < k) {
      r.chosen[token * k + rank] = mine;
      static_cast<T*>(c.gates)[token * k + rank] = static_cast<T>(gate);
      atomicAdd(&counts[mine], 1);
    }
    __syncwarp();
  }
  if (lane == 0) squares[warp] = square;
  __syncthreads();
  double* partial = c.partial + static_cast<std::int64_t>(blockIdx.x) * (experts + 1);
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += shared[(kWarps + w) * experts + e];
    partial[e] = sum;
    if (counts[e] > 0) atomicAdd(&r.counts[group * experts + e], counts[e]);
  }
  if (threadIdx.x == 0) {
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += squares[w];
    partial[experts] = sum;
  }
}

/// One block: sums of groups from those of chunks, then the terms.
__global__ void __launch_bounds__(1024) losses(const CudaRouteForward c) {
  const CudaRouter& r = c.router;
  const std::int64_t groups = r.balance_groups(), chunks = r.group_chunks(), experts = r.experts;
  for (std::int64_t i = threadIdx.x; i < groups * experts; i += blockDim.x) {
    const double* from = c.partial + i / experts * chunks * (experts + 1) + i % experts;
    double sum = 0;
#pragma unroll 8
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += from[chunk * (experts + 1)];
    c.room[i] = sum * r.counts[i];
  }
  __syncthreads();
  // A warp takes a group after the other.
  __shared__ double parts[32][3];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  double aux = 0, z = 0, load = 0;
  for (std::int64_t g = warp; g < groups; g += 32) {
    const std::int64_t tokens = min(r.group_tokens, r.tokens - g * r.group_tokens);
    const double samples = static_cast<double>(tokens / r.sample_tokens), total = static_cast<double>(tokens * r.top_k);
    double sum = 0, square = 0;
    int most = 0;
    for (std::int64_t e = lane; e < experts; e += 32) {
      sum += c.room[g * experts + e];
      most = max(most, r.counts[g * experts + e]);
    }
    for (std::int64_t chunk = lane; chunk < chunks; chunk += 32) {
      square += c.partial[(g * chunks + chunk) * (experts + 1) + experts];
    }
    sum = warp_sum(sum), square = warp_sum(square), most = warp_max(most);
    aux += samples * static_cast<double>(experts) * sum / (total * static_cast<double>(tokens));
    z += samples * square / static_cast<double>(tokens);
    load += samples * most * static_cast<double>(experts) / total;
  }
  if (lane == 0) parts[warp][0] = aux, parts[warp][1] = z, parts[warp][2] = load;
  __syncthreads();
  if (threadIdx.x >= 3) return;
  double sum = 0;
  for (int i = 0; i < 32; ++i) sum += parts[i][threadIdx.x];
  c.terms[2 * threadIdx.x] = sum;
  c.terms[2 * threadIdx.x + 1] = static_cast<double>(r.tokens / r.sample_tokens);
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) route_backward(const CudaRouteBackward c) {
  extern __shared__ double shared[];
  const CudaRouter& r = c.router;
  const int experts = static_cast<int>(r.experts), k = static_cast<int>(r.top_k);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  double* grad = shared + warp * experts;
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (token >= r.tokens) return;
  const T* logits = static_cast<const T*>(r.logits) + token * experts;
  const std::int64_t group = token / r.group_tokens;
  const std::int64_t group_tokens = min(r.group_tokens, r.tokens - group * r.group_tokens);
  const double tokens = static_cast<double>(group_tokens), total = tokens * k;
  const double scale = (c.scale_here == nullptr ? c.scale : static_cast<double>(*static_cast<const T*>(c.scale_here))) *
                       static_cast<double>(group_tokens / r.sample_tokens);
  const double seed = scale * c.aux_weight * experts / (total * tokens);
  const std::int32_t* counts = r.counts + group * experts;

  Norm norm{0, 1};
  if (r.sigmoid) {
    norm.sum = sigmoid_sum(logits, experts, lane);
  } else {
    norm = softmax_norm(logits, experts, lane);
  }
  // Of the auxiliary loss: with respect to p; of sigmoid's shares, to s.
  double mean = 0;
  for (int e = lane; r.sigmoid && e < experts; e += 32) mean += seed * counts[e] * (sigmoid_of(logits[e]) / norm.sum);
  mean = warp_sum(mean);
  for (int e = lane; e < experts; e += 32) {
    grad[e] = r.sigmoid ? (seed * counts[e] - mean) / norm.sum : seed * counts[e];
  }
  __syncwarp();
  // Of the gates.
  int mine = 0;
  double of_gate = 0, weight = 0;
  if (lane < k) {
    mine = r.chosen[token * k + lane];
    of_gate = static_cast<const T*>(c.grad_gates)[c.row_of[token * k + lane]];
    weight = r.sigmoid ? sigmoid_of(logits[mine]) : norm.probability(logits[mine]);
  }
  double sum = 0, dot = 0;
  for (int j = 0; j < k; ++j) {
    const double other = __shfl_sync(kAll, weight, j);
    sum += other;
    dot += __shfl_sync(kAll, of_gate, j) * other;
  }
  const bool vanished = r.sigmoid && r.normalised && sum < DBL_MIN;  // nothing to divide by: no gradient
  if (lane < k && !vanished) {
    grad[mine] += r.scaling * (r.normalised ? (of_gate - dot / sum) / sum : of_gate);
  }
  __syncwarp();
  const auto write = [&](int e, double value) {
    if (c.grad_logits != nullptr) static_cast<T*>(c.grad_logits)[token * experts + e] = static_cast<T>(value);
    if (c.grad_pairs == nullptr) return;
    Bf16* const pair = static_cast<Bf16*>(c.grad_pairs) + token * 2 * experts + e;
    pair[0] = __float2bfloat16_rn(static_cast<float>(value));
    pair[experts] = __float2bfloat16_rn(static_cast<float>(value - static_cast<double>(__bfloat162float(pair[0]))));
  };
  if (r.sigmoid) {
    for (int e = lane; e < experts; e += 32) {
      const double s = sigmoid_of(logits[e]);
      write(e, grad[e] * s * (1 - s));
    }
    return;
  }
  double inner = 0;
  for (int e = lane; e < experts; e += 32) inner += norm.probability(logits[e]) * grad[e];
  inner = warp_sum(inner);
  const double z = c.z_weight == 0 ? 0 : 2 * scale * c.z_weight / tokens * norm.lse();
  for (int e = lane; e < experts; e += 32) {
    write(e, norm.probability(logits[e]) * (grad[e] - inner + z));
  }
}

/// A block takes an expert and goes through all tokens, 1024 at a time, in order.
template <typename T>
__global__ void __launch_bounds__(1024) order_rows(const CudaRowOrder c) {
  const CudaRouter& r = c.router;
  const int expert = static_cast<int>(blockIdx.x), k = static_cast<int>(r.top_k);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __shared__ int in_warps[2][32];
  int rows_before = 0, own = 0;
  for (std::int64_t i = threadIdx.x; i < r.balance_groups() * r.experts; i += blockDim.x) {
    const int e = static_cast<int>(i % r.experts);
    if (e < expert) rows_before += r.counts[i];
    if (e == expert) own += r.counts[i];
  }
  rows_before = sum_over<1024>(rows_before);
  own = sum_over<1024>(own);
  if (threadIdx.x == 0) c.ends[expert] = rows_before + own;
  int turn = 0;
  for (std::int64_t first = 0; first < r.tokens; first += 1024, turn ^= 1) {
    const std::int64_t token = first + threadIdx.x;
    int slot = -1;
    for (int j = 0; token < r.tokens && j < k; ++j) {
      if (r.chosen[token * k + j] == expert) slot = j;
    }
    const unsigned here = __ballot_sync(kAll, slot >= 0);
    if (lane == 0) in_warps[turn][warp] = __popc(here);
    __syncthreads();  // the other half of in_warps may still be read: hence two
    const int of_warp = in_warps[turn][lane];
    int place = of_warp;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int left = __shfl_up_sync(kAll, place, step);
      if (lane >= step) place += left;
    }
    const int total = __shfl_sync(kAll, place, 31), of_warps_before = __shfl_sync(kAll, place - of_warp, warp);
    if (slot >= 0) {
      const int row = rows_before + of_warps_before + __popc(here & ((1u << lane) - 1));
      c.row_of[token * k + slot] = row;
      static_cast<T*>(c.row_gates)[row] = static_cast<const T*>(c.gates)[token * k + slot];
    }
    rows_before += total;
  }
}

/// body(T()) for float or double.
template <typename Body>
CudaError by_logit(Element element, Body&& body) {
  return element == Element::kDouble ? body(double()) : body(float());
}

}  // namespace

CudaError moe_route(const CudaRouteForward& c, CudaStream stream) {
  const CudaRouter& r = c.router;
  if (r.tokens == 0) return nullptr;
  const std::size_t bytes =
      sizeof(double) * static_cast<std::size_t>(2 * kWarps * r.experts + kWarps * c.groups + kWarps) +
      sizeof(int) * static_cast<std::size_t>(r.experts);
  const cudaError_t cleared = cudaMemsetAsync(
      r.counts, 0, sizeof(std::int32_t) * static_cast<std::size_t>(r.balance_groups() * r.experts), to_stream(stream));
  if (cleared != cudaSuccess) return cudaGetErrorString(cleared);
  const auto blocks = static_cast<unsigned>(r.balance_groups() * r.group_chunks());
  return by_logit(r.element, [&](auto type) -> CudaError {
    using T = decltype(type);
    if (CudaError error = allow_shared(route<T>, bytes)) return error;
    route<T><<<blocks, 32 * kWarps, bytes, to_stream(stream)>>>(c);
    losses<<<1, 1024, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

CudaError moe_route_backward(const CudaRouteBackward& c, CudaStream stream) {
  const CudaRouter& r = c.router;
  if (r.tokens == 0) return nullptr;
  const std::size_t bytes = sizeof(double) * static_cast<std::size_t>(kWarps * r.experts);
  return by_logit(r.element, [&](auto type) -> CudaError {
    using T = decltype(type);
    if (CudaError error = allow_shared(route_backward<T>, bytes)) return error;
    route_backward<T>
        <<<static_cast<unsigned>(divided_up(r.tokens, kWarps)), 32 * kWarps, bytes, to_stream(stream)>>>(c);
    return launched();
  });
}

CudaError moe_order_rows(const CudaRowOrder& c, CudaStream stream) {
  if (c.router.experts == 0) return nullptr;
  return by_logit(c.router.element, [&](auto type) -> CudaError {
    using T = decltype(type);
    order_rows<T><<<static_cast<unsigned>(c.router.experts), 1024, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
