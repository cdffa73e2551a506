#include "trireme/parallel/compress/delta_code.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "trireme/kernels/gradient_codes.h"
#include "trireme/parallel/compress/gpu_codes.h"
#include "trireme/parallel/compress/term_types.h"

// Loops over elements: this room is compiled without vectors otherwise.
#pragma GCC push_options
#pragma GCC optimize("O3")

namespace trireme::parallel {

namespace {

/// The step of a block's levels: of zeros 0, and NaN where a number is not finite, so that its block is none on any
/// copy.
float level_step(const float* values, std::int64_t count) {
  const std::uint32_t largest = kernels::level_codes().largest(values, count);
  constexpr std::uint32_t kInfinity = 0x7f800000;
  return largest >= kInfinity ? std::numeric_limits<float>::quiet_NaN() : std::bit_cast<float>(largest) / 127;
}
double level_step(const double* values, std::int64_t count) {
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, std::abs(values[i]));
  }
  return largest / 127;
}

// Of floats by kernels, once for each instruction set; of doubles, which tests and serial twins compute in, plainly.
void encode_bytes(float* values, std::int64_t count, float scale, std::int8_t* code) {
  kernels::level_codes().encode_bytes(values, count, scale, code);
}
void encode_bytes(double* values, std::int64_t count, double scale, std::int8_t* code) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double steps = scale > 0 ? std::nearbyint(std::clamp(values[i] / scale, -127.0, 127.0)) : 0;
    code[i] = static_cast<std::int8_t>(steps);
    values[i] = scale * static_cast<double>(code[i]);  // of zeros that without a sign
  }
}
void add_bytes(const std::int8_t* code, std::int64_t count, float scale, float* sum) {
  kernels::level_codes().add_bytes(code, count, scale, sum);
}
void add_bytes(const std::int8_t* code, std::int64_t count, double scale, double* sum) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += scale * static_cast<double>(code[i]);
}

void encode_halves(float* values, std::int64_t count, std::uint16_t* code) {
  kernels::level_codes().encode_halves(values, count, code);
}
void encode_halves(double* values, std::int64_t count, std::uint16_t* code) {
  for (std::int64_t i = 0; i < count; ++i) {
    auto value = static_cast<float>(values[i]);
    kernels::level_codes().encode_halves(&value, 1, code + i);
    values[i] = static_cast<double>(value);
  }
}
void add_halves(const std::uint16_t* code, std::int64_t count, float* sum) {
  kernels::level_codes().add_halves(code, count, sum);
}
void add_halves(const std::uint16_t* code, std::int64_t count, double* sum) {
  for (std::int64_t i = 0; i < count; ++i) {
    float value = 0;
    kernels::level_codes().add_halves(code + i, 1, &value);
    sum[i] += static_cast<double>(value);
  }
}

}  // namespace

template <typename T>
void encode_delta(T* values, std::int64_t count, spec::DeltaDtype type, Message& message) {
  const bool is_half = type == spec::DeltaDtype::kFp16;
  const std::int64_t blocks = (count + kDeltaBlock - 1) / kDeltaBlock;
  const std::size_t begin = message.size();
  message.resize(begin +
                 static_cast<std::size_t>(is_half ? 2 * count : count + blocks * static_cast<std::int64_t>(sizeof(T))));
  std::uint8_t* out = message.data() + begin;
  for (std::int64_t at = 0; at < count; at += kDeltaBlock) {
    const std::int64_t size = std::min(kDeltaBlock, count - at);
    if (is_half) {  // a message has bytes before it: its halves may lie anywhere
      std::uint16_t halves[kDeltaBlock];
      encode_halves(values + at, size, halves);
      std::memcpy(out, halves, static_cast<std::size_t>(2 * size));
      out += 2 * size;
      continue;
    }
    const T scale = level_step(values + at, size);
    std::memcpy(out, &scale, sizeof(T));
    out += sizeof(T);
    encode_bytes(values + at, size, scale, reinterpret_cast<std::int8_t*>(out));
    out += size;
  }
}

template <typename T>
void add_delta(MessageReader& code, std::int64_t count, spec::DeltaDtype type, T* sum) {
  for (std::int64_t at = 0; at < count; at += kDeltaBlock) {
    const std::int64_t size = std::min(kDeltaBlock, count - at);
    if (type == spec::DeltaDtype::kFp16) {
      std::uint16_t halves[kDeltaBlock];
      std::memcpy(halves, code.take_bytes(static_cast<std::size_t>(2 * size)), static_cast<std::size_t>(2 * size));
      add_halves(halves, size, sum + at);
      continue;
    }
    T scale;
    code.take(&scale, 1);
    add_bytes(reinterpret_cast<const std::int8_t*>(code.take_bytes(static_cast<std::size_t>(size))), size, scale,
              sum + at);
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
