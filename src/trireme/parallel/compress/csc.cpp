// Coarse-grained sparse communication (GradientFlow, Sun et al. 2019): what is compressed lies in one pool, in chunks
// of equal size; copies add up the chunks' L1 norms, and all-reduce those chunks whose sums are largest. What the
// others hold accumulates, with momentum as in deep gradient compression.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/parallel/compress/momentum_memory.h"
#include "trireme/parallel/compress/term_types.h"
#include "trireme/parallel/compress/top_k.h"

namespace trireme::parallel {
namespace {

class Csc final : public CompressedReducer {
 public:
  explicit Csc(const ReducerParts& parts)
      : CompressedReducer(parts), memory_(make_residuals(), make_residuals(), config().momentum.value_or(0)) {
    for (const Term& term : terms()) pool_ += term.elements();
  }

  void step_taken(const TakenStep&) override { memory_.keep(was_dense()); }
  void add_state(nn::State& state) override { memory_.add_state(state); }
  std::int64_t bytes() const override { return memory_.bytes(); }

 protected:
  std::string method() const override {
    return fmt::format("momentum {}{} -> + residual -> all-reduce of {} chunks' norms -> all-reduce of the {} largest",
                       memory_.momentum(), config().momentum ? "" : " (compress.momentum is not set)", chunks(),
                       sent());
  }
  double term_bytes(const Term& term) const override {
    const auto width = static_cast<double>(c10::elementSize(term.bucket->gradient_type));
    const double part = static_cast<double>(sent()) / static_cast<double>(std::max<std::int64_t>(1, chunks()));
    const auto elements = static_cast<double>(term.elements());
    return 2.0 * (copies() - 1) / copies() * elements * (width * part + 8 / static_cast<double>(config().chunk));
  }
  void before_dense(Bucket& bucket) override { memory_.take_dense(bucket); }
  bool keeps_dense() const override { return memory_.momentum() > 0; }
  void reduce(std::span<Term> terms) override {
    if (memory_.momentum() > 0) memory_.take_rest(plan(), terms);
    if (terms.empty()) return;
    with_element_type(terms.front().data, [&](auto type) { reduce_as<decltype(type)>(terms); });
  }

 private:
  std::int64_t chunks() const { return (pool_ + config().chunk - 1) / config().chunk; }
  std::int64_t sent() const { return chunks() == 0 ? 0 : kept_elements(chunks(), 1 - config().density); }
  template <typename T>
  void reduce_as(std::span<Term> terms) {
    const at::TensorOptions type = terms.front().data.options();
    at::Tensor pool = at::empty({pool_}, type);
    const auto each = [&](const auto& body) {
      std::int64_t at = 0;
      for (Term& term : terms) {
        body(term, pool.narrow(0, at, term.elements()));
        at += term.elements();
      }
    };
    each([&](Term& term, at::Tensor part) { part.copy_(memory_.accumulate(term)); });
    const double whole = squared(pool);
    const T* v = data_of<T>(pool);
    const std::int64_t size = config().chunk;
    at::Tensor norms = at::empty({chunks()}, type.dtype(at::kDouble));
    for (std::int64_t chunk = 0; chunk < chunks(); ++chunk) {
      double norm = 0;
      for (std::int64_t i = chunk * size; i < std::min(pool_, (chunk + 1) * size); ++i)
        norm += std::abs(static_cast<double>(v[i]));
      data_of<double>(norms)[chunk] = norm;
    }
    exchange().sum(norms);
    const std::vector<std::uint32_t> chosen = top_k(data_of<double>(norms), chunks(), sent(), 1.0);
    std::vector<std::pair<std::int64_t, std::int64_t>> stretches;  // begin and length in the pool
    std::int64_t elements = 0;
    for (const std::uint32_t chunk : chosen) {
      const std::int64_t begin = std::int64_t{chunk} * size;
      stretches.emplace_back(begin, std::min(size, pool_ - begin));
      elements += stretches.back().second;
    }
    at::Tensor packed = at::empty({elements}, type);
    std::int64_t at = 0;
    for (const auto& [begin, length] : stretches) {
      packed.narrow(0, at, length).copy_(pool.narrow(0, begin, length));
      at += length;
    }
    exchange().sum(packed);
    // From here the pool holds sums where chunks were sent, and zeros elsewhere.
    at::Tensor mask = at::empty({pool_}, type.dtype(at::kBool)).fill_(false);
    for (const auto& [begin, length] : stretches) mask.narrow(0, begin, length).fill_(true);
    double left = 0;
    std::int64_t place = 0;
    for (Term& term : terms) {
      const at::Tensor sent_here = mask.narrow(0, place, term.elements());
      at::Tensor residual = memory_.left_of(term);
      residual.masked_fill_(sent_here, 0);
      if (config().masking) memory_.momentum_of(term).masked_fill_(sent_here, 0);
      left += squared(residual);
      place += term.elements();
    }
    pool.zero_();
    at = 0;
    for (const auto& [begin, length] : stretches) {
      pool.narrow(0, begin, length).copy_(packed.narrow(0, at, length));
      at += length;
    }
    each([](Term& term, const at::Tensor& part) { term.data.copy_(part); });
    note_error(terms.front(), left, whole);
  }

  MomentumMemory memory_;
  std::int64_t pool_ = 0;
};

}  // namespace

std::unique_ptr<BucketReducer> make_csc(const ReducerParts& parts) { return std::make_unique<Csc>(parts); }

}  // namespace trireme::parallel
