// Coarse-grained sparse communication (GradientFlow, Sun et al. 2019): what is compressed lies in one pool (parameters
// with other copies, experts, in another), in chunks
// of equal size; copies add up the chunks' L1 norms, and all-reduce those chunks whose sums are largest. What the
// others hold accumulates, with momentum as in deep gradient compression.
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "trireme/parallel/compress/momentum_memory.h"
#include "trireme/parallel/compress/term_types.h"
#include "trireme/parallel/compress/top_k.h"

// Loops over elements: this room is compiled without vectors otherwise.
#pragma GCC push_options
#pragma GCC optimize("O3")

namespace trireme::parallel {
namespace {

struct ChunkSums {
  double absolute = 0, squares = 0;
};
/// In several sums side by side, which vector registers hold.
template <typename T>
ChunkSums sum_chunk(const T* values, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  std::array<double, kLanes> absolute{}, squares{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      absolute[static_cast<std::size_t>(lane)] += std::abs(value);
      squares[static_cast<std::size_t>(lane)] += value * value;
    }
  }
  ChunkSums sums;
  for (std::size_t lane = 0; lane < kLanes; ++lane) sums.absolute += absolute[lane], sums.squares += squares[lane];
  for (; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    sums.absolute += std::abs(value), sums.squares += value * value;
  }
  return sums;
}

class Csc final : public CompressedReducer {
 public:
  explicit Csc(const ReducerParts& parts)
      : CompressedReducer(parts, Scope::kAll),
        memory_(make_residuals(), make_residuals(), config().momentum.value_or(0)) {
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
  void before_rest(Bucket& bucket, std::span<Term> terms) override { memory_.take_rest(bucket, terms); }
  /// Which chunks are sent, all of them say together: there is nothing to begin with before the last gradient.
  Stages stages(ExchangeLanes& lanes, std::span<Term> terms) override {
    return {[this, &lanes, terms] {
      if (on_gpu()) {
        exchange_pool(lanes.first, terms);
      } else {
        with_element_type(terms.front().data, [&](auto type) { exchange_chunks<decltype(type)>(lanes.first, terms); });
      }
      mutable_report().chunks += chunks(pools_.at(terms.front().copies));
      mutable_report().chunks_sent += sent(pools_.at(terms.front().copies));
      return comm::Work();
    }};
  }

 private:
  std::int64_t chunks(std::int64_t elements) const { return (elements + config().chunk - 1) / config().chunk; }
  std::int64_t sent(std::int64_t elements) const { return kept_elements(chunks(elements), 1 - config().density); }

  /// body(term, where in it, chunk, where in that, elements) for all of the pool: chunks end in the midst of
  /// parameters.
  template <typename Body>
  void for_pieces(std::span<Term> terms, Body&& body) const {
    const std::int64_t size = config().chunk;
    std::int64_t at = 0;  // in the pool
    for (Term& term : terms) {
      for (std::int64_t begin = 0; begin < term.elements();) {
        const std::int64_t count = std::min(term.elements() - begin, size - at % size);
        body(term, begin, at / size, at % size, count);
        begin += count, at += count;
      }
    }
  }

  /// Where gradients lie, without a pool of their own: what is sent goes once into the message and once out of it, and
  /// nothing else is copied.
  template <typename T>
  void exchange_chunks(CopyExchange& exchange, std::span<Term> terms) {
    const std::int64_t size = config().chunk, elements = pools_.at(terms.front().copies), all = chunks(elements);
    for (Term& term : terms) memory_.accumulate(term);
    at::Tensor norms = at::zeros({all}, at::kDouble);
    std::vector<double> squares(static_cast<std::size_t>(all), 0.0);
    for_pieces(terms, [&](Term& term, std::int64_t begin, std::int64_t chunk, std::int64_t, std::int64_t count) {
      const ChunkSums sums = sum_chunk(data_of<T>(memory_.left_of(term)) + begin, count);
      data_of<double>(norms)[chunk] += sums.absolute;
      squares[static_cast<std::size_t>(chunk)] += sums.squares;
    });
    exchange.sum(norms);
    const std::vector<std::uint32_t> chosen = top_k(norms.const_data_ptr<double>(), all, sent(elements), 1.0);
    std::vector<std::int64_t> slot(static_cast<std::size_t>(all), -1);
    for (std::size_t i = 0; i < chosen.size(); ++i) slot[chosen[i]] = static_cast<std::int64_t>(i) * size;
    at::Tensor packed = at::empty({static_cast<std::int64_t>(chosen.size()) * size}, terms.front().data.options());
    T* message = data_of<T>(packed);
    if (slot.back() >= 0) std::fill(message + slot.back(), message + slot.back() + size, T(0));  // it may be shorter
    std::int64_t& copied = mutable_report().copied_elements;
    double left = 0, whole = 0;
    for (std::size_t i = 0; i < slot.size(); ++i) {
      whole += squares[i];
      if (slot[i] < 0) left += squares[i];
    }
    for_pieces(terms, [&](Term& term, std::int64_t begin, std::int64_t chunk, std::int64_t place, std::int64_t count) {
      const std::int64_t at = slot[static_cast<std::size_t>(chunk)];
      if (at < 0) return;
      T *v = data_of<T>(memory_.left_of(term)) + begin, *u = data_of<T>(memory_.momentum_of(term)) + begin;
      std::copy(v, v + count, message + at + place);
      copied += count;
      std::fill(v, v + count, T(0));
      if (config().masking) std::fill(u, u + count, T(0));
    });
    exchange.sum(packed);
    for_pieces(terms, [&](Term& term, std::int64_t begin, std::int64_t chunk, std::int64_t place, std::int64_t count) {
      const std::int64_t at = slot[static_cast<std::size_t>(chunk)];
      T* sum = data_of<T>(term.data) + begin;
      if (at < 0) return std::fill(sum, sum + count, T(0));
      std::copy(message + at + place, message + at + place + count, sum);
      copied += count;
    });
    note_error(terms.front(), left, whole);
  }

  /// On a GPU, where a launch for each piece would take longer than copying all to a pool.
  void exchange_pool(CopyExchange& exchange, std::span<Term> terms) {
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
    exchange.sum(norms);
    const at::Tensor norms_here = norms.cpu();
    const std::vector<std::uint32_t> chosen = top_k(norms_here.const_data_ptr<double>(), all, sent(elements), 1.0);
    at::Tensor places = at::empty({static_cast<std::int64_t>(chosen.size())}, at::kLong);
    std::ranges::copy(chosen, places.mutable_data_ptr<std::int64_t>());
    places = places.to(pool.device());
    at::Tensor packed = by_chunk.index_select(0, places);
    exchange.sum(packed);
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

#pragma GCC pop_options
