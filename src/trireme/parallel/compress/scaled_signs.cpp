#include "trireme/parallel/compress/scaled_signs.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "trireme/parallel/compress/gpu_codes.h"
#include "trireme/parallel/compress/onebit_code.h"
#include "trireme/parallel/compress/term_types.h"

namespace trireme::parallel {
namespace {

Share1D by_elements(const Term& term, int copy, int copies) { return share_of_copy(term.elements(), copy, copies); }

}  // namespace

ScaledSigns::ScaledSigns(std::span<const Term> terms, Residuals residuals, MeshGroups& groups,
                         const DataParallelOptions& options)
    : residuals_(std::move(residuals)), owned_(terms, groups, options, by_elements) {}

std::vector<ScaledSigns::Error> ScaledSigns::mean(CopyExchange& exchange, std::span<const Term> terms,
                                                  std::vector<at::Tensor>& values,
                                                  const std::vector<at::Tensor>& variances) {
  if (terms.empty()) return {};
  if (values.front().is_cuda()) return mean_on_gpu(exchange, terms, values, variances);
  return with_element_type(values.front(),
                           [&](auto type) { return mean_as<decltype(type)>(exchange, terms, values, variances); });
}

std::vector<ScaledSigns::Error> ScaledSigns::mean_on_gpu(CopyExchange& exchange, std::span<const Term> terms,
                                                         std::vector<at::Tensor>& values,
                                                         const std::vector<at::Tensor>& variances) {
  const int copies = exchange.copies(), me = exchange.copy();
  SlotLayout layout;
  std::vector<GpuScaledCode> codes;
  for (const Term& term : terms) codes.emplace_back(term.elements(), copies, layout);
  const at::Tensor out = bytes_like(values.front(), {copies, layout.bytes()});
  std::vector<at::Tensor> errors;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const Bucket& bucket = *terms[i].bucket;
    errors.push_back(codes[i]
                         .encode(values[i], terms[i].part_of(residuals_.kept(bucket)),
                                 terms[i].part_of(residuals_.next(bucket)), variances[i], out)
                         .sum(0));
  }
  const at::Tensor in = exchange.all_to_all(out), mine = bytes_like(out, {layout.bytes()});
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const Share1D share = by_elements(terms[i], me, copies);
    const at::Tensor variance = variances[i].narrow(0, share.begin, share.size());
    at::Tensor mean = at::empty({share.size()}, values[i].options());
    codes[i].decode_mean(in, variance, mean);
    codes[i].encode(mean, owned_.kept(terms[i].number), owned_.next(terms[i].number), variance, mine);
  }
  const at::Tensor all = exchange.all_gather(mine);
  for (std::size_t i = 0; i < terms.size(); ++i) codes[i].decode_all(all, variances[i], values[i]);
  const at::Tensor here = at::stack(errors).cpu();
  std::vector<Error> result;
  for (std::size_t i = 0; i < errors.size(); ++i)
    result.push_back({here.const_data_ptr<double>()[2 * i], here.const_data_ptr<double>()[2 * i + 1]});
  return result;
}

template <typename T>
std::vector<ScaledSigns::Error> ScaledSigns::mean_as(CopyExchange& exchange, std::span<const Term> terms,
                                                     std::vector<at::Tensor>& values,
                                                     const std::vector<at::Tensor>& variances) {
  const int copies = exchange.copies(), me = exchange.copy();
  std::vector<Message> out(static_cast<std::size_t>(copies));
  std::vector<Error> errors;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const Term& term = terms[i];
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
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const auto [begin, end] = by_elements(terms[i], me, copies);
    sum.assign(static_cast<std::size_t>(end - begin), T(0));
    const T* variance = data_of<T>(variances[i]) + begin;
    for (MessageReader& reader : readers)
      add_scaled(reader, variance, end - begin, T(1) / static_cast<T>(copies), sum.data());
    encode_scaled(sum.data(), data_of<T>(owned_.kept(terms[i].number)), data_of<T>(owned_.next(terms[i].number)),
                  variance, end - begin, mine);
  }
  // A share's mean takes as many bytes as what was said of it.
  const std::vector<Message> all = exchange.all_gather(mine, lengths_of(out));
  for (at::Tensor& value : values) value.zero_();
  for (int from = 0; from < copies; ++from) {
    MessageReader reader(all[static_cast<std::size_t>(from)]);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const auto [begin, end] = by_elements(terms[i], from, copies);
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
