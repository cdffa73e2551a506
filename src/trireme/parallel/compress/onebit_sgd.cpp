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
  void reduce(std::span<Term> terms) override {
    if (terms.empty()) return;
    if (on_gpu()) return reduce_on_gpu(terms);
    with_element_type(terms.front().data, [&](auto type) { reduce_as<decltype(type)>(terms); });
  }

 private:
  static Share1D by_rows(const Term& term, int copy, int copies) {
    const Share1D rows = share_of_copy(term.rows, copy, copies);
    return {rows.begin * term.columns, rows.end * term.columns};
  }

  void reduce_on_gpu(std::span<Term> terms) {
    const int copies = exchange().copies(), me = exchange().copy();
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
    const at::Tensor in = exchange().all_to_all(out), mine = bytes_like(out, {layout.bytes()});
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const std::int64_t rows = share_of_copy(terms[i].rows, me, copies).size();
      at::Tensor sum = at::empty({rows * terms[i].columns}, terms[i].data.options());
      codes[i].decode_sum(in, rows, sum);
      codes[i].encode(sum, owned_.kept(terms[i].number), owned_.next(terms[i].number), rows, mine);
    }
    const at::Tensor all = exchange().all_gather(mine);
    for (std::size_t i = 0; i < terms.size(); ++i) codes[i].decode_all(all, terms[i].data);
  }

  template <typename T>
  void reduce_as(std::span<Term> terms) {
    const int copies = exchange().copies(), me = exchange().copy();
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
    const std::vector<Message> in = exchange().all_to_all(out);
    std::vector<MessageReader> readers(in.begin(), in.end());
    Message mine;
    std::vector<T> sum;
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const Share1D rows = share_of_copy(terms[i].rows, me, copies);
      sum.assign(static_cast<std::size_t>(rows.size() * terms[i].columns), T(0));
      for (MessageReader& reader : readers) add_rows(reader, rows.size(), terms[i].columns, sum.data());
      encode_rows(sum.data(), data_of<T>(owned_.kept(terms[i].number)), data_of<T>(owned_.next(terms[i].number)),
                  rows.size(), terms[i].columns, mine);
    }
    // A share's sum takes as many bytes as what was said of it.
    const std::vector<Message> all = exchange().all_gather(mine, lengths_of(out));
    for (Term& term : terms) term.data.zero_();
    for (int from = 0; from < copies; ++from) {
      MessageReader reader(all[static_cast<std::size_t>(from)]);
      for (const Term& term : terms) {
        const Share1D rows = share_of_copy(term.rows, from, copies);
        add_rows(reader, rows.size(), term.columns, data_of<T>(term.data) + rows.begin * term.columns);
      }
    }
  }

  Residuals residuals_;
  OwnedResiduals owned_;
};

}  // namespace

std::unique_ptr<BucketReducer> make_onebit_sgd(const ReducerParts& parts) { return std::make_unique<OnebitSgd>(parts); }

}  // namespace trireme::parallel
