// kernels/autotune.h -- the autotuner of this process: what it has timed on its GPU, and how it times.
//
// The first call for a key times its variants and remembers the fastest (tuning.h); later calls only look it up. Ranks
// that are threads share the GPU, and so the cache. Timing waits for the GPU.
// Depends on: base, tuning.h.
#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "trireme/device/stream.h"
#include "trireme/kernels/tuning.h"

namespace at {
class Tensor;
}

namespace trireme::kernels {

/// Of the whole process: false leaves GEMMs to ATen and times nothing. True at the start.
void set_gemm_autotune(bool on);
bool gemm_autotune();

/// Takes over what a file says was chosen; no such file: nothing. A file of another card or library is passed over, and
/// the log says so.
void read_tuning_cache(const std::filesystem::path& path);
/// Writes the file where something was chosen since it was last read or written. Cheap where not.
void write_tuning_cache(const std::filesystem::path& path);
/// All that was chosen so far, as in the file; empty where no GPU was used.
std::string tuning_cache_text();

/// One of several ways to the same numbers, which writes `outputs` and nothing else that is read again.
struct Variant {
  const char* name;
  std::function<void()> run;
};
/// The name of the fastest; the first is the plain one, which can always run. Others are left out where they throw an
/// Error, or where `outputs` differ from the plain one's by more than roundings. Timed at the first call for a key;
/// while a CUDA graph is captured the plain one is taken.
std::string fastest_variant(const std::string& key, std::initializer_list<Variant> variants,
                            const std::function<std::vector<at::Tensor>()>& outputs);
/// Microseconds of each variant, the first of which is taken whatever they are; nothing where they were timed before,
/// or while a CUDA graph is captured.
std::map<std::string, double> time_once(const std::string& key, std::initializer_list<Variant> variants);

/// Calls `look` with the cache, which nobody else then looks at or changes. The first call asks the card for its name
/// and reads the file that read_tuning_cache() named.
void with_tuning_cache(const std::function<void(TuningCache& cache)>& look);

/// Microseconds of work on this thread's stream, which is waited for.
class Stopwatch {
 public:
  /// Of one call, of several.
  double us(int calls, const std::function<void()>& call);

 private:
  device::CudaEvent begin_{device::kEventTiming}, end_{device::kEventTiming};
};

double median(std::vector<double> numbers);

}  // namespace trireme::kernels
