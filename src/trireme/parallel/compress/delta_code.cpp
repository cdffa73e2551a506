#include "trireme/parallel/compress/delta_code.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "trireme/parallel/compress/gpu_codes.h"
#include "trireme/parallel/compress/term_types.h"

// Loops over elements: this room is compiled without vectors otherwise.
#pragma GCC push_options
#pragma GCC optimize("O3")

namespace trireme::parallel {

template <typename T>
void encode_delta(T* values, std::int64_t count, spec::DeltaDtype type, Message& message) {
  const bool is_half = type == spec::DeltaDtype::kFp16;
  const std::int64_t blocks = (count + kDeltaBlock - 1) / kDeltaBlock;
  const std::size_t begin = message.size();
  message.resize(begin +
                 static_cast<std::size_t>(is_half ? 2 * count : count + blocks * static_cast<std::int64_t>(sizeof(T))));
  std::uint8_t* out = message.data() + begin;
  if (is_half) {
    for (std::int64_t i = 0; i < count; ++i) {
      const c10::Half half(static_cast<float>(values[i]));
      std::memcpy(out + 2 * i, &half, 2);
      values[i] = static_cast<T>(static_cast<float>(half));
    }
    return;
  }
  for (std::int64_t at = 0; at < count; at += kDeltaBlock) {
    const std::int64_t size = std::min(kDeltaBlock, count - at);
    T largest = 0;
    for (std::int64_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(values[at + i]));
    const T scale = largest / T(127);
    std::memcpy(out, &scale, sizeof(T));
    out += sizeof(T);
    for (std::int64_t i = 0; i < size; ++i) {
      const double steps = scale > 0 ? std::nearbyint(static_cast<double>(values[at + i] / scale)) : 0;
      const auto level = static_cast<std::int8_t>(std::clamp(steps, -127.0, 127.0));
      std::memcpy(out++, &level, 1);
      values[at + i] = scale * static_cast<T>(level);
    }
  }
}

template <typename T>
void add_delta(MessageReader& code, std::int64_t count, spec::DeltaDtype type, T* sum) {
  if (type == spec::DeltaDtype::kFp16) {
    const std::uint8_t* in = code.take_bytes(static_cast<std::size_t>(2 * count));
    for (std::int64_t i = 0; i < count; ++i) {
      c10::Half half;
      std::memcpy(&half, in + 2 * i, 2);
      sum[i] += static_cast<T>(static_cast<float>(half));
    }
    return;
  }
  for (std::int64_t at = 0; at < count; at += kDeltaBlock) {
    const std::int64_t size = std::min(kDeltaBlock, count - at);
    T scale;
    code.take(&scale, 1);
    const std::uint8_t* in = code.take_bytes(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) sum[at + i] += scale * static_cast<T>(static_cast<std::int8_t>(in[i]));
  }
}

template void encode_delta(float*, std::int64_t, spec::DeltaDtype, Message&);
template void encode_delta(double*, std::int64_t, spec::DeltaDtype, Message&);
template void add_delta(MessageReader&, std::int64_t, spec::DeltaDtype, float*);
template void add_delta(MessageReader&, std::int64_t, spec::DeltaDtype, double*);

namespace {

template <typename T>
void mean_rounded_as(CopyExchange& exchange, at::Tensor& values, at::Tensor& residual,
                     std::span<const std::int64_t> lengths, spec::DeltaDtype type) {
  const int copies = exchange.copies();
  T *sent = data_of<T>(values), *left = data_of<T>(residual);
  const std::int64_t count = values.numel();
  // body(begin, size) of the part of each parameter that a copy owns.
  const auto each_share = [&](int owner, const auto& body) {
    std::int64_t at = 0;
    for (const std::int64_t length : lengths) {
      const Share1D share = share_of_copy(length, owner, copies);
      body(at + share.begin, share.size());
      at += length;
    }
  };
  for (std::int64_t i = 0; i < count; ++i) left[i] = sent[i] += left[i];
  std::vector<Message> out(static_cast<std::size_t>(copies));
  for (int to = 0; to < copies; ++to) {
    each_share(to, [&](std::int64_t begin, std::int64_t size) {
      encode_delta(sent + begin, size, type, out[static_cast<std::size_t>(to)]);
    });
  }
  for (std::int64_t i = 0; i < count; ++i) left[i] -= sent[i];
  const std::vector<Message> in = exchange.all_to_all(out);
  std::vector<MessageReader> readers(in.begin(), in.end());
  Message mine;
  std::vector<T> sum, said;
  each_share(exchange.copy(), [&](std::int64_t begin, std::int64_t size) {
    sum.assign(static_cast<std::size_t>(size), T(0));
    for (MessageReader& reader : readers) add_delta(reader, size, type, sum.data());
    for (T& value : sum) value /= static_cast<T>(copies);
    said = sum;
    encode_delta(said.data(), size, type, mine);
    // The mean lacks this much, a copy's share of it N times as much.
    for (std::int64_t i = 0; i < size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      left[begin + i] += static_cast<T>(copies) * (sum[at] - said[at]);
    }
  });
  const std::vector<Message> all = exchange.all_gather(mine, lengths_of(out));
  values.zero_();
  for (int from = 0; from < copies; ++from) {
    MessageReader reader(all[static_cast<std::size_t>(from)]);
    each_share(from, [&](std::int64_t begin, std::int64_t size) { add_delta(reader, size, type, sent + begin); });
  }
}

}  // namespace

void mean_rounded(CopyExchange& exchange, at::Tensor& values, at::Tensor& residual,
                  std::span<const std::int64_t> lengths, spec::DeltaDtype type) {
  if (values.is_cuda()) return mean_rounded_on_gpu(exchange, values, residual, lengths, type);
  with_element_type(
      values, [&](auto element) { mean_rounded_as<decltype(element)>(exchange, values, residual, lengths, type); });
}

}  // namespace trireme::parallel

#pragma GCC pop_options
