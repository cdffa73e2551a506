// The fastest of cuBLASLt's algorithms for a GEMM: timed when its key is first met, remembered in the tuning cache.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/kernels/autotune.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/gemm_cublaslt.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kWorkspace = std::int64_t{64} << 20;  // the most that an algorithm may want
constexpr int kAlgorithms = 12;                              // that are looked at
constexpr std::size_t kFinalists = 4;                        // that are timed with care
constexpr const char* kNone = "none: ATen's";

/// What an algorithm depends on; the same as gemm_key(), in numbers.
auto key_of(const CudaGemm& p) {
  return std::tuple{p.a_type,    p.b_type,          p.d_type,       p.epilogue,   p.m,           p.n,           p.k,
                    p.a_stride,  p.b_stride,        p.d_stride,     p.aux_stride, p.transpose_a, p.transpose_b, p.fast,
                    p.alignment, p.bias != nullptr, p.c != nullptr, p.c_stride};
}
using ShapeKey = decltype(key_of(CudaGemm{}));

void launch(const CudaGemm& call, const CudaGemmAlgorithm& algorithm, const at::Tensor& like) {
  // Out of ATen's memory, in the stream's order: two streams never share a workspace, and a CUDA graph keeps its own.
  const at::Tensor workspace =
      algorithm.workspace > 0 ? at::empty({algorithm.workspace}, like.options().dtype(at::kByte)) : at::Tensor();
  void* const place = workspace.defined() ? workspace.mutable_data_ptr() : nullptr;
  const CudaError error = cuda().gemm(call, algorithm, place, cuda_stream());
  if (error != nullptr) check_cuda(error, gemm_key(call));
}

GemmAlgorithm to_cached(const CudaGemmAlgorithm& algorithm) {
  GemmAlgorithm out{.workspace = algorithm.workspace, .described = to_text(algorithm)};
  std::copy(std::begin(algorithm.words), std::end(algorithm.words), out.words.begin());
  return out;
}
CudaGemmAlgorithm from_cached(const GemmAlgorithm& cached) {
  CudaGemmAlgorithm algorithm{.workspace = cached.workspace};
  std::copy(cached.words.begin(), cached.words.end(), std::begin(algorithm.words));
  return algorithm;
}

/// The fastest of the algorithms, in two rounds: once through all, then the best of them in turns.
GemmAlgorithm time_algorithms(CudaGemm call, const std::vector<CudaGemmAlgorithm>& algorithms, const at::Tensor& out) {
  at::Tensor scratch;
  if (call.add && call.c == nullptr) {  // what is in `out` counts
    scratch = at::empty_strided(out.sizes(), out.strides(), out.options());
    call.d = scratch.mutable_data_ptr();
    call.add = false;
  }
  Stopwatch watch;
  struct Timed {
    CudaGemmAlgorithm algorithm;
    double us;
  };
  std::vector<Timed> timed;  // the heuristic's favourite first
  for (const CudaGemmAlgorithm& algorithm : algorithms) {
    try {
      launch(call, algorithm, out);
      timed.push_back({algorithm, watch.us(2, [&] { launch(call, algorithm, out); })});
    } catch (const Error&) {  // one that the library offers and refuses
    }
  }
  if (timed.empty()) return {.described = kNone, .tried = static_cast<int>(algorithms.size())};
  const int tried = static_cast<int>(timed.size());
  std::stable_sort(timed.begin() + 1, timed.end(), [](const Timed& a, const Timed& b) { return a.us < b.us; });
  timed.resize(std::min(timed.size(), kFinalists + 1));
  std::vector<std::vector<double>> turns(timed.size());
  for (int turn = 0; turn < 5; ++turn) {
    for (std::size_t i = 0; i < timed.size(); ++i) {
      turns[i].push_back(watch.us(3, [&] { launch(call, timed[i].algorithm, out); }));
    }
  }
  std::size_t best = 0;
  for (std::size_t i = 0; i < timed.size(); ++i) {
    timed[i].us = median(turns[i]);
    const double least = best == 0 ? timed[0].us * 0.99 : timed[best].us;
    if (timed[i].us < least) best = i;
  }
  GemmAlgorithm fastest = to_cached(timed[best].algorithm);
  fastest.us = timed[best].us;
  fastest.heuristic_us = timed[0].us;
  fastest.tried = tried;
  return fastest;
}

std::optional<CudaGemmAlgorithm> find_algorithm(TuningCache& cache, const CudaGemm& call, const at::Tensor& out) {
  const std::string key = gemm_key(call);
  if (const GemmAlgorithm* cached = cache.gemm(key)) {
    if (cached->described == kNone) return std::nullopt;
    bool fits = false;
    check_cuda(cuda().gemm_fits(call, from_cached(*cached), &fits), key);
    if (fits) return from_cached(*cached);
    log_warn("the algorithm chosen for the GEMM {} does not run here: it is timed again", key);
    cache.drop_gemm(key);
  }
  std::vector<CudaGemmAlgorithm> algorithms(kAlgorithms);
  int found = 0;
  check_cuda(cuda().gemm_algorithms(call, kWorkspace, algorithms.data(), kAlgorithms, &found), key);
  algorithms.resize(static_cast<std::size_t>(found));
  GemmAlgorithm fastest{.described = kNone};
  if (!algorithms.empty()) {
    // While a CUDA graph is captured nothing can be timed: the heuristic's favourite then, and again from now on.
    fastest = cuda_capturing() ? to_cached(algorithms[0]) : time_algorithms(call, algorithms, out);
  }
  const GemmAlgorithm& kept = cache.add_gemm(key, std::move(fastest));
  if (kept.described == kNone) return std::nullopt;
  return from_cached(kept);
}

/// Algorithms that were found, or that there is none: of the whole process, as the tuning cache is.
std::optional<CudaGemmAlgorithm> algorithm_for(const CudaGemm& call, const at::Tensor& out) {
  static std::mutex mutex;
  static std::map<ShapeKey, std::optional<CudaGemmAlgorithm>> ready;
  const ShapeKey key = key_of(call);
  const std::scoped_lock lock(mutex);
  if (const auto found = ready.find(key); found != ready.end()) return found->second;
  std::optional<CudaGemmAlgorithm> algorithm;
  with_tuning_cache([&](TuningCache& cache) { algorithm = find_algorithm(cache, call, out); });
  return ready.emplace(key, algorithm).first->second;
}

}  // namespace

std::string to_text(const CudaGemmAlgorithm& algorithm) {
  return fmt::format("algorithm {} tile {} stages {} split {} reduction {} swizzle {} custom {} inner {} cluster {}",
                     algorithm.algorithm, algorithm.tile, algorithm.stages, algorithm.split_k, algorithm.reduction,
                     algorithm.swizzle, algorithm.custom, algorithm.inner, algorithm.cluster);
}

bool has_algorithm(const CudaGemm& call, const at::Tensor& out) { return algorithm_for(call, out).has_value(); }

void run_cublaslt(const CudaGemm& call, const at::Tensor& out) {
  const auto algorithm = algorithm_for(call, out);
  TRIREME_CHECK(algorithm, "cuBLASLt has no algorithm for the GEMM {}", gemm_key(call));
  launch(call, *algorithm, out);
}

}  // namespace trireme::kernels
