// Coarse-grained sparse communication (GradientFlow, Sun et al. 2019): what is compressed lies in one pool (parameters
// with other copies, experts, in another), in chunks
// of equal size; copies add up the chunks' L1 norms, and all-reduce those chunks whose sums are largest. What the
// others hold accumulates, with momentum as in deep gradient compression.
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "trireme/parallel/compress/momentum_memory.h"
#include "trireme/parallel/compress/top_k.h"

namespace trireme::parallel {
namespace {

class Csc final : public CompressedReducer {
 public:
  explicit Csc(const ReducerParts& parts)
      : CompressedReducer(parts), memory_(make_residuals(), make_residuals(), config().momentum.value_or(0)) {
    for (const Term& term : terms()) pools_[term.copies] += term.elements();
  }

  void step_taken(const TakenStep&) override { memory_.keep(was_dense()); }
  void add_state(nn::State& state) override { memory_.add_state(state); }
  std::int64_t bytes() const override { return memory_.bytes(); }

 protected:
  std::string method() const override {
    std::int64_t all = 0, largest = 0;
    for (const auto& [copies, elements] : pools_) all += chunks(elements), largest += sent(elements);
    return fmt::format("momentum {}{} -> + residual -> all-reduce of {} chunks' norms -> all-reduce of the {} largest",
                       memory_.momentum(), config().momentum ? "" : " (compress.momentum is not set)", all, largest);
  }
  double term_bytes(const Term& term) const override {
    const auto width = static_cast<double>(c10::elementSize(term.bucket->gradient_type));
    const std::int64_t pool = pools_.at(term.copies);
    const double part = static_cast<double>(sent(pool)) / static_cast<double>(chunks(pool));
    const auto elements = static_cast<double>(term.elements());
    return 2.0 * (term.copies - 1) / term.copies * elements * (width * part + 8 / static_cast<double>(config().chunk));
  }
  void before_dense(Bucket& bucket) override { memory_.take_dense(bucket); }
  bool keeps_dense() const override { return memory_.momentum() > 0; }
  void before_rest() override {
    if (memory_.momentum() > 0) memory_.take_rest(plan(), terms());
  }
  void reduce(std::span<Term> terms) override {
    if (!terms.empty()) exchange_chunks(terms);
  }

 private:
  std::int64_t chunks(std::int64_t elements) const { return (elements + config().chunk - 1) / config().chunk; }
  std::int64_t sent(std::int64_t elements) const { return kept_elements(chunks(elements), 1 - config().density); }
  void exchange_chunks(std::span<Term> terms) {
    const at::TensorOptions type = terms.front().data.options();
    const std::int64_t size = config().chunk, elements = pools_.at(terms.front().copies), all = chunks(elements);
    at::Tensor pool = at::empty({all * size}, type);  // the last chunk is filled up with zeros
    pool.narrow(0, elements, pool.numel() - elements).zero_();
    const auto each = [&](const auto& body) {
      std::int64_t at = 0;
      for (Term& term : terms) {
        body(term, pool.narrow(0, at, term.elements()));
        at += term.elements();
      }
    };
    each([&](Term& term, at::Tensor part) { part.copy_(memory_.accumulate(term)); });
    const at::Tensor whole = squares_of(pool), by_chunk = pool.view({all, size});
    at::Tensor norms = at::linalg_vector_norm(by_chunk, 1, at::IntArrayRef{1}, false, at::kDouble);
    exchange().sum(norms);
    const at::Tensor norms_here = norms.cpu();
    const std::vector<std::uint32_t> chosen = top_k(norms_here.const_data_ptr<double>(), all, sent(elements), 1.0);
    at::Tensor places = at::empty({static_cast<std::int64_t>(chosen.size())}, at::kLong);
    std::ranges::copy(chosen, places.mutable_data_ptr<std::int64_t>());
    places = places.to(pool.device());
    at::Tensor packed = by_chunk.index_select(0, places);
    exchange().sum(packed);
    const at::Tensor mask = at::zeros({all, 1}, type.dtype(at::kBool)).index_fill_(0, places, true);
    const at::Tensor sent_places = mask.expand({all, size}).reshape({-1});
    at::Tensor left;
    std::int64_t place = 0;
    for (Term& term : terms) {
      const at::Tensor sent_here = sent_places.narrow(0, place, term.elements());
      at::Tensor residual = memory_.left_of(term);
      residual.masked_fill_(sent_here, 0);
      if (config().masking) memory_.momentum_of(term).masked_fill_(sent_here, 0);
      left = left.defined() ? left.add_(squares_of(residual)) : squares_of(residual);
      place += term.elements();
    }
    // From here the pool holds sums where chunks were sent, and zeros elsewhere.
    pool.zero_();
    pool.view({all, size}).index_copy_(0, places, packed);
    each([](Term& term, const at::Tensor& part) { term.data.copy_(part); });
    note_error(terms.front(), left, whole);
  }

  MomentumMemory memory_;
  std::map<int, std::int64_t> pools_;  // elements, by the copies that they have
};

}  // namespace

std::unique_ptr<BucketReducer> make_csc(const ReducerParts& parts) { return std::make_unique<Csc>(parts); }

}  // namespace trireme::parallel
