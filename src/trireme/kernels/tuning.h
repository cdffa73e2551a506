// kernels/tuning.h -- the tuning cache: which algorithm or variant was the fastest for a key, timed once and written
// down.
//
// Two algorithms of one GEMM round differently, so a run that timed its kernels anew would not repeat its bits. What
// was chosen therefore goes into a file of plain JSON, which belongs to one card and one version of the library: a file
// of another card is not used, and says why.
// Depends on: base.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace trireme::kernels {

/// How cuBLASLt computes one GEMM: its own words for it, and what they say to people.
struct GemmAlgorithm {
  std::array<std::uint64_t, 8> words{};
  std::int64_t workspace = 0;  ///< bytes
  std::string described;       ///< "algorithm 66 tile 128x256 stages 36 cluster 4"
  double us = 0;               ///< of one GEMM, when it was chosen
  double heuristic_us = 0;     ///< of the one that the library's heuristic would have taken
  int tried = 0;
  bool operator==(const GemmAlgorithm&) const = default;
};

/// Which of several kernels with the same result, such as a bias's gradient inside a GEMM or after it.
struct ChosenVariant {
  std::string pick;
  std::map<std::string, double> us;  ///< of each; those that cannot run, or compute something else, are not there
  bool operator==(const ChosenVariant&) const = default;
};

/// What timings hold for.
struct TuningKey {
  std::string card, library;
  bool operator==(const TuningKey&) const = default;
};

class TuningCache {
 public:
  explicit TuningCache(TuningKey key) : key_(std::move(key)) {}

  /// Null where nothing is known.
  const GemmAlgorithm* gemm(const std::string& key) const;
  const ChosenVariant* variant(const std::string& key) const;
  /// The first to choose is right: a second choice of the same key changes nothing.
  const GemmAlgorithm& add_gemm(const std::string& key, GemmAlgorithm algorithm);
  const ChosenVariant& add_variant(const std::string& key, ChosenVariant variant);
  /// An algorithm that no longer runs is forgotten.
  void drop_gemm(const std::string& key);

  const TuningKey& key() const { return key_; }
  std::size_t size() const { return gemms_.size() + variants_.size(); }
  /// Raised by every addition.
  std::int64_t version() const { return version_; }

  std::string to_json() const;
  /// What a file says is taken over, where nothing is known yet. Empty, or why the file is of no use here (another
  /// card, another library). A ConfigError where it is no such file.
  std::string take_json(std::string_view text, std::string_view source);

 private:
  TuningKey key_;
  std::map<std::string, GemmAlgorithm> gemms_;
  std::map<std::string, ChosenVariant> variants_;
  std::int64_t version_ = 0;
};

/// The fastest by name; the one called `plain` keeps its place unless another is at least `margin` faster: timings that
/// differ by less than their noise must not decide.
std::string pick_variant(const std::map<std::string, double>& us, std::string_view plain, double margin = 0.02);

}  // namespace trireme::kernels
