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
  void before_rest(Bucket& bucket, std::span<Term> terms) override { memory_.take_rest(bucket, terms); }
  Stages stages(ExchangeLanes& lanes, std::span<Term> terms) override {
    if (on_gpu()) return {[this, &lanes, terms] { return reduce_on_gpu(lanes.first, terms), comm::Work(); }};
    const auto type = terms.front().bucket->gradient_type;
    return with_element_type(type, [&](auto zero) { return stages_as<decltype(zero)>(lanes, terms); });
  }

 private:
  double sparsity() const {
    return warmup_sparsity(config().sparsity, step() - config().start, config().sparsity_warmup);
  }
  void reduce_on_gpu(CopyExchange& exchange, std::span<Term> terms) {
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
    const at::Tensor all = exchange.all_gather(mine);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      terms[i].data.zero_();
      for (std::int64_t copy = 0; copy < all.size(0); ++copy) codes[i].add(all[copy], terms[i].data);
    }
  }

  template <typename T>
  Stages stages_as(ExchangeLanes& lanes, std::span<Term> terms) {
    const auto mail = std::make_shared<Mail>();  // shared by the stages
    const auto begin = [=, this, &lanes] {
      for (Term& term : terms) take_largest<T>(term, mail->out);
      mail->lengths.assign(static_cast<std::size_t>(lanes.first.copies()), mail->out.size());
      return lanes.first.start_all_gather(*mail);
    };
    const auto end = [=, this] {
      add_all<T>(terms, *mail);
      return comm::Work();
    };
    return {begin, end};
  }
  template <typename T>
  void take_largest(Term& term, Message& mine) {
    const at::Tensor left = memory_.accumulate(term), momentum = memory_.momentum_of(term);
    T* v = data_of<T>(left);
    const double whole = squared(left);
    const std::vector<std::uint32_t> places =
        top_k(v, term.elements(), kept_elements(term.elements(), sparsity()), config().sample);
    std::vector<T> values;
    for (const std::uint32_t place : places) {
      values.push_back(v[place]);
      v[place] = 0;
      if (config().masking) data_of<T>(momentum)[place] = 0;
    }
    put(mine, places.data(), places.size());
    put(mine, values.data(), values.size());
    note_error(term, squared(left), whole);
  }
  template <typename T>
  void add_all(std::span<Term> terms, const Mail& mail) {
    for (Term& term : terms) term.data.zero_();
    std::vector<std::uint32_t> places;
    std::vector<T> values;
    for (MessageReader& reader : readers_of(mail)) {
      for (const Term& term : terms) {
        places.resize(static_cast<std::size_t>(kept_elements(term.elements(), sparsity())));
        values.resize(places.size());
        reader.take(places.data(), places.size());
        reader.take(values.data(), values.size());
        T* sum = data_of<T>(term.data);
        for (std::size_t j = 0; j < places.size(); ++j) sum[places[j]] += values[j];
      }
    }
  }

  MomentumMemory memory_;
};

}  // namespace

std::unique_ptr<BucketReducer> make_dgc(const ReducerParts& parts) { return std::make_unique<Dgc>(parts); }

}  // namespace trireme::parallel
