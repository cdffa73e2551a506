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

comm::Work ScaledSigns::begin(CopyExchange& exchange, Round& round) {
  if (round.terms.empty()) return {};
  return with_element_type(round.values.front(), [&](auto type) { return begin_as<decltype(type)>(exchange, round); });
}

comm::Work ScaledSigns::answer(CopyExchange& exchange, Round& round) {
  if (round.terms.empty()) return {};
  return with_element_type(round.values.front(), [&](auto type) { return answer_as<decltype(type)>(exchange, round); });
}

void ScaledSigns::end(const CopyExchange& exchange, Round& round) {
  if (round.terms.empty()) return;
  with_element_type(round.values.front(), [&](auto type) { end_as<decltype(type)>(exchange, round); });
}

void ScaledSigns::mean(CopyExchange& exchange, Round& round) {
  if (round.terms.empty()) return;
  if (round.values.front().is_cuda()) return mean_on_gpu(exchange, round);
  exchange.wait(begin(exchange, round));
  exchange.wait(answer(exchange, round));
  end(exchange, round);
}

void ScaledSigns::mean_on_gpu(CopyExchange& exchange, Round& round) {
  auto& [terms, values, variances, found, to_owners, to_all] = round;
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
  for (std::size_t i = 0; i < errors.size(); ++i)
    found.push_back({here.const_data_ptr<double>()[2 * i], here.const_data_ptr<double>()[2 * i + 1]});
}

template <typename T>
comm::Work ScaledSigns::begin_as(CopyExchange& exchange, Round& round) {
  const int copies = exchange.copies();
  std::vector<Message> out(static_cast<std::size_t>(copies));
  for (std::size_t i = 0; i < round.terms.size(); ++i) {
    const Term& term = round.terms[i];
    const at::Tensor kept = term.part_of(residuals_.kept(*term.bucket)),
                     next = term.part_of(residuals_.next(*term.bucket));
    const T *values = data_of<T>(round.values[i]), *variance = data_of<T>(round.variances[i]);
    Error& error = round.errors.emplace_back();
    for (int to = 0; to < copies; ++to) {
      const auto [begin, end] = by_elements(term, to, copies);
      const CodeError part = encode_scaled(values + begin, data_of<T>(kept) + begin, data_of<T>(next) + begin,
                                           variance + begin, end - begin, out[static_cast<std::size_t>(to)]);
      error.left += part.left, error.whole += part.whole;
    }
  }
  // A share's mean takes as many bytes as what is said of it.
  round.to_all.lengths = lengths_of(out);
  return exchange.start_all_to_all(out, round.to_owners);
}

template <typename T>
comm::Work ScaledSigns::answer_as(CopyExchange& exchange, Round& round) {
  const int copies = exchange.copies();
  std::vector<MessageReader> readers = readers_of(round.to_owners);
  std::vector<T> sum;
  for (std::size_t i = 0; i < round.terms.size(); ++i) {
    const std::size_t number = round.terms[i].number;
    const auto [begin, end] = by_elements(round.terms[i], exchange.copy(), copies);
    sum.assign(static_cast<std::size_t>(end - begin), T(0));
    const T* variance = data_of<T>(round.variances[i]) + begin;
    for (MessageReader& reader : readers)
      add_scaled(reader, variance, end - begin, T(1) / static_cast<T>(copies), sum.data());
    encode_scaled(sum.data(), data_of<T>(owned_.kept(number)), data_of<T>(owned_.next(number)), variance, end - begin,
                  round.to_all.out);
  }
  return exchange.start_all_gather(round.to_all);
}

template <typename T>
void ScaledSigns::end_as(const CopyExchange& exchange, Round& round) {
  for (at::Tensor& value : round.values) value.zero_();
  int from = 0;
  for (MessageReader& reader : readers_of(round.to_all)) {
    for (std::size_t i = 0; i < round.terms.size(); ++i) {
      const auto [begin, end] = by_elements(round.terms[i], from, exchange.copies());
      add_scaled(reader, data_of<T>(round.variances[i]) + begin, end - begin, T(1),
                 data_of<T>(round.values[i]) + begin);
    }
    ++from;
  }
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
