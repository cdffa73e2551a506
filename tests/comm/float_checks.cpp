// Checks of results that depend on roundings, signs of zero and NaN.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/comm/collective_checks.h"
#include "tests/comm/reference.h"
#include "tests/comm/values.h"

namespace trireme::comm {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
constexpr Op kReducing[] = {Op::kAllReduce, Op::kReduceScatter, Op::kReduce};

/// One call on values of the caller's choice; `inputs[r]` are those of rank r.
struct FloatCase {
  Op op;
  Algorithm algorithm;
  DType type;
  Reduce reduce;
  bool in_place = false;
  std::vector<std::vector<double>> inputs = {};

  std::size_t count() const { return inputs[0].size(); }
};

std::string to_text(const FloatCase& c) {
  return fmt::format("{} of {} x {} ({}, {}{})", name(c.op), c.count(), name(c.type), name(c.reduce),
                     cost::name(c.algorithm), c.in_place ? ", in place" : "");
}

/// The elements whose combination this rank gets: [begin, begin + count).
struct Share {
  std::size_t begin = 0, count = 0;
};
Share share_of(const FloatCase& c, const Group& group) {
  const auto ranks = static_cast<std::size_t>(group.size()), me = static_cast<std::size_t>(group.rank());
  if (c.op == Op::kReduceScatter) return {me * c.count() / ranks, c.count() / ranks};
  if (c.op == Op::kReduce && group.rank() != 0) return {};
  return {0, c.count()};
}

std::vector<std::byte> run(Group& group, const FloatCase& c) {
  const std::size_t element = size_of(c.type);
  const auto& values = c.inputs[static_cast<std::size_t>(group.rank())];
  std::vector<std::byte> in(values.size() * element);
  for (std::size_t i = 0; i < values.size(); ++i) write_value(c.type, values[i], in.data() + i * element);
  const Share share = share_of(c, group);
  std::vector<std::byte> apart(share.count * element);
  std::byte* out_data = c.in_place ? in.data() + share.begin * element : apart.data();
  const Buffer out{out_data, share.count, c.type};
  const ConstBuffer input{in.data(), values.size(), c.type};
  const CallOptions options{.algorithm = c.algorithm, .deadline = {}};
  switch (c.op) {
    case Op::kAllReduce:
      group.all_reduce(input, out, c.reduce, options).wait();
      break;
    case Op::kReduceScatter:
      group.reduce_scatter(input, out, c.reduce, options).wait();
      break;
    default:
      group.reduce(input, out, c.reduce, 0, options).wait();
      break;
  }
  return {out_data, out_data + share.count * element};
}

/// Random values of many magnitudes, such as the type can hold; for products near one.
void draw_inputs(FloatCase& c, int ranks, std::size_t count, std::uint64_t seed) {
  c.inputs.assign(static_cast<std::size_t>(ranks), std::vector<double>(count));
  std::vector<std::byte> rounded(8);
  for (std::size_t r = 0; r < c.inputs.size(); ++r) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t drawn = hash_of({seed, r, i});
      double value = 2 * fraction_of(drawn) - 1;
      value = c.reduce == Reduce::kProd ? 1 + value / 2 : std::ldexp(value, static_cast<int>(drawn % 8));
      write_value(c.type, value, rounded.data());
      c.inputs[r][i] = read_value(c.type, rounded.data());
    }
  }
}

/// How far the result may be from the exact one: every combination, and the division, may round once.
std::string compare_with_exact(const FloatCase& c, const Group& group, const std::vector<std::byte>& result) {
  const Share share = share_of(c, group);
  const double ranks = group.size();
  for (std::size_t i = 0; i < share.count; ++i) {
    double sum = 0, magnitude = 0, product = 1;
    for (const auto& input : c.inputs) {
      sum += input[share.begin + i];
      magnitude += std::abs(input[share.begin + i]);
      product *= input[share.begin + i];
    }
    double exact = sum;
    if (c.reduce == Reduce::kProd) exact = product, magnitude = std::abs(product);
    if (c.reduce == Reduce::kAvg) exact /= ranks, magnitude /= ranks;
    const double got = read_value(c.type, result.data() + i * size_of(c.type));
    const double allowed = 1.01 * (ranks + 1) * rounding_error(c.type) * magnitude + 1e-7;
    if (!(std::abs(got - exact) <= allowed)) {
      return fmt::format("element {} is {}, the exact result {}", i, got, exact);
    }
  }
  return {};
}

/// Shared memory combines halves in f32, in the order of ranks, and rounds once.
std::string compare_with_f32(const FloatCase& c, const Group& group, const std::vector<std::byte>& result) {
  const Share share = share_of(c, group);
  std::vector<std::byte> expected(2);
  for (std::size_t i = 0; i < share.count; ++i) {
    auto value = static_cast<float>(c.inputs[0][share.begin + i]);
    for (std::size_t r = 1; r < c.inputs.size(); ++r) {
      const auto next = static_cast<float>(c.inputs[r][share.begin + i]);
      value = c.reduce == Reduce::kProd ? value * next : value + next;
    }
    if (c.reduce == Reduce::kAvg) value /= static_cast<float>(group.size());
    write_value(c.type, value, expected.data());
    if (std::memcmp(expected.data(), result.data() + 2 * i, 2) != 0) {
      return fmt::format("element {} is {}, but {} once {} is rounded once", i,
                         read_value(c.type, result.data() + 2 * i), read_value(c.type, expected.data()), value);
    }
  }
  return {};
}

/// Whether all ranks hold the same bytes.
bool same_everywhere(Group& group, const std::vector<std::byte>& bytes) {
  std::uint64_t h = bytes.size();
  for (const std::byte b : bytes) h = hash_of({h, static_cast<std::uint64_t>(b)});
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather({&h, sizeof h, DType::kU8}, {all.data(), all.size() * sizeof h, DType::kU8}).wait();
  return std::ranges::all_of(all, [&](std::uint64_t other) { return other == h; });
}

std::string check_one(Group& group, FloatCase c) {
  const std::vector<std::byte> first = run(group, c);
  if (run(group, c) != first) return "a second run gave other bits";
  c.in_place = true;
  if (run(group, c) != first) return "in place it gave other bits";
  if (c.op == Op::kAllReduce && !same_everywhere(group, first)) return "the ranks have different bits";
  std::string wrong = compare_with_exact(c, group, first);
  if (wrong.empty() && c.algorithm == Algorithm::kDirect && size_of(c.type) == 2) {
    wrong = compare_with_f32(c, group, first);
  }
  return wrong;
}

template <typename Body>
std::string for_each_reduction(Group& group, std::initializer_list<Reduce> reductions, Body body) {
  for (const Op op : kReducing) {
    for (const Algorithm algorithm : group.algorithms(collective_of(op))) {
      for (const DType type : kFloats) {
        for (const Reduce reduce : reductions) {
          FloatCase c{.op = op, .algorithm = algorithm, .type = type, .reduce = reduce};
          const std::string wrong = body(c);
          if (!wrong.empty()) return fmt::format("rank {}: {}: {}", group.rank(), to_text(c), wrong);
        }
      }
    }
  }
  return {};
}

}  // namespace

std::string check_float_bits(Group& group, std::uint64_t seed) {
  const auto ranks = static_cast<std::size_t>(group.size());
  return for_each_reduction(group, {Reduce::kSum, Reduce::kAvg, Reduce::kProd}, [&](FloatCase& c) -> std::string {
    for (const std::size_t block : {std::size_t{5}, 3001 / ranks}) {
      draw_inputs(c, group.size(), block * ranks, seed + block);
      std::string wrong = check_one(group, c);
      if (!wrong.empty()) return wrong;
    }
    return {};
  });
}

std::string check_extremes(Group& group, std::uint64_t seed) {
  constexpr double kValues[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, -0.0, 0.0};
  return for_each_reduction(group, {Reduce::kMin, Reduce::kMax}, [&](FloatCase& c) -> std::string {
    const std::size_t count = 64 * static_cast<std::size_t>(group.size());
    c.inputs.assign(static_cast<std::size_t>(group.size()), std::vector<double>(count));
    std::vector<double> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      // Zeros of both signs in every third element, NaN in every fourth.
      for (std::size_t r = 0; r < c.inputs.size(); ++r) {
        const std::uint64_t drawn = hash_of({seed, r, i});
        double value = i % 3 == 0 ? kValues[drawn % 2] : kValues[drawn % 8];
        if (i % 4 == 0 && drawn >> 32 & 1) value = NAN;
        c.inputs[r][i] = value;
        const double best = r == 0 ? value : expected[i];
        const bool takes = c.reduce == Reduce::kMin ? value < best || (value == best && std::signbit(value))
                                                    : value > best || (value == best && !std::signbit(value));
        expected[i] = std::isnan(value) || std::isnan(best) ? NAN : takes ? value : best;
      }
    }
    const std::vector<std::byte> result = run(group, c);
    const Share share = share_of(c, group);
    for (std::size_t i = 0; i < share.count; ++i) {
      const double want = expected[share.begin + i], got = read_value(c.type, result.data() + i * size_of(c.type));
      const bool same = std::isnan(want) ? std::isnan(got) : got == want && std::signbit(got) == std::signbit(want);
      if (!same) return fmt::format("element {} is {} instead of {}", i, got, want);
    }
    return {};
  });
}

}  // namespace trireme::comm
