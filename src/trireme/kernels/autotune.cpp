#include "trireme/kernels/autotune.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/new_file.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

/// What this process knows.
struct Known {
  std::mutex mutex;
  std::optional<TuningCache> cache;                      // none before a GPU was asked
  std::map<std::filesystem::path, std::size_t> written;  // how many entries are in each file
  std::filesystem::path waiting;                         // a file to read when there is a GPU to compare it with
};
Known& known() {
  static Known all;
  return all;
}

void take_file(TuningCache& cache, const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return;
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (const std::string why = cache.take_json(text, path.string()); !why.empty()) {
    log_warn("{}: kernels are timed again, and bits may differ from those of the run so far", why);
  }
}

TuningCache& cache_of(Known& all) {
  if (!all.cache) {
    const char* card = "";
    std::uint64_t library = 0;
    check_cuda(cuda().tuning_key(&card, &library), "asking for the card");
    all.cache.emplace(TuningKey{.card = card, .library = fmt::format("cuBLASLt {}", library)});
    if (!all.waiting.empty()) take_file(*all.cache, all.waiting);
  }
  return *all.cache;
}

/// Relative, of all numbers. Piece by piece: wide copies of whole tensors would be the largest that the first step has,
/// beyond what was planned for it.
double difference(const at::Tensor& a, const at::Tensor& b) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;
  const std::int64_t row = b.dim() == 0 || b.size(0) == 0 ? 1 : std::max<std::int64_t>(b.numel() / b.size(0), 1);
  const std::int64_t rows = std::max<std::int64_t>(kPiece / row, 1), all = b.dim() == 0 ? 1 : b.size(0);
  double apart = 0, size = 0;
  for (std::int64_t first = 0; first < all; first += rows) {
    const auto piece = [&](const at::Tensor& of) {
      return (of.dim() == 0 ? of : of.narrow(0, first, std::min(rows, all - first))).to(at::kFloat);
    };
    const at::Tensor wide = piece(b);
    size += std::pow(wide.norm().item<double>(), 2);
    apart += std::pow((piece(a) - wide).norm().item<double>(), 2);
  }
  return std::sqrt(apart / (size > 0 ? size : 1));
}

std::atomic<bool> autotune{true};

}  // namespace

void set_gemm_autotune(bool on) { autotune = on; }
bool gemm_autotune() { return autotune.load(std::memory_order_relaxed); }

void with_tuning_cache(const std::function<void(TuningCache& cache)>& look) {
  Known& all = known();
  const std::scoped_lock lock(all.mutex);
  look(cache_of(all));
}

double Stopwatch::us(int calls, const std::function<void()>& call) {
  begin_.record();
  for (int i = 0; i < calls; ++i) call();
  end_.record();
  end_.synchronise();
  return end_.seconds_since(begin_) * 1e6 / calls;
}

double median(std::vector<double> numbers) {
  std::nth_element(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2), numbers.end());
  return numbers[numbers.size() / 2];
}

std::string fastest_variant(const std::string& key, std::initializer_list<Variant> variants,
                            const std::function<std::vector<at::Tensor>()>& outputs) {
  const std::string plain = variants.begin()->name;
  std::string pick;
  with_tuning_cache([&](TuningCache& cache) {
    if (const ChosenVariant* known = cache.variant(key)) {
      pick = known->pick;
    } else if (cuda_capturing()) {
      pick = cache.add_variant(key, {.pick = plain}).pick;
    }
  });
  if (!pick.empty()) return pick;
  // Timed without the lock: variants ask for algorithms themselves. Two ranks may time the same; the first to say so is
  // right.
  Stopwatch watch;
  struct Found {
    const Variant* variant;
    std::vector<double> us;
  };
  std::vector<Found> found;
  std::vector<at::Tensor> expected;
  for (const Variant& variant : variants) {
    try {
      variant.run();
      const std::vector<at::Tensor> made = outputs();
      if (found.empty()) {
        for (const at::Tensor& tensor : made) expected.push_back(tensor.clone());
      } else {
        bool alike = true;
        for (std::size_t i = 0; i < made.size() && alike; ++i) {
          const double apart = difference(made[i], expected[i]);
          alike = apart < 0.02;  // bfloat16 rounds to 0.004; what is NaN or Inf is not alike
          if (!alike) log_warn("{}: {} differs from {} by {:.2g}, and is not used", key, variant.name, plain, apart);
        }
        if (!alike) continue;
      }
    } catch (const Error&) {
      if (found.empty()) throw;
      continue;
    }
    found.push_back({&variant, {}});
  }
  for (int turn = 0; turn < 5; ++turn) {
    for (Found& one : found) one.us.push_back(watch.us(3, one.variant->run));
  }
  ChosenVariant chosen;
  for (const Found& one : found) chosen.us[one.variant->name] = median(one.us);
  chosen.pick = pick_variant(chosen.us, plain);
  with_tuning_cache([&](TuningCache& cache) { pick = cache.add_variant(key, std::move(chosen)).pick; });
  return pick;
}

std::map<std::string, double> time_once(const std::string& key, std::initializer_list<Variant> variants) {
  bool known = false;
  with_tuning_cache([&](TuningCache& cache) { known = cache.variant(key) != nullptr; });
  if (known || cuda_capturing()) return {};
  Stopwatch watch;
  ChosenVariant chosen{.pick = variants.begin()->name};
  for (const Variant& variant : variants) {
    variant.run();
    std::vector<double> turns;
    for (int turn = 0; turn < 3; ++turn) turns.push_back(watch.us(3, variant.run));
    chosen.us[variant.name] = median(turns);
  }
  with_tuning_cache([&](TuningCache& cache) { cache.add_variant(key, chosen); });
  return chosen.us;
}

void read_tuning_cache(const std::filesystem::path& path) {
  Known& all = known();
  const std::scoped_lock lock(all.mutex);
  all.waiting = path;
  if (all.cache) take_file(*all.cache, path);
}

void write_tuning_cache(const std::filesystem::path& path) {
  Known& all = known();
  std::string text;
  {
    const std::scoped_lock lock(all.mutex);
    if (!all.cache) return;
    std::size_t& written = all.written[path];
    if (std::exchange(written, all.cache->size()) == all.cache->size()) return;
    text = all.cache->to_json();
  }
  write_text_file(path, text);
}

std::string tuning_cache_text() {
  Known& all = known();
  const std::scoped_lock lock(all.mutex);
  return all.cache ? all.cache->to_json() : "";
}

}  // namespace trireme::kernels
