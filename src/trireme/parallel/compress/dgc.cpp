// Deep gradient compression (Lin, Han, Mao, Wang, Dally 2018): momentum correction, then of every parameter the largest
// elements of what has accumulated, as places and values; all gather all of them.
#include <fmt/format.h>

#include "trireme/parallel/compress/gpu_codes.h"
#include "trireme/parallel/compress/momentum_memory.h"
#include "trireme/parallel/compress/term_types.h"
#include "trireme/parallel/compress/top_k.h"

namespace trireme::parallel {
namespace {

class Dgc final : public CompressedReducer {
 public:
  explicit Dgc(const ReducerParts& parts)
      : CompressedReducer(parts), memory_(make_residuals(), make_residuals(), config().momentum.value_or(0)) {}

  void step_taken(const TakenStep&) override { memory_.keep(was_dense()); }
  void add_state(nn::State& state) override { memory_.add_state(state); }
  std::int64_t bytes() const override { return memory_.bytes(); }

 protected:
  std::string method() const override {
    return fmt::format("momentum {}{} -> + residual -> largest {:.4g} % -> all-gather of places and values -> sum",
                       memory_.momentum(), config().momentum ? "" : " (compress.momentum is not set)",
                       100 * (1 - config().sparsity));
  }
  double term_bytes(const Term& term) const override {
    const auto width = static_cast<double>(c10::elementSize(term.bucket->gradient_type));
    return (term.copies - 1) * (4 + width) * static_cast<double>(kept_elements(term.elements(), sparsity()));
  }
  void before_dense(Bucket& bucket) override { memory_.take_dense(bucket); }
  bool keeps_dense() const override { return memory_.momentum() > 0; }
  void before_rest() override {
    if (memory_.momentum() > 0) memory_.take_rest(plan(), terms());
  }
  void reduce(std::span<Term> terms) override {
    if (terms.empty()) return;
    if (on_gpu()) return reduce_on_gpu(terms);
    with_element_type(terms.front().data, [&](auto type) { reduce_as<decltype(type)>(terms); });
  }

 private:
  double sparsity() const {
    return warmup_sparsity(config().sparsity, step() - config().start, config().sparsity_warmup);
  }
  void reduce_on_gpu(std::span<Term> terms) {
    SlotLayout layout;
    std::vector<GpuTopKCode> codes;
    for (const Term& term : terms)
      codes.emplace_back(term.elements(), kept_elements(term.elements(), sparsity()),
                         static_cast<std::int64_t>(term.data.element_size()), layout);
    at::Tensor mine = bytes_like(terms.front().data, {layout.bytes()});
    for (std::size_t i = 0; i < terms.size(); ++i) {
      at::Tensor left = memory_.accumulate(terms[i]);
      const at::Tensor whole = squares_of(left);
      codes[i].take(left, config().masking ? memory_.momentum_of(terms[i]) : at::Tensor(), config().sample, mine);
      note_error(terms[i], squares_of(left), whole);
    }
    const at::Tensor all = exchange().all_gather(mine);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      terms[i].data.zero_();
      for (std::int64_t copy = 0; copy < all.size(0); ++copy) codes[i].add(all[copy], terms[i].data);
    }
  }

  template <typename T>
  void reduce_as(std::span<Term> terms) {
    Message mine;
    std::vector<std::int64_t> counts;
    for (Term& term : terms) {
      const at::Tensor left = memory_.accumulate(term), momentum = memory_.momentum_of(term);
      T* v = data_of<T>(left);
      const double whole = squared(left);
      const std::int64_t count = kept_elements(term.elements(), sparsity());
      const std::vector<std::uint32_t> places = top_k(v, term.elements(), count, config().sample);
      std::vector<T> values;
      for (const std::uint32_t place : places) {
        values.push_back(v[place]);
        v[place] = 0;
        if (config().masking) data_of<T>(momentum)[place] = 0;
      }
      put(mine, places.data(), places.size());
      put(mine, values.data(), values.size());
      counts.push_back(count);
      note_error(term, squared(left), whole);
    }
    const std::vector<Message> all = exchange().all_gather_equal(mine);
    for (Term& term : terms) term.data.zero_();
    std::vector<std::uint32_t> places;
    std::vector<T> values;
    for (const Message& message : all) {
      MessageReader reader(message);
      for (std::size_t i = 0; i < terms.size(); ++i) {
        places.resize(static_cast<std::size_t>(counts[i]));
        values.resize(places.size());
        reader.take(places.data(), places.size());
        reader.take(values.data(), values.size());
        T* sum = data_of<T>(terms[i].data);
        for (std::size_t j = 0; j < places.size(); ++j) sum[places[j]] += values[j];
      }
    }
  }

  MomentumMemory memory_;
};

}  // namespace

std::unique_ptr<BucketReducer> make_dgc(const ReducerParts& parts) { return std::make_unique<Dgc>(parts); }

}  // namespace trireme::parallel
