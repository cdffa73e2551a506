#include "trireme/parallel/compress/scaled_signs.h"

#include <ATen/core/Tensor.h>

#include "trireme/parallel/compress/onebit_code.h"
#include "trireme/parallel/compress/term_types.h"

namespace trireme::parallel {
namespace {

Share1D by_elements(const Term& term, int copy, int copies) { return share_of_copy(term.elements(), copy, copies); }

}  // namespace

ScaledSigns::ScaledSigns(std::span<const Term> terms, Residuals residuals, MeshGroups& groups,
                         const DataParallelOptions& options)
    : terms_(terms), residuals_(std::move(residuals)), owned_(terms, groups, options, by_elements) {}

std::vector<ScaledSigns::Error> ScaledSigns::mean(CopyExchange& exchange, std::vector<at::Tensor>& values,
                                                  const std::vector<at::Tensor>& variances) {
  if (terms_.empty()) return {};
  return with_element_type(values.front(),
                           [&](auto type) { return mean_as<decltype(type)>(exchange, values, variances); });
}

template <typename T>
std::vector<ScaledSigns::Error> ScaledSigns::mean_as(CopyExchange& exchange, std::vector<at::Tensor>& values,
                                                     const std::vector<at::Tensor>& variances) {
  const int copies = exchange.copies(), me = exchange.copy();
  std::vector<Message> out(static_cast<std::size_t>(copies));
  std::vector<Error> errors;
  for (std::size_t i = 0; i < terms_.size(); ++i) {
    const Term& term = terms_[i];
    const at::Tensor kept = term.part_of(residuals_.kept(*term.bucket)),
                     next = term.part_of(residuals_.next(*term.bucket));
    Error& error = errors.emplace_back();
    for (int to = 0; to < copies; ++to) {
      const auto [begin, end] = by_elements(term, to, copies);
      const CodeError part =
          encode_scaled(data_of<T>(values[i]) + begin, data_of<T>(kept) + begin, data_of<T>(next) + begin,
                        data_of<T>(variances[i]) + begin, end - begin, out[static_cast<std::size_t>(to)]);
      error.left += part.left, error.whole += part.whole;
    }
  }
  const std::vector<Message> in = exchange.all_to_all(out);
  std::vector<MessageReader> readers(in.begin(), in.end());
  Message mine;
  std::vector<T> sum;
  for (std::size_t i = 0; i < terms_.size(); ++i) {
    const auto [begin, end] = by_elements(terms_[i], me, copies);
    sum.assign(static_cast<std::size_t>(end - begin), T(0));
    const T* variance = data_of<T>(variances[i]) + begin;
    for (MessageReader& reader : readers)
      add_scaled(reader, variance, end - begin, T(1) / static_cast<T>(copies), sum.data());
    encode_scaled(sum.data(), data_of<T>(owned_.kept(i)), data_of<T>(owned_.next(i)), variance, end - begin, mine);
  }
  const std::vector<Message> all = exchange.all_gather(mine, /*equal=*/false);
  for (at::Tensor& value : values) value.zero_();
  for (int from = 0; from < copies; ++from) {
    MessageReader reader(all[static_cast<std::size_t>(from)]);
    for (std::size_t i = 0; i < terms_.size(); ++i) {
      const auto [begin, end] = by_elements(terms_[i], from, copies);
      add_scaled(reader, data_of<T>(variances[i]) + begin, end - begin, T(1), data_of<T>(values[i]) + begin);
    }
  }
  return errors;
}

void ScaledSigns::keep() {
  residuals_.keep();
  owned_.keep();
}

void ScaledSigns::add_state(nn::State& state) {
  residuals_.add_state(state, "reduce/residual");
  owned_.add_state(state, "reduce/owned-residual");
}

double ScaledSigns::bytes_of(const Term& term, int copies) {
  const auto width = static_cast<double>(c10::elementSize(term.bucket->gradient_type));
  return 2.0 * (copies - 1) * (static_cast<double>(term.elements()) / copies / 8 + width);
}

}  // namespace trireme::parallel
