// 1-bit SGD (Seide, Fu, Droppo, Li, Yu 2014): one bit an element and two means a row (the paper's column: one unit's
// weights). Every copy owns 1 / N of each parameter's rows: it sums what all say of them in full, and says the sum in
// one bit again, with a residual of its own.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "trireme/layout/placing.h"
#include "trireme/nn/state.h"
#include "trireme/parallel/compress/compressed_reducer.h"
#include "trireme/parallel/compress/gpu_codes.h"
#include "trireme/parallel/compress/onebit_code.h"
#include "trireme/parallel/compress/owned_residuals.h"
#include "trireme/parallel/compress/term_types.h"

namespace trireme::parallel {
namespace {

class OnebitSgd final : public CompressedReducer {
 public:
  explicit OnebitSgd(const ReducerParts& parts)
      : CompressedReducer(parts), residuals_(make_residuals()), owned_(terms(), groups(), options(), by_rows) {}

  void step_taken(const TakenStep&) override {
    if (was_dense()) return;
    residuals_.keep();
    owned_.keep();
  }
  void add_state(nn::State& state) override {
    residuals_.add_state(state, "reduce/residual");
    owned_.add_state(state, "reduce/owned-residual");
  }
  std::int64_t bytes() const override { return residuals_.bytes() + owned_.bytes(); }

 protected:
  std::string method() const override {
    return "+ residual -> 1 bit an element, two means a row -> all-to-all, each copy sums its rows, + its residual -> "
           "1 "
           "bit, all-gather -> decompress";
  }
  double term_bytes(const Term& term) const override {
    const auto width = static_cast<std::int64_t>(c10::elementSize(term.bucket->gradient_type));
    return 2.0 * (term.copies - 1) / term.copies * static_cast<double>(row_code_bytes(term.rows, term.columns, width));
  }
  Stages stages(ExchangeLanes& lanes, std::span<Term> terms) override {
    if (on_gpu()) return {[this, &lanes, terms] { return reduce_on_gpu(lanes.first, terms), comm::Work(); }};
    const auto type = terms.front().bucket->gradient_type;
    return with_element_type(type, [&](auto zero) { return stages_as<decltype(zero)>(lanes, terms); });
  }

 private:
  static Share1D by_rows(const Term& term, int copy, int copies) {
    const Share1D rows = share_of_copy(term.rows, copy, copies);
    return {rows.begin * term.columns, rows.end * term.columns};
  }

  void reduce_on_gpu(CopyExchange& exchange, std::span<Term> terms) {
    const int copies = exchange.copies(), me = exchange.copy();
    const auto width = static_cast<std::int64_t>(terms.front().data.element_size());
    SlotLayout layout;
    std::vector<GpuRowCode> codes;
    for (const Term& term : terms) codes.emplace_back(term.rows, term.columns, copies, width, layout);
    const at::Tensor out = bytes_like(terms.front().data, {copies, layout.bytes()});
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const Term& term = terms[i];
      const at::Tensor errors = codes[i]
                                    .encode(term.data, term.part_of(residuals_.kept(*term.bucket)),
                                            term.part_of(residuals_.next(*term.bucket)), term.rows, out)
                                    .sum(0);
      note_error(term, errors[0], errors[1]);
    }
    const at::Tensor in = exchange.all_to_all(out), mine = bytes_like(out, {layout.bytes()});
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const std::int64_t rows = share_of_copy(terms[i].rows, me, copies).size();
      at::Tensor sum = at::empty({rows * terms[i].columns}, terms[i].data.options());
      codes[i].decode_sum(in, rows, sum);
      codes[i].encode(sum, owned_.kept(terms[i].number), owned_.next(terms[i].number), rows, mine);
    }
    const at::Tensor all = exchange.all_gather(mine);
    for (std::size_t i = 0; i < terms.size(); ++i) codes[i].decode_all(all, terms[i].data);
  }

  template <typename T>
  Stages stages_as(ExchangeLanes& lanes, std::span<Term> terms) {
    struct Letters {
      Mail to_owners, to_all;
    };
    const auto letters = std::make_shared<Letters>();  // shared by the stages
    return {[=, this, &lanes] { return say<T>(lanes.first, terms, letters->to_owners, letters->to_all); },
            [=, this, &lanes] { return answer<T>(lanes.second, terms, letters->to_owners, letters->to_all); },
            [=, this] {
              take<T>(terms, letters->to_all);
              return comm::Work();
            }};
  }
  template <typename T>
  comm::Work say(CopyExchange& exchange, std::span<Term> terms, Mail& to_owners, Mail& to_all) {
    const int copies = exchange.copies();
    std::vector<Message> out(static_cast<std::size_t>(copies));
    for (const Term& term : terms) {
      const at::Tensor kept = term.part_of(residuals_.kept(*term.bucket)),
                       next = term.part_of(residuals_.next(*term.bucket));
      CodeError error;
      for (int to = 0; to < copies; ++to) {
        const Share1D rows = share_of_copy(term.rows, to, copies);
        const std::int64_t at = rows.begin * term.columns;
        const CodeError part = encode_rows(data_of<T>(term.data) + at, data_of<T>(kept) + at, data_of<T>(next) + at,
                                           rows.size(), term.columns, out[static_cast<std::size_t>(to)]);
        error.left += part.left, error.whole += part.whole;
      }
      note_error(term, error.left, error.whole);
    }
    to_all.lengths = lengths_of(out);  // a share's sum takes as many bytes as what is said of it
    return exchange.start_all_to_all(out, to_owners);
  }
  template <typename T>
  comm::Work answer(CopyExchange& exchange, std::span<Term> terms, const Mail& to_owners, Mail& to_all) {
    std::vector<MessageReader> readers = readers_of(to_owners);
    std::vector<T> sum;
    for (const Term& term : terms) {
      const Share1D rows = share_of_copy(term.rows, exchange.copy(), term.copies);
      sum.assign(static_cast<std::size_t>(rows.size() * term.columns), T(0));
      for (MessageReader& reader : readers) add_rows(reader, rows.size(), term.columns, sum.data());
      encode_rows(sum.data(), data_of<T>(owned_.kept(term.number)), data_of<T>(owned_.next(term.number)), rows.size(),
                  term.columns, to_all.out);
    }
    return exchange.start_all_gather(to_all);
  }
  template <typename T>
  static void take(std::span<Term> terms, const Mail& to_all) {
    for (Term& term : terms) term.data.zero_();
    int from = 0;
    for (MessageReader& reader : readers_of(to_all)) {
      for (const Term& term : terms) {
        const Share1D rows = share_of_copy(term.rows, from, term.copies);
        add_rows(reader, rows.size(), term.columns, data_of<T>(term.data) + rows.begin * term.columns);
      }
      ++from;
    }
  }

  Residuals residuals_;
  OwnedResiduals owned_;
};

}  // namespace

std::unique_ptr<BucketReducer> make_onebit_sgd(const ReducerParts& parts) { return std::make_unique<OnebitSgd>(parts); }

}  // namespace trireme::parallel
