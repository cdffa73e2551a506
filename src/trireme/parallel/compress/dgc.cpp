// Deep gradient compression (Lin, Han, Mao, Wang, Dally 2018): momentum correction, then of every parameter the largest
// elements of what has accumulated, as places and values; all gather all of them.
#include <fmt/format.h>

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
    return (copies() - 1) * (4 + width) * static_cast<double>(kept_elements(term.elements(), sparsity()));
  }
  void before_dense(Bucket& bucket) override { memory_.take_dense(bucket); }
  bool keeps_dense() const override { return memory_.momentum() > 0; }
  void reduce(std::span<Term> terms) override {
    if (memory_.momentum() > 0) memory_.take_rest(plan(), terms);
    if (terms.empty()) return;
    with_element_type(terms.front().data, [&](auto type) { reduce_as<decltype(type)>(terms); });
  }

 private:
  double sparsity() const {
    return warmup_sparsity(config().sparsity, step() - config().start, config().sparsity_warmup);
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
    const std::vector<Message> all = exchange().all_gather(mine, /*equal=*/true);
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
