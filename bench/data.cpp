// bench/data.cpp -- does training ever wait for data? Reading tokens and making batches of them, beside memcpy.
//
//   build/release/bench/data [FOLDER]
//
// Writes a shard of 64 Mi tokens (16 bits, documents of 600 tokens on average) into FOLDER (the temporary one by
// default), reads it with a warm page cache in one thread, and removes it. memcpy copies as many bytes as the call
// beside it writes, from memory that is as large as the shard. The last lines walk steps of a given length with a
// Prefetch of 4 batches and say which part of them was spent waiting. Medians of 9 rounds that take turns, in
// processor time; waiting is measured by the clock on the wall.
#include <fmt/format.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "bench/times.h"
#include "trireme/base/random.h"
#include "trireme/data/open_samples.h"
#include "trireme/data/prefetch.h"
#include "trireme/data/shard_writer.h"
#include "trireme/data/token_file.h"

namespace {

using namespace trireme;
using bench::median;
using bench::seconds_of;
using namespace trireme::data;

constexpr int kRounds = 9;
constexpr std::int64_t kTokens = 64 << 20, kLength = 1024, kRows = 512;
constexpr std::int64_t kVocabulary = 50257;

/// Of this thread alone: others on the machine do not count.
template <typename Body>
double cpu_seconds(Body&& body) {
  const auto now = [] {
    timespec time = {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double begin = now();
  body();
  return now() - begin;
}

std::filesystem::path write_shard(const std::filesystem::path& folder) {
  const auto path = folder / "trireme_bench_data.shard";
  const Random random(1, "bench/data");
  std::vector<std::uint64_t> bits(1 << 20);
  random.fill_bits(0, std::span(bits));
  std::vector<std::int32_t> tokens(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) tokens[i] = static_cast<std::int32_t>(bits[i] % kVocabulary);
  const double took = seconds_of([&] {
    ShardWriter writer(path, {.vocab_size = kVocabulary});
    std::uint64_t draw = 0;
    for (std::int64_t left = kTokens; left > 0;) {
      const auto size = std::min<std::int64_t>(left, 1 + static_cast<std::int64_t>(random.below(1200, draw++)));
      writer.add_document(
          std::span(tokens).subspan(random.below(tokens.size() - 1200, draw++), static_cast<std::size_t>(size)));
      left -= size;
    }
    writer.finish();
  });
  fmt::print("written to the disk with checksums: {:.0f} M tokens/s\n", kTokens / took / 1e6);
  return path;
}

/// `ours` makes kRows rows of kLength tokens and writes `bytes` bytes for each token; memcpy writes as many.
template <typename Body>
void compare(const char* name, double bytes, Body&& ours) {
  const auto size = static_cast<std::size_t>(bytes * kRows * kLength);
  const std::vector<std::byte> from(std::max<std::size_t>(kTokens * 2, size), std::byte{1});
  std::vector<std::byte> to(size);
  std::vector<double> mine, copied;
  for (int round = 0; round < kRounds; ++round) {
    mine.push_back(cpu_seconds([&] { ours(round); }));
    copied.push_back(cpu_seconds([&] {
      const std::size_t row = size / kRows;
      for (std::int64_t i = 0; i < kRows; ++i) {
        const std::size_t at = static_cast<std::size_t>(i * 7919 + round * 104729) * 4096 % (from.size() - row + 1);
        std::memcpy(to.data() + static_cast<std::size_t>(i) * row, from.data() + at, row);
      }
    }));
  }
  const double tokens = static_cast<double>(kRows * kLength) / 1e6;
  fmt::print("{:<34}{:>14.0f}{:>14.0f}{:>9.2f}{:>13.1f} ns\n", name, tokens / median(mine), tokens / median(copied),
             median(copied) / median(mine), median(mine) / static_cast<double>(kRows * kLength) * 1e9);
}

void bench_reading(const std::filesystem::path& path) {
  const TokenFile file(path), checked(path);
  checked.verify();
  std::vector<std::int32_t> row(kLength + 1);
  std::int64_t sink = 0;
  fmt::print("{:<34}{:>14}{:>14}{:>9}{:>16}\n", "512 rows of 1024", "M tokens/s", "memcpy", "ratio", "a token");
  const auto read_rows = [&](const TokenFile& from, int round) {
    for (std::int64_t i = 0; i < kRows; ++i) {
      from.read((i * 7919 + round * 104729) * 997 % (kTokens - kLength - 1), row);
      sink += row[0];
    }
  };
  compare("tokens, checked already", 4, [&](int round) { read_rows(checked, round); });
  compare("tokens, each block's first time", 4, [&](int round) { read_rows(file, round); });

  spec::Recipe recipe;
  recipe.data.sources = {{path.string(), std::nullopt}};
  recipe.data.seq_len = kLength;
  std::vector<std::int64_t> samples(kRows);
  for (const auto& [name, packing, bytes] : {std::tuple("causal batch, documents", spec::Packing::kDocuments, 28.0),
                                             {"causal batch, stream", spec::Packing::kStream, 24.0}}) {
    recipe.data.packing = packing;
    const auto opened = open_samples(recipe, Split::kTrain);
    for (std::int64_t first = 0; first < opened->epoch(); first += kRows) {  // every block has been checked
      std::iota(samples.begin(), samples.end(), first);
      sink += opened->read(samples).targets[0];
    }
    compare(name, bytes, [&](int round) {
      std::iota(samples.begin(), samples.end(), round * kRows);
      sink += opened->read(samples).targets[0];
    });
  }
  std::vector<double> verified;
  for (int round = 0; round < 5; ++round) verified.push_back(cpu_seconds([&] { file.verify(); }));
  fmt::print("verify: {:.1f} GB/s; opened in {:.2f} ms  ({})\n",
             static_cast<double>(file.bytes()) / median(verified) / 1e9,
             seconds_of([&] { sink += TokenFile(path).tokens(); }) * 1e3, sink == 42 ? "!" : "ok");
}

/// Steps that do nothing but take their time, as a device would.
void bench_waiting(const std::filesystem::path& path) {
  spec::Recipe recipe;
  recipe.data.sources = {{path.string(), std::nullopt}};
  recipe.data.seq_len = kLength;
  const auto samples = open_samples(recipe, Split::kTrain);
  constexpr std::int64_t kSteps = 200, kBatch = 32;
  for (const int step_ms : {2, 10, 50}) {
    const auto plan = [&](std::int64_t step) {
      std::vector<std::int64_t> numbers(kBatch);
      std::iota(numbers.begin(), numbers.end(), step * kBatch);
      return std::vector<std::vector<std::int64_t>>{std::move(numbers)};
    };
    Prefetch prefetch(*samples, plan, {.ahead = 4});
    prefetch.next();
    double waited = 0;
    const double total = seconds_of([&] {
      for (std::int64_t step = 1; step < kSteps; ++step) {
        waited += prefetch.next().waited_s;
        std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));
      }
    });
    fmt::print("steps of {:>2} ms with {} tokens ({:.1f} M tokens/s): {:.2f} % waiting for data\n", step_ms,
               kBatch * kLength, static_cast<double>((kSteps - 1) * kBatch * kLength) / total / 1e6,
               100 * waited / total);
  }
}

}  // namespace

int main(int count, char** words) {
  std::filesystem::path folder = std::filesystem::temp_directory_path();
  trireme::bench::Arguments app(
      "Reading tokens and making batches beside memcpy; waiting for data at given step lengths");
  app.add_option("FOLDER", folder, "where the shard is written").show_default();
  if (const auto status = app.parse(count, words)) return *status;
  const auto path = write_shard(folder);
  bench_reading(path);
  bench_waiting(path);
  std::filesystem::remove(path);
  return 0;
}
