// The copies of the arithmetic for each instruction set agree to the bit, with each other and with plain arithmetic.
#include "trireme/comm/arithmetic/arithmetic.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/comm/values.h"
#include "trireme/comm/arithmetic/table.h"

namespace trireme::comm {
namespace {

using Bytes = std::vector<std::byte>;

struct Copy {
  const char* name;
  const ArithmeticTable* table;

  const Arithmetic& of(DType type, Reduce reduce) const {
    return table->by_reduce[static_cast<std::size_t>(reduce)].by_type[static_cast<std::size_t>(type)];
  }
};

/// Those that this processor can run; the plain one first.
std::vector<Copy> copies() {
  std::vector<Copy> out{{"plain", &kArithmeticPlain}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) out.push_back({"v3", &kArithmeticV3});
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    out.push_back({"v4", &kArithmeticV4});
  }
#endif
  return out;
}

/// Random bits: every kind of number there is, subnormals, infinities and NaNs among them; with the exponents of one
/// in four elements at their ends, where random bits seldom are.
Bytes random_bits(DType type, std::size_t count, std::uint64_t seed) {
  Bytes out(count * size_of(type));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(hash_of({seed, i}));
  if (!is_float(type)) return out;
  constexpr double kSpecial[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, -1.0, 65504.0, 6e-8, 1e-40, 3e38, -3e38};
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t drawn = hash_of({seed, 1, i});
    if (drawn % 4 == 0) write_value(type, kSpecial[(drawn >> 8) % std::size(kSpecial)], &out[i * size_of(type)]);
  }
  return out;
}

/// The first element that differs; NaNs are alike whatever their bits.
std::string difference(DType type, const Bytes& a, const Bytes& b) {
  const std::size_t element = size_of(type);
  for (std::size_t i = 0; i < a.size(); i += element) {
    if (std::memcmp(&a[i], &b[i], element) == 0) continue;
    const double x = read_value(type, &a[i]), y = read_value(type, &b[i]);
    if (std::isnan(x) && std::isnan(y)) continue;
    return fmt::format("element {}: {} and {}", i / element, x, y);
  }
  return {};
}

/// Lengths around those of vectors and of the blocks in which the loops go.
constexpr std::size_t kLengths[] = {0, 1, 7, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 2500};

template <typename Body>
void for_all(Body body) {
  for (const Copy& copy : copies()) {
    for (const DType type : kAllDTypes) {
      for (const Reduce reduce : kAllReduces) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", copy.name, name(type), name(reduce)));
        body(copy.of(type, reduce), copies()[0].of(type, reduce), type, reduce);
      }
    }
  }
}

Bytes combine(const Arithmetic& arithmetic, DType type, const Bytes& a, const Bytes& b) {
  Bytes out(a.size());
  arithmetic.combine(out.data(), a.data(), b.data(), a.size() / size_of(type));
  return out;
}

Bytes fold(const Arithmetic& arithmetic, DType type, const std::vector<Bytes>& from, int divisor, bool stream = false) {
  Bytes out(from[0].size());
  std::vector<const void*> sources;
  for (const Bytes& one : from) sources.push_back(one.data());
  void* to = out.data();
  arithmetic.fold(&to, 1, sources.data(), sources.size(), out.size() / size_of(type), divisor, stream);
  return out;
}

TEST(Arithmetic, IsPickedFromTheCopiesThisProcessorCanRun) {
  const Arithmetic& used = arithmetic(DType::kF32, Reduce::kSum);
  EXPECT_EQ(used.combine, copies().back().of(DType::kF32, Reduce::kSum).combine);
}

TEST(Arithmetic, OfAllInstructionSetsGivesTheSameBits) {
  for_all([](const Arithmetic& one, const Arithmetic& plain, DType type, Reduce) {
    for (const std::size_t count : kLengths) {
      const std::vector<Bytes> from{random_bits(type, count, 1), random_bits(type, count, 2),
                                    random_bits(type, count, 3)};
      EXPECT_EQ(difference(type, combine(one, type, from[0], from[1]), combine(plain, type, from[0], from[1])), "");
      EXPECT_EQ(difference(type, fold(one, type, from, 1), fold(plain, type, from, 1)), "");
      EXPECT_EQ(difference(type, fold(one, type, from, 3), fold(plain, type, from, 3)), "");
      EXPECT_EQ(difference(type, fold(one, type, from, 3, /*stream=*/true), fold(plain, type, from, 3)), "");
      Bytes a = from[0], b = from[0];
      one.divide(a.data(), count, 7);
      plain.divide(b.data(), count, 7);
      EXPECT_EQ(difference(type, a, b), "");
    }
  });
}

TEST(Arithmetic, IsCommutative) {
  for_all([](const Arithmetic& one, const Arithmetic&, DType type, Reduce) {
    const Bytes a = random_bits(type, 5000, 4), b = random_bits(type, 5000, 5);
    EXPECT_EQ(difference(type, combine(one, type, a, b), combine(one, type, b, a)), "");
  });
}

TEST(Arithmetic, EqualsPlainArithmeticOnNumbers) {
  for_all([](const Arithmetic& one, const Arithmetic&, DType type, Reduce reduce) {
    constexpr std::size_t kCount = 3000;
    const std::size_t element = size_of(type);
    Bytes a(kCount * element), b = a, expected = a;
    for (std::size_t i = 0; i < kCount; ++i) {
      // Of integers few bits, so that neither sums nor products wrap: what wraps is tested below.
      const auto draw = [&](std::uint64_t which, Bytes& to) {
        double value = 15 * fraction_of(hash_of({i, which}));
        if (!is_float(type)) value = std::floor(value);
        if (type != DType::kU8 && hash_of({i, which, 1}) % 2 == 0) value = -value;
        write_value(type, value, &to[i * element]);
        return read_value(type, &to[i * element]);
      };
      const double x = draw(6, a), y = draw(7, b);
      double z = x + y;
      if (reduce == Reduce::kMin) z = std::min(x, y);
      if (reduce == Reduce::kMax) z = std::max(x, y);
      if (reduce == Reduce::kProd) z = x * y;
      // A sum or product of two halves is exact enough in f64 for one rounding to be the only one; of two f32 too.
      write_value(type, z, &expected[i * element]);
    }
    EXPECT_EQ(difference(type, combine(one, type, a, b), expected), "");
    EXPECT_EQ(difference(type, fold(one, type, {a, b}, 1), expected), "");
  });
}

TEST(Arithmetic, OfIntegersWrapsAndDividesTowardsZero) {
  for (const Copy& copy : copies()) {
    const std::int32_t a = std::numeric_limits<std::int32_t>::max(), b = 1;
    std::int32_t sum = 0;
    copy.of(DType::kI32, Reduce::kSum).combine(&sum, &a, &b, 1);
    EXPECT_EQ(sum, std::numeric_limits<std::int32_t>::min());
    const std::int64_t c = std::int64_t{1} << 62, d = 4;
    std::int64_t product = 1;
    copy.of(DType::kI64, Reduce::kProd).combine(&product, &c, &d, 1);
    EXPECT_EQ(product, 0);
    const std::uint8_t e = 200, f = 100;
    std::uint8_t wrapped = 0;
    copy.of(DType::kU8, Reduce::kSum).combine(&wrapped, &e, &f, 1);
    EXPECT_EQ(wrapped, 44);
    std::int64_t negative[] = {-7, 7, -1};
    copy.of(DType::kI64, Reduce::kAvg).divide(negative, 3, 2);
    EXPECT_EQ(negative[0], -3);
    EXPECT_EQ(negative[1], 3);
    EXPECT_EQ(negative[2], 0);
  }
}

TEST(Arithmetic, RoundsHalvesOnceToTheNearest) {
  // Every half as the sum of itself and zero, and as a quotient: conversions both ways for all 65,536 of them.
  for (const Copy& copy : copies()) {
    for (const DType type : {DType::kF16, DType::kBF16}) {
      constexpr std::size_t kCount = 1 << 16;
      Bytes all(2 * kCount), zero(2 * kCount), third(2 * kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        const auto bits = static_cast<std::uint16_t>(i);
        std::memcpy(&all[2 * i], &bits, 2);
        write_value(type, static_cast<float>(read_value(type, &all[2 * i])) / 3.0f, &third[2 * i]);
        write_value(type, -0.0, &zero[2 * i]);
      }
      SCOPED_TRACE(fmt::format("{}, {}", copy.name, name(type)));
      const Arithmetic& sum = copy.of(type, Reduce::kSum);
      EXPECT_EQ(difference(type, combine(sum, type, all, zero), all), "");
      Bytes divided = all;
      sum.divide(divided.data(), kCount, 3);
      EXPECT_EQ(difference(type, divided, third), "");
    }
  }
}

TEST(Arithmetic, FoldIsCombineAgainAndAgainWhereNothingIsRounded) {
  for_all([](const Arithmetic& one, const Arithmetic&, DType type, Reduce reduce) {
    if (size_of(type) == 2 && (reduce == Reduce::kSum || reduce == Reduce::kAvg || reduce == Reduce::kProd)) return;
    for (const std::size_t sources : {1, 2, 3, 9}) {
      std::vector<Bytes> from;
      for (std::size_t s = 0; s < sources; ++s) from.push_back(random_bits(type, 1500, 10 + s));
      Bytes expected = from[0];
      for (std::size_t s = 1; s < sources; ++s) expected = combine(one, type, expected, from[s]);
      EXPECT_EQ(difference(type, fold(one, type, from, 1), expected), "");
    }
  });
}

TEST(Arithmetic, MayWriteOverItsInputs) {
  for_all([](const Arithmetic& one, const Arithmetic&, DType type, Reduce) {
    const std::size_t count = 2100;
    const Bytes a = random_bits(type, count, 20), b = random_bits(type, count, 21), c = random_bits(type, count, 22);
    const Bytes expected = combine(one, type, a, b);
    Bytes x = a, y = b;
    one.combine(x.data(), x.data(), b.data(), count);
    one.combine(y.data(), a.data(), y.data(), count);
    EXPECT_EQ(difference(type, x, expected), "");
    EXPECT_EQ(difference(type, y, expected), "");

    const Bytes folded = fold(one, type, {a, b, c}, 1);
    Bytes p = a, q = b, r = c, apart(a.size());
    const void* from[] = {p.data(), q.data(), r.data()};
    void* to[] = {r.data(), p.data(), apart.data(), q.data()};
    one.fold(to, 4, from, 3, count, 1, /*stream=*/false);
    for (const Bytes* result : {&p, &q, &r, &apart}) EXPECT_EQ(difference(type, *result, folded), "");
  });
}

TEST(Arithmetic, TakesPointersAlignedToTheirElementsOnly) {
  for_all([](const Arithmetic& one, const Arithmetic& plain, DType type, Reduce) {
    const std::size_t element = size_of(type), count = 300;
    const Bytes a = random_bits(type, count, 30), b = random_bits(type, count, 31);
    const Bytes expected = fold(plain, type, {a, b}, 1);
    for (const std::size_t shift : {1, 3, 5, 7}) {
      for (const bool stream : {false, true}) {
        Bytes x((count + 16) * element), y = x, z = x;
        std::memcpy(&x[shift * element], a.data(), a.size());
        std::memcpy(&y[(shift + 1) * element], b.data(), b.size());
        const void* from[] = {&x[shift * element], &y[(shift + 1) * element]};
        void* to[] = {&z[(shift + 2) * element]};
        one.fold(to, 1, from, 2, count, 1, stream);
        const Bytes got(z.begin() + static_cast<std::ptrdiff_t>((shift + 2) * element),
                        z.begin() + static_cast<std::ptrdiff_t>((shift + 2 + count) * element));
        EXPECT_EQ(difference(type, got, expected), "");
        for (std::size_t i = 0; i < (shift + 2) * element; ++i) EXPECT_EQ(z[i], std::byte{0});
        for (std::size_t i = (shift + 2 + count) * element; i < z.size(); ++i) EXPECT_EQ(z[i], std::byte{0});
      }
    }
  });
}

TEST(StreamCopy, CopiesEveryByteAndNoOther) {
  const Bytes source = random_bits(DType::kU8, 5000, 40);
  for (const Copy& copy : copies()) {
    for (const std::size_t bytes : {0, 1, 63, 64, 65, 127, 128, 129, 1000, 4096, 4801}) {
      for (const std::size_t from : {0, 1, 13, 64}) {
        for (const std::size_t to : {0, 1, 31, 63, 64}) {
          Bytes target(5000, std::byte{0xEE}), expected = target;
          std::memcpy(&expected[to], &source[from], bytes);
          copy.table->stream_copy(&target[to], &source[from], bytes);
          EXPECT_EQ(target, expected) << copy.name << ' ' << bytes << ' ' << from << ' ' << to;
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::comm
